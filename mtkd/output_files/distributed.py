"""The processes of a distributed job, as started by `accelerate launch` or `torchrun`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import UserError, counted, reason_of
from tasks.common.launcher import check_process_rank
from tasks.common.locks import LockedError, locked
from tasks.common.progress import say

if TYPE_CHECKING:
    from accelerate import Accelerator

_LOCK_WAIT = 5.0  # seconds that the main process waits for a lock before it sends a message to the others
# The start of the names of environment variables that accelerate reads.
_ACCELERATE_VARIABLES = ("ACCELERATE_", "FSDP_", "WORLD_SIZE", "RANK", "LOCAL_", "MASTER_")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that work on one job together, and the position of this process among them.

    They have joined, so that they can wait for each other; `tasks.common.launcher.ProcessRank` only holds
    what the environment variables of a launcher say.

    Attributes:
        rank: the number of this process, from 0.
        count: the number of processes.
        wait: a barrier, which returns when every process has called it.
    """

    rank: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @property
    def is_main(self) -> bool:
        """True in the main process, which has rank 0 and acts for all processes."""
        return self.rank == 0

    @staticmethod
    def of(accelerator: Accelerator) -> ProcessGroup:
        """The process group of an accelerator."""
        return ProcessGroup(
            accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone
        )


ALONE = ProcessGroup()


@contextlib.contextmanager
def locked_by_main_process(directory: Path, group: ProcessGroup) -> Iterator[None]:
    """Lock a directory in the main process, as soon as it is free; every process must call this.

    There is no time limit, since another job may write there for hours. While the main process waits, the
    processes exchange a message every few seconds; otherwise the others would fail after the timeout of
    torch.distributed. The main process prints once what it waits for.

    Raises:
        UserError: the directory cannot be created.
    """
    with contextlib.ExitStack() as stack:
        is_waiting = False
        while not _broadcast_from_main(group, lambda: _try_to_lock(stack, directory)):
            if group.is_main and not is_waiting:
                say(f"waiting for another command, which is writing {directory}")
            is_waiting = True
        yield


def _try_to_lock(stack: contextlib.ExitStack, directory: Path) -> bool:
    """Lock a directory until the stack is closed; returns False if it stays locked for a few seconds."""
    try:
        stack.enter_context(locked(directory, wait=_LOCK_WAIT))
    except LockedError:
        return False
    return True


def _broadcast_from_main(group: ProcessGroup, compute: Callable[[], bool]) -> bool:
    """Call a function in the main process, and return its result in every process."""
    outcome = [compute() if group.is_main else False]
    if group.count > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(outcome)
    return outcome[0]


def disable_ram_efficient_loading() -> None:
    """Let transformers load weights in every process; accelerate's FSDP would do so only in the main one."""
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


@contextlib.contextmanager
def launch_errors() -> Iterator[None]:
    """Turn errors of accelerate inside the block into a UserError that lists its environment variables.

    Raises:
        UserError: accelerate raised a ValueError or KeyError; or processes would share a GPU, which NCCL
            cannot do.
    """
    _refuse_shared_gpus()
    try:
        yield
    except (ValueError, KeyError) as error:
        names = sorted(
            n for n, v in os.environ.items() if n.startswith(_ACCELERATE_VARIABLES) and v != "false"
        )
        raise UserError(
            f"accelerate cannot start: {reason_of(error)}",
            hint=f"correct or unset {', '.join(names)}" if names else None,
        ) from error


def _refuse_shared_gpus() -> None:
    """Raise UserError if this machine has GPUs, but fewer than processes."""
    import torch

    here = check_process_rank()
    gpus = torch.cuda.device_count() if here.on_this_machine > 1 else 0
    if 0 < gpus < here.on_this_machine:
        raise UserError(
            f"{here.on_this_machine} processes were started on a machine with {counted(gpus, 'GPU')}",
            expected="one process per GPU",
            hint=f"start {gpus}, or use the CPU (CUDA_VISIBLE_DEVICES= before the command)",
        )


def join_process_group() -> ProcessGroup:
    """Join the processes that a launcher started; `ALONE` if it started only this one.

    Raises:
        UserError: an environment variable of the launcher is missing or invalid.
    """
    if check_process_rank().count < 2:
        return ALONE
    import torch
    from accelerate import PartialState

    disable_ram_efficient_loading()
    with launch_errors():
        # PartialState does not detect that there is only a CPU
        state = PartialState(cpu=not torch.accelerator.is_available())
    return ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
