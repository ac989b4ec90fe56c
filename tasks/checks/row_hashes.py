"""Hashes of rows, to count duplicates and overlaps with bounded memory.

A hash has 64 bits. Among 100 million different rows, the probability that two have the same hash is 0.03%.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.common.mapped import MappedArray, mapped, release_pages
from tasks.data.rows import row_keys

_MAX_WAITING = 1 << 20  # hashes in memory before they are written to files
_FILES = 64  # temporary files, each with the hashes in one range
_BLOCK = 1 << 22  # distinct hashes that are searched before their memory pages are released
_RANGE_STARTS = np.array([i * 2**64 // _FILES - 2**63 for i in range(1, _FILES)], np.int64)


def hash_rows(columns: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    """(n,) int64: the hash of each row of some columns. Hashes differ between runs of Python."""
    keys = row_keys(columns).to_pylist()
    return np.fromiter(map(hash, keys), np.int64, len(keys))


class RowHashes:
    """Collects hashes of rows; beyond about a million, they are moved to temporary files.

    Each file holds the hashes in one range, and the files are sorted in memory one after the other.
    """

    def __init__(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._files: list[MappedArray] = []

    def add(self, hashes: np.ndarray) -> None:
        """Add (n,) int64 hashes."""
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) >= _MAX_WAITING:
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
        for file, some in zip(
            self._files, np.split(hashes, np.searchsorted(hashes, _RANGE_STARTS)), strict=True
        ):
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
    """Which of some hashes are among the sorted ones.

    Args:
        hashes: (n,) int64.
        distinct: (m,) int64, sorted, without duplicates.

    Returns:
        (n,) bool.
    """
    order = np.argsort(hashes)
    queries = hashes[order]
    is_contained = np.zeros(len(hashes), bool)
    for start in range(0, len(distinct), _BLOCK):
        some = distinct[start : start + _BLOCK]
        first, end = np.searchsorted(queries, some[0]), np.searchsorted(queries, some[-1], side="right")
        positions = np.searchsorted(some, queries[first:end])
        is_contained[order[first:end]] = some[positions] == queries[first:end]
        release_pages()
    return is_contained
