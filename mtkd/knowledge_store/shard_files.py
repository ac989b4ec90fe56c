"""The shards of a store: planning which rows they hold, and reading them during training."""

from __future__ import annotations

import math
import mmap
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mtkd.knowledge_store.contents import Field, LogitsLayout
from mtkd.knowledge_store.store_manifest import StoreManifest, damage_error
from mtkd.output_files.safetensors_shards import read_header
from mtkd.output_files.sharded_output import PlannedShard
from tasks.common.errors import UserError, reason_of
from tasks.common.shards import ShardEntry
from tasks.tokens.batch_stream import BLOCK, blocks_of

_TARGET_BYTES = 64 << 20  # approximate maximum size of a shard
_MAPPED_BYTES = 1 << 30  # maximum total size of the shards mapped at a time
_NUMPY = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "I32": np.int32,
}


def plan_shards(task: str, n_rows: int, groups: np.ndarray | None, row_bytes: float) -> list[PlannedShard]:
    """Plan the shards of a task: the blocks that the sampler shuffles, halved until they are small enough.

    Args:
        row_bytes: approximate size of a row.
    """
    size = BLOCK
    while size > 64 and size * row_bytes > _TARGET_BYTES:
        size //= 2
    parts = [
        block[start : start + size]
        for block in blocks_of(task, n_rows, groups)
        for start in range(0, len(block), size)
    ]
    return [
        PlannedShard(f"shards/{task}-{number:05d}.safetensors", task, rows)
        for number, rows in enumerate(parts)
    ]


def header_bytes(fields: Iterable[Field]) -> int:
    """Approximate size of a shard's header."""
    return 8 + sum(len(field.name) + 80 for field in fields) + 160


class Shard:
    """The tensors of a shard as views of the memory-mapped file, without copying.

    Attributes:
        views: name -> entries; bfloat16 is viewed as int16.
        offsets: "token" and "kept" -> (n + 1,) where the entries of each row begin.
    """

    def __init__(self, path: Path):
        header = read_header(path)
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.views: dict[str, np.ndarray] = {}
        for name, stored in header.tensors.items():
            dtype = np.dtype(_NUMPY[stored.dtype])
            flat = np.frombuffer(self._map, dtype, math.prod(stored.shape), stored.start)
            self.views[name] = flat.reshape(stored.shape)
        self.offsets = {
            per: np.concatenate([[0], np.cumsum(self.views[counts], dtype=np.int64)])
            for per, counts in (("token", "tokens"), ("kept", "kept"))
            if counts in self.views
        }

    def check(self, fields: Iterable[Field], rows: int) -> None:
        """Check that the shard has these fields for this number of rows; raises ValueError."""
        for field in fields:
            if field.name not in self.views:
                raise ValueError(f"it has no {field.name!r}")
            values = self.views[field.name]
            entries = rows if field.per == "row" else int(self.offsets[field.per][-1])
            stored = torch.empty(0, dtype=torch.int16 if field.dtype == torch.bfloat16 else field.dtype)
            expected = (entries, *field.shape), stored.numpy().dtype
            if (values.shape, values.dtype) != expected:
                raise ValueError(
                    f"{field.name} has {values.shape} {values.dtype}, not {expected[0]} {expected[1]}"
                )

    def read_ahead(self) -> None:
        """Tell the operating system that the whole shard will be read soon."""
        self._map.madvise(mmap.MADV_WILLNEED)


def check_shards(directory: Path, manifest: StoreManifest) -> None:
    """Check that all shards of a store are there and have the sizes of the manifest.

    No shard is opened, because a large store has tens of thousands and every process would open them all.
    Their digests, fields and rows are checked when they are first read (`ShardReader`).

    Raises:
        UserError: a shard is missing or has another size.
    """
    states = {shard.file: shard.damage(directory, digest=False) for shard in manifest.shards}
    if damaged := {file: state for file, state in states.items() if state}:
        raise damage_error(directory, damaged)


def _fields_by_task(manifest: StoreManifest) -> dict[str, list[Field]]:
    layouts = {task.name: LogitsLayout(task.n_outputs, task.per) for task in manifest.tasks}
    return {name: manifest.contents.fields(layout) for name, layout in layouts.items()}


def _open_shard(directory: Path, shard: ShardEntry, fields: Iterable[Field], *, digest: bool) -> Shard:
    if state := shard.damage(directory, digest=digest):
        raise damage_error(directory, {shard.file: state})
    try:
        opened = Shard(directory / shard.file)
        opened.check(fields, shard.rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"shard {directory / shard.file} cannot be read: {reason_of(error)}",
            hint=f"`mtkd.repair_store({str(directory)!r})` rebuilds it",
        ) from error
    return opened


class ShardReader:
    """Reads rows of the shards as tensors.

    Shards are mapped on demand and the least recently used ones are closed, so memory does not grow with the
    store. Each shard is checked against its digest once.
    """

    def __init__(self, directory: Path, manifest: StoreManifest):
        self._directory = directory
        self._shards = {task.name: manifest.shards_of(task.name) for task in manifest.tasks}
        self._starts = {
            name: np.cumsum([0, *(shard.rows for shard in shards)]) for name, shards in self._shards.items()
        }
        self._open: OrderedDict[str, Shard] = OrderedDict()
        self._fields = _fields_by_task(manifest)
        self._sizes = {shard.file: shard.bytes for shard in manifest.shards}
        self._checked: set[str] = set()

    def read(self, task: str, positions: np.ndarray, fields: list[Field]) -> dict[str, Tensor]:
        """Read the fields of some rows, padded to the longest row.

        Args:
            positions: (B,) positions of the rows in the order of the store.

        Returns:
            name -> (B, *shape) for fields with one entry per row, else (B, n, *shape), where n is the largest
            count; the entries beyond a row's count are undefined.
        """
        parts = self._parts(task, positions)
        per_row = {per: counts for per, counts in (("token", "tokens"), ("kept", "kept"))}
        tensors: dict[str, Tensor] = {}
        widths = {}
        for field in fields:
            if field.per == "row":
                tensors[field.name] = self._rows(field, parts, len(positions))
                if field.name in per_row.values():
                    widths[field.name] = int(tensors[field.name].max()) if len(positions) else 0
        grids: dict[str, list[np.ndarray]] = {}
        for field in fields:
            if field.per != "row":
                if field.per not in grids:
                    width = np.arange(widths[per_row[field.per]])
                    grids[field.per] = [
                        shard.offsets[field.per][slots][:, None] + width for shard, slots, _ in parts
                    ]
                tensors[field.name] = self._padded(field, parts, grids[field.per], len(positions))
        return tensors

    def read_ahead(self, task: str, positions: np.ndarray) -> None:
        """Start reading the shards of some rows from disk in the background."""
        shards = self._shards[task]
        for number in np.unique(np.searchsorted(self._starts[task], positions, side="right") - 1):
            if shards[number].file not in self._open:
                self._shard(shards[number]).read_ahead()

    def _parts(self, task: str, positions: np.ndarray) -> list[tuple[Shard, np.ndarray, np.ndarray]]:
        """(shard, row indices inside it, their positions in the batch) for each shard that holds a row."""
        starts = self._starts[task]
        numbers = np.searchsorted(starts, positions, side="right") - 1
        touched = np.unique(numbers)
        parts = []
        for number in touched:
            batch_rows = np.flatnonzero(numbers == number) if len(touched) > 1 else np.arange(len(positions))
            shard = self._shard(self._shards[task][number])
            parts.append((shard, positions[batch_rows] - starts[number], batch_rows))
        return parts

    def _shard(self, shard: ShardEntry) -> Shard:
        if shard.file in self._open:
            self._open.move_to_end(shard.file)
            return self._open[shard.file]
        first = shard.file not in self._checked
        opened = _open_shard(self._directory, shard, self._fields[shard.task], digest=first)
        self._checked.add(shard.file)
        self._open[shard.file] = opened
        while len(self._open) > 2 and sum(self._sizes[name] for name in self._open) > _MAPPED_BYTES:
            self._open.popitem(last=False)
        return opened

    def _rows(self, field: Field, parts: list, count: int) -> Tensor:
        if len(parts) == 1:
            shard, slots, _ = parts[0]
            return _tensor(shard.views[field.name].take(slots, axis=0), field)
        out = np.empty((count, *field.shape), parts[0][0].views[field.name].dtype)
        for shard, slots, batch_rows in parts:
            out[batch_rows] = shard.views[field.name].take(slots, axis=0)
        return _tensor(out, field)

    def _padded(self, field: Field, parts: list, grids: list[np.ndarray], count: int) -> Tensor:
        # Entries beyond a row's count belong to the next rows, or repeat the last entry of the shard.
        if len(parts) == 1:
            return _tensor(parts[0][0].views[field.name].take(grids[0], axis=0, mode="clip"), field)
        first = parts[0][0].views[field.name]
        out = np.empty((count, grids[0].shape[1], *field.shape), first.dtype)
        for (shard, _, batch_rows), grid in zip(parts, grids, strict=True):
            out[batch_rows] = shard.views[field.name].take(grid, axis=0, mode="clip")
        return _tensor(out, field)


def _tensor(values: np.ndarray, field: Field) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if field.dtype == torch.bfloat16 else tensor
