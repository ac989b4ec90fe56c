"""The weighted sum of loss terms: the only place that divides sums by counts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mtkd.losses.term import LossTerm, TermInput
from mtkd.records import Need, Signal
from tasks.batching import Batch
from tasks.errors import UserError
from tasks.task import Task


class Objective(nn.Module):
    """L = sum over terms of weight * (sum over units) / (number of units).

    The number of units is taken over the whole step (all micro-batches, all processes), so that
    splitting a batch changes nothing.
    """

    def __init__(self, terms: Mapping[str, LossTerm], weights: Mapping[str, float]):
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.weights = dict(weights)

    def _terms(self) -> list[tuple[str, LossTerm]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def student_need(self) -> Need:
        """All that the terms need of the student."""
        return _join([term.student_need for _, term in self._terms()])

    @property
    def teacher_need(self) -> Need:
        """All that the terms need of the teacher."""
        return _join([term.teacher_need for _, term in self._terms()])

    def units(self, task: Task, batch: Batch) -> list[int]:
        """How many units each term is a sum over, in this batch."""
        return [term.units(task, batch) for _, term in self._terms()]

    def forward(
        self, task: Task, batch: Batch, student: Signal, teacher: Signal | None, units: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The objective's share from one micro-batch.

        Args:
            units: for each term, the units of the whole step.

        Returns:
            the loss (scalar), and each term's own value before weighting (n_terms,), detached.
        """
        given = TermInput(task, batch, student, teacher)
        values = [term(given) / max(count, 1) for (_, term), count in zip(self._terms(), units, strict=True)]
        weighted = [
            self.weights[name] * value for (name, _), value in zip(self._terms(), values, strict=True)
        ]
        return torch.stack(weighted).sum(), torch.stack(values).detach()

    def check(self, student: Need, teacher: Need | None, recipe: str) -> None:
        """Refuse terms whose need is not met.

        Args:
            student, teacher: what they offer; teacher None = there is none.

        Raises:
            UserError: names the term and what is missing.
        """
        for name, term in self._terms():
            for who, need, offers in (
                ("student", term.student_need, student),
                ("teacher", term.teacher_need, teacher or Need()),
            ):
                missing = need.missing_from(offers)
                if missing:
                    raise UserError(
                        f"the term {name!r} of {recipe} needs {', '.join(missing)} of the {who}, "
                        "which it does not give",
                        mend=f"drop the term with --set terms.{name}.weight=0, or choose another {who}",
                    )


def _join(needs: list[Need]) -> Need:
    joined = Need()
    for need in needs:
        joined = joined | need
    return joined
