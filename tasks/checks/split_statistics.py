"""Statistics of the texts of a split, collected table by table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.checks.row_hashes import RowHashes, contained, hash_rows
from tasks.data.raw_table import RawTable
from tasks.task import Task

SAMPLE = 1000  # number of rows that are tokenised
_SHOWN = 60  # characters of an example
_WORD = r"[^\s\pZ\x0b\x1c-\x1f\x{85}]+"  # white space as Python defines it; RE2's \s matches less


@dataclass(frozen=True)
class Lengths:
    """Lengths of one text column in words, which are separated by white space."""

    column: str
    mean: float
    median: float
    p95: float
    max: int


class SplitStatistics:
    """Counts of rows, of words, and of rows that are also training rows.

    Args:
        train_hashes: the sorted hashes of the training rows; None for the training split itself.

    Attributes:
        rows: the number of rows.
        path: the file of the first row.
        seen: the number of rows that are also training rows.
        first_seen: the location and text of the first of them.
        sample: up to 1,000 random rows.
    """

    def __init__(self, task: Task, train_hashes: np.ndarray | None):
        self.rows = 0
        self.path = ""
        self.seen = 0
        self.first_seen = ""
        self.sample = pa.table({name: pa.array([], pa.string()) for name in task.columns})
        self._columns = task.columns
        self._train_hashes = train_hashes
        self._hashes = RowHashes()
        self._words = [np.zeros(1, np.int64) for _ in task.columns]  # rows with 0, 1, 2, ... words
        self._keys, self._draws = np.zeros(0), np.random.default_rng(0)

    def add(self, raw: RawTable) -> None:
        """Add the rows of a table."""
        self.path = self.path or raw.path
        self.rows += raw.table.num_rows
        texts = raw.table.select(list(self._columns)).cast(self.sample.schema)
        hashes = hash_rows(texts.columns)
        self._hashes.add(hashes)
        if self._train_hashes is not None:
            rows = np.flatnonzero(contained(hashes, self._train_hashes))
            if len(rows) and not self.seen:
                shown = " | ".join(str(column[int(rows[0])].as_py())[:_SHOWN] for column in texts.columns)
                self.first_seen = f"{raw.location(int(rows[0]))}: {shown!r}"
            self.seen += len(rows)
        for number, column in enumerate(texts.columns):
            coded = column.combine_chunks().drop_null().dictionary_encode()
            sizes = pc.count_substring_regex(coded.dictionary, _WORD).take(coded.indices)
            counts = np.bincount(sizes.to_numpy(zero_copy_only=False), minlength=len(self._words[number]))
            counts[: len(self._words[number])] += self._words[number]
            self._words[number] = counts
        self._keys = np.concatenate([self._keys, self._draws.random(len(texts))])
        sampled = np.sort(np.argsort(self._keys, kind="stable")[:SAMPLE])
        self.sample = pa.concat_tables([self.sample, texts]).take(sampled).combine_chunks()
        self._keys = self._keys[sampled]

    def distinct(self) -> np.ndarray:
        """The sorted hashes of the different rows; call it once."""
        return self._hashes.distinct()

    def lengths(self) -> tuple[Lengths, ...]:
        """The lengths of each text column."""
        return tuple(map(_lengths, self._columns, self._words))


def _lengths(column: str, rows: np.ndarray) -> Lengths:
    """The lengths of a column.

    Args:
        rows: (w,) int64: the number of rows with 0, 1, 2, ... words.
    """
    ends = np.cumsum(rows)
    total = int(ends[-1])
    if not total:
        return Lengths(column, 0.0, 0.0, 0.0, 0)

    def quantile(share: float) -> float:
        position = share * (total - 1)
        low, high = np.searchsorted(ends, [np.floor(position), np.ceil(position)], side="right").tolist()
        return float(low + (high - low) * (position % 1))

    mean = float(rows @ np.arange(len(rows)) / total)
    return Lengths(column, mean, quantile(0.5), quantile(0.95), int(np.flatnonzero(rows)[-1]))
