"""The words of some texts by part of speech, with their frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.counter_rng import integers_below


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The sorted (tag, word) pairs of some texts; the index of a pair is its id.

    Attributes:
        tags, words: (V,) the pairs.
        counts: (V,) occurrences of each pair.
        first: (V,) the lowest id with the same tag.
        total: (V,) occurrences of all words with the same tag.
    """

    tags: tuple[str, ...]
    words: tuple[str, ...]
    counts: np.ndarray
    first: np.ndarray
    total: np.ndarray

    @staticmethod
    def make(pairs: list[tuple[str, str]], counts: np.ndarray) -> Vocabulary:
        """Build the vocabulary from sorted pairs."""
        tags = tuple(tag for tag, _ in pairs)
        starts = [number for number, tag in enumerate(tags) if number == 0 or tags[number - 1] != tag]
        sizes = np.diff([*starts, len(tags)])
        totals = np.add.reduceat(counts, starts) if starts else np.zeros(0, np.int64)
        return Vocabulary(
            tags, tuple(word for _, word in pairs), counts, np.repeat(starts, sizes), np.repeat(totals, sizes)
        )

    def another(self, ids: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Draw for each pair another word with the same tag, in proportion to frequency.

        A pair is kept if no other word has its tag.

        Args:
            ids: (n,) pair ids; `draws`: (n,) uint64 random numbers.
        """
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        other_count = self.total[ids] - self.counts[ids]
        position = starts[self.first[ids]] + integers_below(draws, np.maximum(other_count, 1))
        position += np.where(position >= starts[ids], self.counts[ids], 0)  # skip the word itself
        return np.where(
            other_count == 0, ids, np.searchsorted(ends, np.minimum(position, ends[-1] - 1), side="right")
        )
