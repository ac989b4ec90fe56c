"""The teacher's logits for every training row, computed once and kept for every student of that teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.numpy import load_file, save_file

from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.files import atomic_path
from tasks.progress import progress
from tasks.task import Task

_PIECE_ROWS = 8192


def cache_logits(
    teacher: MultiTaskModel,
    tasks: Mapping[str, Task],
    data: Mapping[str, Encoded],
    places: Mapping[str, Path],
    accelerator: Accelerator,
    *,
    precision: str = "fp32",
    batch_size: int = 64,
) -> dict[str, np.ndarray]:
    """The teacher's logits, task -> (n, C) or (n, 2, L) float32, from disk where they are there already.

    They are written in pieces of 8,192 rows, each whole or absent, so an interrupted pass goes on
    where it was. The pieces are dealt out over the processes.

    Args:
        data: task -> rows as the teacher reads them.
        places: task -> where its pieces lie; as many places as there are different rows and teachers.

    Raises:
        UserError: the teacher gave a value that is not finite (names the task and row).
    """
    pieces = [
        (name, start, places[name] / f"{start:09d}.safetensors")
        for name, encoded in data.items()
        for start in range(0, len(encoded.labels), _PIECE_ROWS)
    ]
    total = sum(len(encoded.labels) for encoded in data.values())
    missing = [piece for piece in pieces if not piece[2].is_file()]
    done = total - sum(min(_PIECE_ROWS, len(data[name].labels) - start) for name, start, _ in missing)
    device = accelerator.device.type
    with (
        progress("teacher", total, done=done, show=accelerator.is_main_process) as advance,
        torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"),
    ):
        for name, start, path in pieces[accelerator.process_index :: accelerator.num_processes]:
            if path.is_file():
                continue
            encoded = data[name]
            rows = encoded.take(np.arange(start, min(start + _PIECE_ROWS, len(encoded.labels))))
            logits = predict_logits(teacher, tasks[name], rows, batch_size=batch_size, advance=advance)
            _check_finite(name, rows, logits)
            with atomic_path(path) as temporary:
                save_file({"logits": logits}, temporary)
    accelerator.wait_for_everyone()
    found: dict[str, list[np.ndarray]] = {name: [] for name in data}
    for name, _, path in pieces:
        found[name].append(load_file(path)["logits"])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _check_finite(name: str, rows: Encoded, logits: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(logits).reshape(len(logits), -1).all(axis=1))
    if len(bad):
        raise UserError(
            f"the teacher's logits for {rows.uids[int(bad[0])].as_py()} ({name}) are not finite",
            hint="the teacher has diverged: refine it again with a lower learning rate",
        )
