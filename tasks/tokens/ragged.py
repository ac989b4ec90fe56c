"""Integer rows of different lengths in one flat array."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tasks.common.mapped import MappedArray, release_pages


@dataclass(frozen=True, eq=False)
class RaggedArray:
    """n integer rows of different lengths, concatenated.

    Attributes:
        values: (sum of lengths,) int32.
        offsets: (n + 1,) int64; row i is values[offsets[i]:offsets[i + 1]].
    """

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64, the length of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    def row(self, i: int) -> np.ndarray:
        """Row i, as a view."""
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def take(self, indices: np.ndarray) -> RaggedArray:
        """The rows at `indices`, in that order; a row may be taken more than once."""
        begins = self.offsets[indices]
        lengths = self.offsets[indices + 1] - begins
        offsets = offsets_of(lengths)
        source = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return RaggedArray(self.values[source], offsets)

    @staticmethod
    def from_lists(rows: list[list[int]]) -> RaggedArray:
        """Build from a list of rows."""
        offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        return RaggedArray(
            np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets
        )

    @staticmethod
    def mapped(parts: Iterable[RaggedArray]) -> RaggedArray:
        """Concatenate the rows of all parts in temporary files, so that they do not take up memory."""
        values, offsets = MappedArray(np.int32), MappedArray(np.int64)
        end = 0
        offsets.add(np.zeros(1))
        for part in parts:
            values.add(part.values)
            offsets.add(part.offsets[1:] + end)
            end += len(part.values)
            release_pages()
        return RaggedArray(values.finish(), offsets.finish())

    @staticmethod
    def concat(parts: list[RaggedArray]) -> RaggedArray:
        """Concatenate the rows of all parts, in order."""
        if not parts:
            return RaggedArray.from_lists([])
        values = np.concatenate([part.values for part in parts])
        return RaggedArray(values, offsets_of(np.concatenate([part.lengths for part in parts])))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """(n + 1,) int64 offsets of concatenated rows with these (n,) lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.add.accumulate(lengths, out=offsets[1:])
    return offsets
