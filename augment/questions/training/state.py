"""Where a training run stands: weights, optimiser and step, whole or absent."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tasks.files import atomic_directory, read_json, write_json


def save_state(work: Path, model: Any, optimizer: torch.optim.Optimizer, step: int, log: list[float]) -> None:
    """Write `work/step-N` and drop the older ones; `log` has the losses since the start, one an interval."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.named_parameters()}
    slots = {
        f"{name}|{slot}": torch.as_tensor(value).detach().cpu()
        for name, param in model.named_parameters()
        for slot, value in optimizer.state.get(param, {}).items()
    }
    with atomic_directory(work / f"step-{step:09d}") as place:
        save_file(weights, place / "weights.safetensors")
        save_file(slots, place / "optimizer.safetensors")
        write_json(place / "position.json", {"step": step, "log": log})
    for old in _all(work)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def restore_state(work: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[int, list[float]]:
    """Put the newest checkpoint back; the step it is of, and the losses so far."""
    found = _all(work)
    if not found:
        return 0, []
    model.load_state_dict(load_file(found[-1] / "weights.safetensors"), strict=False)
    params = dict(model.named_parameters())
    for key, value in load_file(found[-1] / "optimizer.safetensors").items():
        name, _, slot = key.rpartition("|")
        optimizer.state[params[name]][slot] = value.to(params[name].device)
    position = read_json(found[-1] / "position.json")
    return position["step"], position["log"]


def _all(work: Path) -> list[Path]:
    if not work.is_dir():
        return []
    return sorted(path for path in work.iterdir() if re.fullmatch(r"step-\d+", path.name))
