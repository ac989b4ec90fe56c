"""The teacher's logits for every training row, computed once and reused for all students."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.numpy import load_file
from torch import Tensor

from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.storage.distributed import ProcessGroup
from mtkd.storage.safetensors_shards import SafetensorsFormat
from mtkd.storage.sharded_output import PlannedShard, ShardedOutput, total_size
from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.progress import Advance, progress
from tasks.task import Task

_SHARD_ROWS = 8192


def cache_logits(
    teacher: MultiTaskModel,
    tasks: Mapping[str, Task],
    data: Mapping[str, Encoded],
    directory: Path,
    folders: Mapping[str, str],
    accelerator: Accelerator,
    *,
    precision: str = "fp32",
    batch_size: int = 64,
) -> dict[str, np.ndarray]:
    """Return the teacher's logits, task -> (n, C) or (n, 2, L) float32, computing those not on disk yet.

    The logits are written in shards of 8,192 rows, so an interrupted pass can be resumed. The shards are
    divided among the processes.

    Args:
        data: task -> rows encoded for the teacher.
        directory: the directory of the cache.
        folders: task -> folder of its shards, whose name identifies everything that affects the logits.

    Raises:
        UserError: the teacher produced a non-finite value (the error names the task and the row).
    """
    shards = [
        PlannedShard(
            f"{folders[name]}/{start:09d}.safetensors",
            name,
            np.arange(start, min(start + _SHARD_ROWS, len(encoded.labels))),
        )
        for name, encoded in data.items()
        for start in range(0, len(encoded.labels), _SHARD_ROWS)
    ]
    output = ShardedOutput(directory, "", shards, SafetensorsFormat())

    def make(shard: PlannedShard, advance: Advance) -> dict[str, Tensor]:
        rows = data[shard.task].take(np.asarray(shard.rows))
        kind = accelerator.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
            logits = predict_logits(teacher, tasks[shard.task], rows, batch_size=batch_size, advance=advance)
        _check_finite(shard.task, rows, logits)
        return {"logits": torch.from_numpy(logits)}

    missing = output.missing()
    total, left = total_size(shards), total_size(missing)
    with progress("teacher", total, done=total - left, show=accelerator.is_main_process) as advance:
        output.write(missing, make, ranks=ProcessGroup.of(accelerator), advance=advance)
    logits: dict[str, list[np.ndarray]] = {name: [] for name in data}
    for shard in shards:
        logits[shard.task].append(load_file(directory / shard.file)["logits"])
    return {name: np.concatenate(parts) for name, parts in logits.items()}


def _check_finite(name: str, rows: Encoded, logits: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(logits).reshape(len(logits), -1).all(axis=1))
    if len(bad):
        raise UserError(
            f"the teacher's logits for {rows.uids[int(bad[0])].as_py()} ({name}) are not finite",
            hint="the teacher has diverged: refine it again with a lower learning rate",
        )
