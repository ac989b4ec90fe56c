"""The accelerator of a run, and sums over its processes."""

from __future__ import annotations

from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

Number = TypeVar("Number", int, float)


def make_accelerator() -> Accelerator:
    """The accelerator of a run: device and processes. Heads that idle in a step are allowed for.

    It is the same for every precision, so that one process can run jobs of several: training step and
    evaluation use autocast themselves.
    """
    return Accelerator(
        mixed_precision="no", kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
    )


def sum_over_processes(accelerator: Accelerator, numbers: list[Number]) -> list[Number]:
    """Each number's sum over all processes; every process has to call it."""
    if accelerator.num_processes == 1:
        return numbers
    own = torch.tensor(numbers, device=accelerator.device)
    sums: list[Number] = accelerator.reduce(own, "sum").tolist()  # type: ignore[union-attr]
    return sums
