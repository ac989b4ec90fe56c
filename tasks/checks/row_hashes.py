"""Hashes of rows, to count duplicates and overlaps whatever the number of rows.

A hash has 64 bits: among 100 million different rows, two have the same with a probability of 0.03%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tasks.common.mapped import mapped, release_pages
from tasks.data.rows import row_keys

_RUN = 1 << 20  # hashes sorted at once, in memory
_PARTS = 64  # ranges of values that are merged one after the other
_QUERIES = 4096  # hashes looked up at once


def hash_rows(columns: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    """(n,) int64: the hash of each row of some columns; it differs between runs of Python."""
    keys = row_keys(columns).to_pylist()
    return np.fromiter(map(hash, keys), np.int64, len(keys))


class RowHashes:
    """The hashes of rows that are added part by part; more than a million are kept in temporary files."""

    def __init__(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._runs: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> None:
        """Add (n,) int64 hashes."""
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) >= _RUN:
            self._runs.append(mapped(iter([self._sorted()]), np.int64))

    def distinct(self) -> np.ndarray:
        """The distinct hashes, sorted; call it once."""
        last = self._sorted()
        if not self._runs:
            return last
        runs = [*self._runs, last]
        width = 2**64 // _PARTS
        edges = np.array([i * width - 2**63 for i in range(1, _PARTS)], np.int64)
        cuts = [[0, *np.searchsorted(run, edges).tolist(), len(run)] for run in runs]

        def parts() -> Iterator[np.ndarray]:
            for part in range(_PARTS):
                some = (run[cut[part] : cut[part + 1]] for run, cut in zip(runs, cuts, strict=True))
                yield np.unique(np.concatenate(list(some)))
                release_pages()

        return mapped(parts(), np.int64)

    def _sorted(self) -> np.ndarray:
        hashes = np.unique(np.concatenate([np.zeros(0, np.int64), *self._waiting]))
        self._waiting = []
        return hashes


def contained(hashes: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """(n,) bool: which of (n,) hashes are among the sorted ones."""
    is_contained = np.zeros(len(hashes), bool)
    for start in range(0, len(hashes) if len(distinct) else 0, _QUERIES):
        some = hashes[start : start + _QUERIES]
        positions = np.minimum(np.searchsorted(distinct, some), len(distinct) - 1)
        is_contained[start : start + _QUERIES] = distinct[positions] == some
        release_pages()
    return is_contained
