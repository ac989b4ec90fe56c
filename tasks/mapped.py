"""Columns in memory-mapped temporary files, so that their size is limited by the disk and not by memory.

The files have no names: they disappear with the last array that uses them, also if the process is killed.
They are in the directory for temporary files (`TMPDIR`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.files import disk_errors


class MappedArray:
    """A numpy array that is written part by part.

    Args:
        dtype: of the values.
        shape: of one item; () for numbers.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()):
        self._dtype, self._shape, self._items = np.dtype(dtype), shape, 0
        with disk_errors(Path(tempfile.gettempdir())):
            self._file = tempfile.TemporaryFile(prefix="mtkd-")  # noqa: SIM115 (see `__del__`)

    def __del__(self) -> None:
        self._file.close()  # else an error while reading rows would leave it to the garbage collector

    def add(self, values: np.ndarray) -> None:
        """Add items, (n, *shape)."""
        with disk_errors(Path(tempfile.gettempdir())):
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._items += len(values)

    def finish(self) -> np.ndarray:
        """All items, as a read-only memory-mapped array."""
        shape = (self._items, *self._shape)
        with self._file, disk_errors(Path(tempfile.gettempdir())):
            self._file.flush()
            if not np.prod(shape):
                return np.zeros(shape, self._dtype)
            return np.asarray(np.memmap(self._file, self._dtype, "r", shape=shape))


class MappedTexts:
    """An array of texts that is written part by part."""

    def __init__(self) -> None:
        self._bytes, self._offsets, self._end = MappedArray(np.uint8), MappedArray(np.int64), 0
        self._offsets.add(np.zeros(1))

    def add(self, texts: pa.Array) -> None:
        """Add texts (string or large_string, without nulls)."""
        if not len(texts):
            return
        texts = texts.cast(pa.large_string())
        _, offsets, values = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        begin, end = int(ends[0]), int(ends[-1])
        self._bytes.add(np.frombuffer(values or b"", np.uint8)[begin:end])
        self._offsets.add(ends[1:] + (self._end - begin))
        self._end += end - begin

    def finish(self) -> pa.LargeStringArray:
        """All texts, as a memory-mapped array."""
        offsets, values = self._offsets.finish(), self._bytes.finish()
        buffers = pa.py_buffer(offsets), pa.py_buffer(values)
        return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def mapped(parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    """The parts, (n, ...) each, one after the other in a memory-mapped array."""
    array: MappedArray | None = None
    for part in parts:
        array = array or MappedArray(dtype, part.shape[1:])
        array.add(part)
    return np.zeros(0, dtype) if array is None else array.finish()
