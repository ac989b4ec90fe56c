"""The processes that share a job, started together by `accelerate launch` or `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class ProcessGroup:
    """This process among the others.

    Attributes:
        number: its number, from 0; `count`: how many there are.
        wait: returns when every process has called it.
    """

    number: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @property
    def first(self) -> bool:
        """True in the process that speaks for all."""
        return self.number == 0

    @staticmethod
    def of(accelerator: Accelerator) -> ProcessGroup:
        """The processes of an accelerator."""
        return ProcessGroup(
            accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone
        )


ALONE = ProcessGroup()


def launched() -> ProcessGroup:
    """The processes that the environment describes: one, unless a launcher started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return ALONE
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())  # accelerate does not detect a CPU itself
    return ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
