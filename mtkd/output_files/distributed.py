"""The group of processes that share a job, as started by `accelerate launch` or `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class ProcessGroup:
    """The position of this process in its group.

    Attributes:
        number: rank of this process, from 0; `count`: number of processes.
        wait: a barrier, which returns when every process has called it.
    """

    number: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @property
    def first(self) -> bool:
        """True in the process with rank 0, which acts for the group."""
        return self.number == 0

    @staticmethod
    def of(accelerator: Accelerator) -> ProcessGroup:
        """The process group of an accelerator."""
        return ProcessGroup(
            accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone
        )


ALONE = ProcessGroup()


def disable_ram_efficient_loading() -> None:
    """Let transformers load weights in every process; accelerate's FSDP would load them only in the first."""
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def launched() -> ProcessGroup:
    """The process group described by the environment: one process unless a launcher started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return ALONE
    import torch
    from accelerate import PartialState

    disable_ram_efficient_loading()
    state = PartialState(cpu=not torch.accelerator.is_available())  # accelerate does not detect a CPU itself
    return ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
