"""The group of processes that share a job, as started by `accelerate launch` or `torchrun`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.common.errors import UserError, reason_of
from tasks.common.launcher import check_launch

if TYPE_CHECKING:
    from accelerate import Accelerator

_OF_ACCELERATE = ("ACCELERATE_", "FSDP_", "WORLD_SIZE", "RANK", "LOCAL_", "MASTER_")


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


@contextlib.contextmanager
def launch_errors() -> Iterator[None]:
    """Turn accelerate's errors about variables of the environment into a UserError that names these."""
    try:
        yield
    except (ValueError, KeyError) as error:
        names = sorted(n for n, v in os.environ.items() if n.startswith(_OF_ACCELERATE) and v != "false")
        raise UserError(
            f"accelerate cannot start: {reason_of(error)}",
            hint=f"correct or unset {', '.join(names)}" if names else None,
        ) from error


def launched() -> ProcessGroup:
    """The process group described by the environment: one process unless a launcher started several."""
    if check_launch().count < 2:
        return ALONE
    import torch
    from accelerate import PartialState

    disable_ram_efficient_loading()
    with launch_errors():
        state = PartialState(cpu=not torch.accelerator.is_available())  # it does not detect a CPU itself
    return ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
