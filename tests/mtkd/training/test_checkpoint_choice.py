"""Checkpoints of several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from resuming_processes import one_weight
from torch import nn

from mtkd.training.checkpoint import Position, save_checkpoint


def save(directory: Path, step: int) -> Path:
    """Save a checkpoint with the single weight `step`."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, step)
    save_checkpoint(directory, module, torch.optim.SGD(module.parameters(), 0.1), Position(step=step))
    return directory / f"step-{step:09d}"


def test_all_processes_resume_from_the_checkpoint_that_the_first_one_chooses(
    tmp_path: Path, processes: Any
) -> None:
    for step in (1, 2):
        newest = save(tmp_path / "checkpoints", step)
    (newest / "weights.safetensors").write_bytes(b"damaged")
    done = processes.run(tmp_path, count=2, call="resuming_processes:resume")
    assert done.code == 0, done.err
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["1 1.0", "1 1.0"]
    assert not newest.exists()
    assert done.err.count("is damaged") == 1, "only one process decides"


def test_a_run_with_only_a_damaged_checkpoint_starts_over(tmp_path: Path) -> None:
    """The preparations of a new run, such as fitting heads, must then be made."""
    loop = one_weight(tmp_path)
    assert not loop.resumes
    checkpoint = save(tmp_path / "checkpoints", 1)
    assert loop.resumes
    (checkpoint / "weights.safetensors").write_bytes(b"damaged")
    assert not loop.resumes
