"""What an augmenter is: something that makes unlabelled copies of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tasks.corpus_reader import SCHEMA
from tasks.rows import Rows


@dataclass(frozen=True)
class Copies:
    """Some copies, and counts over them.

    Attributes:
        table: the copies, by the method's schema.
        words: words of all copies; `changed` of them were replaced or dropped.
        unchanged: copies in which no word was.
    """

    table: pa.Table
    words: int
    changed: int
    unchanged: int


class Augmenter(Protocol):
    """A way to make copies. A class may inherit from this one for the defaults below.

    The copies of a row may depend on the settings, the row and the copy's number only. An augmenter is sent
    to worker processes, so it must be picklable, and its class importable; a frozen dataclass does well.
    """

    @property
    def name(self) -> str:
        """The method's name in manifests and in the column `method`."""

    @property
    def kind(self) -> str:
        """What it makes: "copies" or "questions", as in `tasks.corpus_reader.CorpusManifest`."""
        return "copies"

    @property
    def schema(self) -> pa.Schema:
        """The columns of what it makes: `SCHEMA` or `QUESTION_SCHEMA` of `tasks.corpus_reader`."""
        return SCHEMA

    @property
    def settings(self) -> dict[str, float | int | str]:
        """What decides the copies, by name."""

    @property
    def about(self) -> str:
        """What it does, in a few sentences for the corpus's card."""

    def prepare(self, rows: Mapping[str, Rows]) -> Augmenter:
        """The augmenter with what it must know of all rows (task -> rows) before the first copy."""
        return self

    def part(self, rows: Rows) -> Augmenter:
        """The augmenter with what it needs for these rows and no more: what is sent to another process."""
        return self

    def make(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows` in row order, a row's copies together, in chunks of bounded size.

        A method that makes questions may make fewer than `copies` of a row.
        """


def copies_table(rows: Rows, copies: int, method: str, text: pa.Array, pair: pa.Array) -> pa.Table:
    """The table of the copies of `rows`, a row's copies together.

    Args:
        text, pair: the (n * copies,) texts of the copies; `pair` is all null in tasks of one text.
    """
    count = len(rows) * copies
    parent = rows.uids.take(pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), copies)))
    number = pa.array(np.tile(np.arange(1, copies + 1, dtype=np.int32), len(rows)))
    columns = [constant(rows.task, count), parent, number, text, pair, pa.nulls(count, pa.float64())]
    return pa.Table.from_arrays([*columns, constant(method, count)], schema=SCHEMA)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """A column of one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))
