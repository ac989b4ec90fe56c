"""Checkpoints: safetensors and JSON in one directory, whole or absent."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mtkd.training.optimizers import optimizer_tensors, restore_optimizer
from tasks.files import atomic_directory, read_json, write_json

_KEEP = 2


@dataclass
class Position:
    """Where a run stands; all that the loop needs beside weights and optimiser.

    Randomness needs no state: order, dropout and masking are drawn from (seed, epoch or step).

    Attributes:
        step: optimiser steps done in all.
        epoch, batch: the next batch to run.
        best: the best value so far of the metric that is watched; None before the first evaluation.
        bad_epochs: evaluations since then.
        history: one record an epoch.
        stopped: True once training has ended (early or not).
        seconds: time spent training so far.
        batch_source: see `mtkd.training.batches.BatchSource.cursor`.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    bad_epochs: int = 0
    history: list[dict] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    batch_source: dict = field(default_factory=dict)


def save_checkpoint(
    directory: Path, module: nn.Module, optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write `directory/step-N`, then drop all but the newest two.

    Args:
        module: model and objective (unwrapped).
    """
    state, names = module.state_dict(), _saved_names(module)
    weights = {name: state[name].cpu().contiguous() for name, saved in names.items() if name == saved}
    with atomic_directory(directory / f"step-{position.step:09d}") as place:
        save_file(weights, place / "weights.safetensors")
        save_file(optimizer_tensors(module, optimizer), place / "optimizer.safetensors")
        write_json(place / "position.json", asdict(position))
    for old in _all(directory)[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def restore_checkpoint(
    directory: Path, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Position | None:
    """Put the newest checkpoint back; None if there is none."""
    found = _all(directory)
    if not found:
        return None
    place = found[-1]
    weights = load_file(place / "weights.safetensors")
    tied = {name: weights[saved] for name, saved in _saved_names(module).items() if saved in weights}
    module.load_state_dict(weights | tied)
    restore_optimizer(module, optimizer, load_file(place / "optimizer.safetensors"))
    return Position(**read_json(place / "position.json"))


def _saved_names(module: nn.Module) -> dict[str, str]:
    """The name that each tensor is saved under; tied weights have several names and are saved once."""
    first: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    return {name: first.setdefault(id(value), name) for name, value in state.items()}


def _all(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if re.fullmatch(r"step-\d+", p.name))
