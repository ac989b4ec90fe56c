"""What a subclass of the training loop says about one optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StepPlan:
    """How to compute the loss of one optimiser step, micro-batch by micro-batch.

    Attributes:
        task: name of the task.
        micro_batches: one function per micro-batch, which returns its part of the loss () and of the values
            of the terms (t,).
        terms: the t names of the loss terms; None for a term that is not logged in this step.
    """

    task: str
    micro_batches: Sequence[Callable[[], tuple[Tensor, Tensor]]]
    terms: Sequence[str | None] = ()
