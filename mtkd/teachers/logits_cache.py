"""The teacher's logits for every training row, computed once and reused for all students."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from mtkd.device import worker_device
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.distributed import ProcessGroup, locked_by_main_process
from mtkd.output_files.safetensors_shards import SafetensorsFormat, read_header
from mtkd.output_files.sharded_output import DIGEST, PlannedShard, ShardedOutput, total_size
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.digests import quick_digest, read_digests, record_digests
from tasks.common.errors import UserError
from tasks.common.locks import remove_leftovers
from tasks.common.mapped import release_pages
from tasks.common.progress import Advance, progress
from tasks.task import Task
from tasks.tokens.encoding import Encoded

_SHARD_ROWS = 8192
_TENSOR = "logits"  # of a shard


@dataclass(frozen=True)
class CacheFolder:
    """The folder of the logits of a task's rows from `start` up to `stop`.

    Its name identifies everything that affects the logits.
    """

    name: str
    start: int
    stop: int


class MappedLogits:
    """The logits of n rows, (n, C) or (n, 2, L) float32, memory-mapped from shards that are in order.

    Args:
        files: the shards.
    """

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._parts = [_map_logits(file) for file in files]
        self._starts = np.cumsum([0, *map(len, self._parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The logits of some rows, copied into memory."""
        part_of_row = np.searchsorted(self._starts, indices, side="right") - 1
        logits = np.empty((len(indices), *self._parts[0].shape[1:]), np.float32)
        for part in np.unique(part_of_row):
            rows = part_of_row == part
            found = self._parts[part][indices[rows] - self._starts[part]]
            if not np.isfinite(found).all():
                raise UserError(
                    f"the logits in {self._files[part]} are damaged: they are not all finite",
                    hint="delete this file: the same command computes it again",
                )
            logits[rows] = found
        return logits


def _map_logits(path: Path) -> np.ndarray:
    stored = read_header(path).tensors[_TENSOR]
    return np.asarray(np.memmap(path, "<f4", "r", stored.start, stored.shape))


def _holds_logits(path: Path, task: Task, shard: PlannedShard) -> bool:
    """True if a file is a shard as it was planned, in the shape of the task's logits."""
    try:
        stored = read_header(path).tensors.get(_TENSOR)
    except (OSError, ValueError):
        return False
    rows = len(shard.rows), *task.type.logits_shape(task, 0)[:1]
    return stored is not None and stored.dtype == "F32" and stored.shape[:2] == rows


def _folders(directory: Path, shards: Sequence[PlannedShard]) -> list[Path]:
    """The folders of a cache that hold some of the shards, as far as they exist."""
    folders = dict.fromkeys((directory / shard.file).parent for shard in shards)
    return [folder for folder in folders if folder.is_dir()]


def _remove_unfit(directory: Path, shards: Sequence[PlannedShard], tasks: Mapping[str, Task]) -> None:
    """Remove what killed processes left, and the shards that have the wrong shape."""
    for folder in _folders(directory, shards):
        remove_leftovers(folder)
    for shard in shards:
        path = directory / shard.file
        if path.is_file() and not _holds_logits(path, tasks[shard.task], shard):
            path.unlink()


def _recorded_digests(directory: Path, shards: Sequence[PlannedShard]) -> dict[str, str]:
    """File -> digest of the shards that were finished earlier."""
    folders = _folders(directory, shards)
    return {
        f"{folder.name}/{name}": digest for folder in folders for name, digest in read_digests(folder).items()
    }


def _record_digests(output: ShardedOutput, recorded: Mapping[str, str]) -> None:
    """Write the digests of the finished shards, and remove the work files that had them."""
    digests = output.digests(recorded)
    for folder in _folders(output.directory, output.shards):
        of_folder = {
            Path(file).name: digest
            for file, digest in digests.items()
            if Path(file).parent.name == folder.name
        }
        if of_folder != read_digests(folder):
            record_digests(folder, of_folder)
        for work_file in folder.glob(f"*{DIGEST}"):
            work_file.unlink()


def cache_logits(
    teacher: MultiTaskModel,
    tasks: Mapping[str, Task],
    data: Mapping[str, Encoded],
    directory: Path,
    folders: Mapping[str, Sequence[CacheFolder]],
    accelerator: Accelerator,
    *,
    precision: str = "fp32",
    batch_size: int = 64,
    workers: Workers = THIS_PROCESS,
    load: Callable[[], MultiTaskModel] | None = None,
) -> dict[str, MappedLogits]:
    """Return the teacher's logits of each task, computing those not on disk yet.

    The logits are written in shards of 8,192 rows, so an interrupted pass can be resumed. The shards are
    divided among the processes.

    Args:
        teacher: the model; not used if `workers` are other processes.
        data: task -> rows encoded for the teacher.
        directory: the directory of the cache.
        folders: task -> the folders of its shards, in the order of the rows.
        workers: what computes the logits.
        load: loads the teacher in other processes.

    Raises:
        UserError: the teacher produced a non-finite value (the error names the task and the row).
    """
    shards = [
        PlannedShard(
            f"{folder.name}/{start - folder.start:09d}.safetensors",
            name,
            range(start, min(start + _SHARD_ROWS, folder.stop)),
        )
        for name in data
        for folder in folders[name]
        for start in range(folder.start, folder.stop, _SHARD_ROWS)
    ]
    output = ShardedOutput(directory, "", shards, SafetensorsFormat(), quick_digest)
    group = ProcessGroup.of(accelerator)

    def inputs(shard: PlannedShard) -> tuple[Task, Encoded]:
        rows = data[shard.task].take(np.asarray(shard.rows))
        release_pages()
        return tasks[shard.task], rows

    setup = partial(_logits_maker, lambda: teacher, precision, batch_size, accelerator.device)
    if load and workers.in_other_processes:
        setup = partial(_logits_maker, load, precision, batch_size)
    with locked_by_main_process(directory, group):  # other runs may use this teacher
        if group.is_main:
            _remove_unfit(directory, shards, tasks)
        group.wait()
        recorded = _recorded_digests(directory, shards)
        missing = output.missing(recorded)
        total, remaining = total_size(shards), total_size(missing)
        with progress("teacher", total, done=total - remaining) as advance:
            output.write(missing, setup=setup, inputs=inputs, workers=workers, group=group, advance=advance)
        if group.is_main:
            _record_digests(output, recorded)
    return {
        name: MappedLogits([directory / shard.file for shard in shards if shard.task == name])
        for name in data
    }


def _logits_maker(
    load: Callable[[], MultiTaskModel], precision: str, batch_size: int, device: torch.device | None = None
) -> Callable[[tuple[Task, Encoded], Advance], dict[str, Tensor]]:
    """Load the teacher; returns a function that makes shards with it (`device`: None = that of a worker)."""
    device = device or worker_device()
    teacher = load().to(device)

    def make(inputs: tuple[Task, Encoded], advance: Advance) -> dict[str, Tensor]:
        task, rows = inputs
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = predict_logits(teacher, task, rows, batch_size=batch_size, advance=advance)
        _check_finite(task.name, rows, logits)
        return {_TENSOR: torch.from_numpy(logits)}

    return make


def _check_finite(name: str, rows: Encoded, logits: np.ndarray) -> None:
    bad_rows = np.flatnonzero(~np.isfinite(logits).reshape(len(logits), -1).all(axis=1))
    if len(bad_rows):
        raise UserError(
            f"the teacher's logits for {rows.uids[int(bad_rows[0])].as_py()} ({name}) are not finite",
            hint="the teacher has diverged: refine it again with a lower learning rate",
        )
