"""Processes started together by `accelerate launch` or `torchrun`, that share out the shards of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass


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


ALONE = ProcessGroup()


def launched() -> ProcessGroup:
    """The processes as the environment tells of them: one, unless a launcher started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return ALONE
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())  # on a CPU it must be said
    return ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
