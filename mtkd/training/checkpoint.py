"""Checkpoints: one directory of safetensors and JSON files each, written atomically."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from pydantic_core import from_json
from safetensors.torch import load_file, save_file
from torch import nn

from mtkd.models.tied_weights import tensors_to_save, with_tied_names
from mtkd.output_files.safetensors_shards import read_header
from mtkd.training.checkpoint_tensors import CHECKPOINT_WEIGHTS, OPTIMIZER, require_fit
from mtkd.training.optimizers import optimizer_tensors, restore_optimizer
from mtkd.training.processes import from_main_process
from tasks.common.digests import damaged_files, write_digests
from tasks.common.files import atomic_directory, remove_directory, write_json
from tasks.common.progress import say
from tasks.common.records import Count, Record, read_record

_CHECKPOINTS_KEPT = 2
_POSITION = "position.json"
_Values = Annotated[list[float], Field(min_length=1)]


@dataclass
class Position(Record):
    """The progress of a run: everything the loop needs besides weights and optimiser state.

    No random state is needed: order, dropout and masking are functions of the seed and the epoch or step.

    Attributes:
        step: number of finished optimiser steps.
        epoch, batch: the next batch to run.
        best: the best value of the watched metric so far; None before the first evaluation.
        best_digest: the digest of the file with the weights of that epoch, if they are kept.
        bad_epochs: number of evaluations since the best value.
        history: one record per epoch.
        stopped: True once early stopping or a callback has ended training.
        seconds: training time so far.
        batch_source: the last `mtkd.training.batches.DrawnRows.cursor`.
        epoch_losses: for each task, the losses of the steps of this epoch.
        logged: size of log.jsonl in bytes.
        log_digest: the digest of log.jsonl at that size.
        unlogged: the values since the last record of log.jsonl (`MetricLog`).
    """

    step: Count = 0
    epoch: Count = 0
    batch: Count = 0
    best: float | None = None
    best_digest: str | None = None
    bad_epochs: Count = 0
    history: list[dict] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    batch_source: dict = field(default_factory=dict)
    epoch_losses: dict[str, _Values] = field(default_factory=dict)
    logged: int | None = None
    log_digest: str | None = None
    unlogged: dict[str, _Values] = field(default_factory=dict)


def save_checkpoint(
    directory: Path, module: nn.Module, optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write `directory/step-N` and delete all but the newest two checkpoints.

    Args:
        module: model and objective, not wrapped by accelerate.
    """
    with atomic_directory(directory / f"step-{position.step:09d}") as path:
        save_file(tensors_to_save(module), path / CHECKPOINT_WEIGHTS)
        save_file(optimizer_tensors(module, optimizer), path / OPTIMIZER)
        write_json(path / _POSITION, asdict(position))
        write_digests(path)
    for old in _checkpoints(directory)[:-_CHECKPOINTS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint in a directory, if there is one."""
    return next(reversed(_checkpoints(directory)), None)


def find_checkpoint(directory: Path) -> Path | None:
    """The newest undamaged checkpoint in a directory, if there is one.

    Every process must call this. The main process chooses the checkpoint and removes the damaged ones after
    it, so that all processes find the same one.
    """
    return from_main_process(lambda: _newest_undamaged(directory))


def restore_checkpoint(
    directory: Path, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Position | None:
    """Restore the newest undamaged checkpoint (`find_checkpoint`); returns None if there is none.

    Raises:
        UserError: its position is of another version or was changed by hand, or its tensors do not fit.
    """
    newest = find_checkpoint(directory)
    if newest is None:
        return None
    hint = "delete this checkpoint to resume from the one before it, or start over with `overwrite=True`"
    position = read_record(newest / _POSITION, Position, hint=hint)
    weights, state = (
        with_tied_names(module, load_file(newest / CHECKPOINT_WEIGHTS)),
        load_file(newest / OPTIMIZER),
    )
    require_fit(newest, module, weights, state)
    module.load_state_dict(weights)
    restore_optimizer(module, optimizer, state)
    return position


def _newest_undamaged(directory: Path) -> Path | None:
    """The newest undamaged checkpoint; the damaged ones after it are removed."""
    while newest := newest_checkpoint(directory):
        if not damaged_files(newest) and _is_whole(newest):
            break
        say(f"{newest} is damaged; training resumes from the checkpoint before it, or starts again")
        remove_directory(newest)
    return newest


def _is_whole(checkpoint: Path) -> bool:
    """True if all files are there and have the right form, whether their digests are recorded or not."""
    if not all((checkpoint / name).is_file() for name in (CHECKPOINT_WEIGHTS, OPTIMIZER, _POSITION)):
        return False
    try:
        from_json((checkpoint / _POSITION).read_bytes())
        read_header(checkpoint / CHECKPOINT_WEIGHTS)
        read_header(checkpoint / OPTIMIZER)
    except ValueError:
        return False
    return True


def _checkpoints(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if re.fullmatch(r"step-\d+", p.name) and p.is_dir())
