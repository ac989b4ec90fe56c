"""Hashes of rows, to count duplicates and overlaps whatever the number of rows.

A hash has 64 bits: among 100 million different rows, two have the same with a probability of 0.03%.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.common.mapped import MappedArray, mapped, release_pages
from tasks.data.rows import row_keys

_WAITING = 1 << 20  # hashes kept in memory before they are written
_FILES = 64  # temporary files, each for a range of values
_SEARCHED = 1 << 22  # distinct hashes searched at once, before their pages are released
_EDGES = np.array([i * 2**64 // _FILES - 2**63 for i in range(1, _FILES)], np.int64)


def hash_rows(columns: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    """(n,) int64: the hash of each row of some columns; it differs between runs of Python."""
    keys = row_keys(columns).to_pylist()
    return np.fromiter(map(hash, keys), np.int64, len(keys))


class RowHashes:
    """The hashes of rows that are added part by part; more than a million are kept in temporary files.

    Each file holds a range of values. The files are sorted in memory, one after the other.
    """

    def __init__(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._files: list[MappedArray] = []

    def add(self, hashes: np.ndarray) -> None:
        """Add (n,) int64 hashes."""
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) >= _WAITING:
            self._write()

    def distinct(self) -> np.ndarray:
        """The distinct hashes, sorted; call it once."""
        if not self._files:
            return self._sorted()
        self._write()
        return mapped((_distinct(np.array(file.finish())) for file in self._files), np.int64)

    def _write(self) -> None:
        """Move the waiting hashes to the files."""
        self._files = self._files or [MappedArray(np.int64) for _ in range(_FILES)]
        hashes = self._sorted()
        for file, some in zip(self._files, np.split(hashes, np.searchsorted(hashes, _EDGES)), strict=True):
            file.add(some)

    def _sorted(self) -> np.ndarray:
        hashes = _distinct(np.concatenate([np.zeros(0, np.int64), *self._waiting]))
        self._waiting = []
        return hashes


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """The distinct hashes, sorted; `hashes` is sorted in place.

    `np.unique` would be slower: numpy 2.3 and later use a hash table.
    """
    hashes.sort()
    is_first = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


def contained(hashes: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """(n,) bool: which of (n,) hashes are among the sorted ones."""
    order = np.argsort(hashes)
    queries = hashes[order]
    is_contained = np.zeros(len(hashes), bool)
    for start in range(0, len(distinct), _SEARCHED):
        some = distinct[start : start + _SEARCHED]
        first, end = np.searchsorted(queries, some[0]), np.searchsorted(queries, some[-1], side="right")
        positions = np.searchsorted(some, queries[first:end])
        is_contained[order[first:end]] = some[positions] == queries[first:end]
        release_pages()
    return is_contained
