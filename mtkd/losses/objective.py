"""The weighted sum of loss terms: the only place that divides sums by counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

import torch
from torch import Tensor, nn

from mtkd.losses.base import LossTerm, TermInput
from mtkd.losses.settings import Term, value_at
from mtkd.losses.slow_build import SlowBuild
from mtkd.outputs import BY_LAYER, ModelOutput, OutputSpec
from tasks.batching import Batch
from tasks.task import Task


class Objective(nn.Module):
    """L = sum over terms of weight * (sum over items) / (number of items).

    The number of num_items is taken over the whole step (all micro-batches, all processes), so that
    splitting a batch changes nothing.

    Args:
        terms: name -> term.
        settings: name -> its weight (over the steps) and the kinds of task it is for.
        slow_build: share of the steps in which layers are switched on one after the other.
    """

    def __init__(self, terms: Mapping[str, LossTerm], settings: Mapping[str, Term], slow_build: float = 0.0):
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self._settings = dict(settings)
        self.slow_build = SlowBuild.of(slow_build, terms.values())

    def _terms(self) -> list[tuple[str, LossTerm]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def student_need(self) -> OutputSpec:
        """All that the terms need of the student."""
        return reduce(or_, (term.student_need for _, term in self._terms()), OutputSpec())

    @property
    def teacher_need(self) -> OutputSpec:
        """All that the terms need of the teacher."""
        return reduce(or_, (term.teacher_need for _, term in self._terms()), OutputSpec())

    def needs(self, progress: float) -> tuple[OutputSpec, OutputSpec]:
        """What is needed of student and teacher in a step; less than in all while layers are built."""
        if self.slow_build.done(progress):
            return self.student_need, self.teacher_need
        on = self.slow_build.on(progress)
        student, teacher = zip(*(term.needs(on) for _, term in self._terms()), strict=True)
        return reduce(or_, student, OutputSpec()), reduce(or_, teacher, OutputSpec())

    def num_items(self, task: Task, batch: Batch) -> list[int]:
        """How many items each term sums over in this batch; 0 for a term that is not for this task."""
        return [
            term.num_items(task, batch) if self._concerns(name, task) else 0 for name, term in self._terms()
        ]

    def _concerns(self, name: str, task: Task) -> bool:
        kinds = self._settings[name].kinds
        return kinds is None or task.kind in kinds

    def forward(
        self,
        task: Task,
        batch: Batch,
        student: ModelOutput,
        teacher: ModelOutput | None,
        num_items: list[int],
        progress: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """The objective's share from one micro-batch.

        Args:
            num_items: for each term, the number of items in the whole step.
            progress: share of the steps that are done, 0 to 1, for weights and temperatures that change.

        Returns:
            the loss (scalar), and each term's own value before weighting (n_terms,), detached.
        """
        on = None if self.slow_build.done(progress) else self.slow_build.on(progress)
        given = TermInput(task, batch, student, teacher, progress, on)
        loss = _nothing(student)
        values = []
        for (name, term), count in zip(self._terms(), num_items, strict=True):
            weight = value_at(self._settings[name].weight, progress)
            live = on is None or term.pairs_on(on)
            value = term(given) / count if count and weight and live else loss.new_zeros(())
            values.append(value.detach().float())
            loss = loss + weight * value
        return loss, torch.stack(values)


def _nothing(student: ModelOutput) -> Tensor:
    """A zero that hangs on the student, for a step in which no term has anything to say."""
    if student.logits is not None or student.pooled is not None:
        found = student.pooled if student.logits is None else student.logits
    else:
        found = next(tensor for kind in BY_LAYER for tensor in getattr(student, kind).values())
    assert found is not None
    return found.float().flatten()[:1].sum() * 0.0
