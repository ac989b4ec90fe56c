"""Columns in memory-mapped temporary files, so that their size is limited by the disk and not by memory.

The files have no names: they disappear with the last array that uses them, also if the process is killed.
They are in the directory for temporary files (`TMPDIR`). Loops over all rows call `release_pages`, so that
the pages they have read do not stay in the memory of the process until the system needs it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.common.files import disk_errors
from tasks.common.temporary import temporary_root

_STEP = 1 << 20  # values copied at once
_MAPS: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class MappedArray:
    """A numpy array that is written part by part.

    Args:
        dtype: the dtype of the values.
        shape: the shape of one item; () for scalars.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()):
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._items = 0
        with disk_errors(temporary_root()):
            self._file = tempfile.TemporaryFile(prefix="mtkd-")  # noqa: SIM115 (see `__del__`)

    def __del__(self) -> None:
        self._file.close()  # else an error while reading rows would leave it to the garbage collector

    def add(self, values: np.ndarray) -> None:
        """Add items, (n, *shape)."""
        with disk_errors(temporary_root()):
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._items += len(values)

    def finish(self) -> np.ndarray:
        """All items, as a read-only memory-mapped array."""
        shape = (self._items, *self._shape)
        with self._file, disk_errors(temporary_root()):
            self._file.flush()
            if not np.prod(shape):
                return np.zeros(shape, self._dtype)
            pages = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            _MAPS.add(pages)
            return np.frombuffer(pages, self._dtype).reshape(shape)


class MappedTexts:
    """An array of texts that is written part by part."""

    def __init__(self) -> None:
        self._bytes = MappedArray(np.uint8)
        self._offsets = MappedArray(np.int64)
        self._end = 0
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

    def finish(self, *, narrow: bool = False) -> pa.StringArray | pa.LargeStringArray:
        """All texts, as a memory-mapped array.

        Args:
            narrow: a plain string array if the texts have less than 2 GiB.
        """
        offsets, values = self._offsets.finish(), self._bytes.finish()
        kind = pa.StringArray if narrow and self._end < 1 << 31 else pa.LargeStringArray
        if kind is pa.StringArray:
            offsets = mapped((offsets[i : i + _STEP] for i in range(0, len(offsets), _STEP)), np.int32)
        return kind.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(values))


def mapped(parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    """The parts, (n, ...) each, one after the other in a memory-mapped array."""
    array: MappedArray | None = None
    for part in parts:
        array = array or MappedArray(dtype, part.shape[1:])
        array.add(part)
    return np.zeros(0, dtype) if array is None else array.finish()


def mapped_zeros(count: int, dtype: Any) -> np.ndarray:
    """(count,) zeros in a memory-mapped temporary file, to be written in any order."""
    values = np.dtype(dtype)
    if not count:
        return np.zeros(0, values)
    with (
        disk_errors(temporary_root()),
        tempfile.TemporaryFile(prefix="mtkd-") as file,
    ):
        if hasattr(os, "posix_fallocate"):  # else a full disk would end the process
            os.posix_fallocate(file.fileno(), 0, count * values.itemsize)
        else:
            file.truncate(count * values.itemsize)
        pages = mmap.mmap(file.fileno(), 0)
    _MAPS.add(pages)
    return np.frombuffer(pages, values)


def release_pages() -> None:
    """Drop the pages of all arrays from the memory of this process; they are read again when needed."""
    for pages in list(_MAPS):
        pages.madvise(mmap.MADV_DONTNEED)
