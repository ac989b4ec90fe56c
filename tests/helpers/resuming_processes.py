"""Functions that tests run in two processes, which resume from the same checkpoints or wait for a lock."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn

from mtkd.output_files import distributed
from mtkd.train_settings import TrainSettings
from mtkd.training import checkpoint
from mtkd.training.loop import TrainingLoop
from mtkd.training.processes import make_accelerator
from mtkd.training.step_plan import StepPlan


class OneWeight(TrainingLoop[None]):
    """Trains nothing; only `start` is called."""

    def batches_from(self, position: checkpoint.Position, limit: int) -> Any:
        raise NotImplementedError

    def plan(self, step_data: None) -> StepPlan:
        raise NotImplementedError

    def learning_rate(self) -> float:
        raise NotImplementedError


def one_weight(directory: Path) -> OneWeight:
    """Return a training loop with a single weight, in this process."""
    module = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    return OneWeight(make_accelerator(), module, optimizer, TrainSettings(), 3, directory)


def resume(directory: str) -> None:
    """Resume in this process, and write the step and the weight; the first process takes long to check."""
    loop, damaged_files = one_weight(Path(directory)), checkpoint.damaged_files

    def slow_check(path: Path) -> Any:
        time.sleep(0.5)  # if the other process did not wait, it would decide by itself in the meantime
        return damaged_files(path)

    if loop.accelerator.is_main_process:
        checkpoint.damaged_files = slow_check  # type: ignore[assignment]
    loop.start()
    rank = loop.accelerator.process_index
    assert isinstance(loop.train_module, nn.Linear)
    Path(directory, f"rank-{rank}").write_text(f"{loop.position.step} {loop.train_module.weight.item():.1f}")


def wait_for_lock(directory: str) -> None:
    """Wait for a lock in this process, with a short limit on how long processes wait for each other."""
    distributed._LOCK_WAIT = 1.0
    state = PartialState(cpu=True, timeout=timedelta(seconds=4))
    group = distributed.ProcessGroup(state.process_index, state.num_processes, state.wait_for_everyone)
    if group.is_main:
        (Path(directory) / "started").touch()
    with distributed.locked_by_main_process(Path(directory) / "logits", group):
        (Path(directory) / f"rank-{group.rank}").touch()
