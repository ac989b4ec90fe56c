"""What a loss term is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from mtkd.outputs import ModelOutput, OutputSpec
from tasks.batching import Batch
from tasks.task import Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TermInput:
    """All that a term may look at for one batch. `teacher` is None where nothing needs one.

    Attributes:
        progress: share of the steps that are done, 0 to 1.
        on: the student's layers that are switched on (slow build); None = all.
    """

    task: Task
    batch: Batch
    student: ModelOutput
    teacher: ModelOutput | None
    progress: float = 0.0
    on: frozenset[int] | None = None

    @property
    def teacher_signal(self) -> ModelOutput:
        """The teacher's signal, for terms that stated a teacher_need."""
        assert self.teacher is not None, "a term without a teacher_need asked for the teacher"
        return self.teacher


class LossTerm(nn.Module):
    """A term of the objective.

    It states what it needs of student and teacher, owns its projections (which are never exported),
    says how many units (rows, tokens) a batch has for it, and returns the sum over those units:
    `forward(given: TermInput) -> Tensor` (scalar). The objective divides.

    Attributes:
        compared: (student layer, teacher layer) pairs that can be switched on one after the other; a term
            without starts after all of them (slow build).
    """

    student_need: OutputSpec = OutputSpec()
    teacher_need: OutputSpec = OutputSpec()
    compared: Sequence[tuple[int, int]] = ()

    def pairs_on(self, on: frozenset[int] | None) -> list[tuple[int, tuple[int, int]]]:
        """Number and pair of what is compared of the student's layers `on`; None = of all."""
        return [(n, pair) for n, pair in enumerate(self.compared) if on is None or pair[0] in on]

    def needs(self, on: frozenset[int]) -> tuple[OutputSpec, OutputSpec]:
        """What it needs of student and teacher while only these of the student's layers are on."""
        pairs = [pair for _, pair in self.pairs_on(on)]
        if not pairs:
            return OutputSpec(), OutputSpec()
        mine, theirs = (frozenset(layers) for layers in zip(*pairs, strict=True))
        return self.student_need.within(mine), self.teacher_need.within(theirs)

    def num_items(self, task: Task, batch: Batch) -> int:
        """How many units the term's sum is over; rows unless it says otherwise."""
        return len(batch)


def wide(values: Tensor) -> Tensor:
    """The same values in float32, or as they are if they are wider: losses are not computed in less."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function computed in float32 or wider, also under autocast; what is given twice is widened once."""

    @functools.wraps(loss)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        widened: dict[int, Tensor] = {}

        def widen(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            if id(value) not in widened:
                widened[id(value)] = wide(value)
            return widened[id(value)]

        given = [*args, *kwargs.values()]
        device = next((value.device.type for value in given if isinstance(value, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return loss(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return run
