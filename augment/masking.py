"""Masking: copies of a row in which each word is replaced by the mask token with probability p.

Tang et al. 2019 (arXiv 1903.12136, section 3.2, rule 1); MKD uses p = 0.1. Words are separated by Unicode
white space, as in `str.split`, and the words of a copy are joined by single spaces.

The draws come from `augment.counter_rng`, so the copies do not depend on the chunking or on the number of
processes. Word w of the row, from 1 and counted across its texts, is masked if draw(uid, copy, w) is below
p * 2**64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from augment.augmenter import Augmenter, Copies, copies_table
from augment.counter_rng import INCREMENT, splitmix64, streams_of, threshold
from tasks.common.errors import UserError
from tasks.data.rows import Rows

_CHUNK = 8192  # copies processed at once, so that the arrays of 20-word texts fit in the cache


@dataclass(frozen=True)
class Masking(Augmenter):
    """The method "mask".

    Attributes:
        p: probability that a word is masked, 0 < p < 1.
        seed: decides which words are masked.
        mask_token: the token that replaces a masked word.

    Raises:
        UserError: p is outside (0, 1), or the mask token is empty or contains white space.
    """

    p: float = 0.1
    seed: int = 0
    mask_token: str = "[MASK]"

    name = "mask"
    description = (
        "Each word (split at white space) is replaced independently by the mask token with probability p; "
        "white space is normalised to single spaces. Which words are masked depends only on "
        "the seed, the source row's uid, the number of the copy and the position of the word."
    )

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise UserError(f"masking probability p = {self.p}", expected="0 < p < 1, such as 0.1")
        if self.mask_token.split() != [self.mask_token]:
            raise UserError(f"mask token {self.mask_token!r}", expected="one word, such as [MASK]")

    @property
    def settings(self) -> dict[str, float | int | str]:
        """The fields by name."""
        return dataclasses.asdict(self)

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows` in row order, keeping each row's copies together, in chunks.

        Args:
            copies: number of copies per row; the chunks hold n * copies rows in total.
        """
        step = max(1, _CHUNK // copies)
        for start in range(0, len(rows), step):
            yield self._chunk(rows.take(np.arange(start, min(start + step, len(rows)))), copies)

    def _chunk(self, rows: Rows, copies: int) -> Copies:
        count = len(rows) * copies
        streams = streams_of(self.seed, rows.uids, copies)
        masked = np.zeros(count, np.int64)
        before = np.zeros(len(rows), np.int64)  # words of the row's texts so far
        texts: list[pa.Array] = []
        words = 0
        for text in rows.texts:
            column, per_copy, lengths = self._mask_text(text, streams, before, copies)
            texts.append(column)
            masked += per_copy
            before += lengths
            words += int(lengths.sum()) * copies
        pair = texts[1] if len(texts) == 2 else pa.nulls(count, pa.string())
        table = copies_table(rows, copies, self.name, texts[0], pair)
        return Copies(table, words, int(masked.sum()), int((masked == 0).sum()))

    def _mask_text(
        self, text: pa.StringArray, streams: np.ndarray, before: np.ndarray, copies: int
    ) -> tuple[pa.StringArray, np.ndarray, np.ndarray]:
        """Mask one text column of n rows.

        Args:
            streams: (n * copies,) uint64, one per copy.
            before: (n,) number of words in the earlier columns of each row.

        Returns:
            the (n * copies,) masked texts, the number of masked words in each, and the (n,) number of words
            in each source text.
        """
        trimmed = pc.utf8_trim_whitespace(text)
        split = pc.utf8_split_whitespace(trimmed)
        offsets = split.offsets.to_numpy()
        lengths = np.diff(offsets).astype(np.int64)
        lengths[pc.equal(trimmed, "").to_numpy(zero_copy_only=False)] = 0  # split("") gives one empty word

        counts = np.repeat(lengths, copies)  # words of each copy
        ends = np.cumsum(counts)
        starts = ends - counts  # where each copy's words begin among all words of the chunk
        run = np.arange(ends[-1])
        base = streams + INCREMENT * (np.repeat(before, copies) + 1 - starts).astype(np.uint64)
        mask = splitmix64(np.repeat(base, counts) + INCREMENT * run.astype(np.uint64)) < threshold(self.p)

        words = pa.concat_arrays([split.values, pa.array([self.mask_token])])
        source = run + np.repeat(np.repeat(offsets[:-1], copies) - starts, counts)
        source[mask] = len(words) - 1
        bounds = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
        chosen = pa.ListArray.from_arrays(pa.array(bounds), words.take(pa.array(source)))
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask)])
        return pc.binary_join(chosen, " "), total[ends] - total[starts], lengths
