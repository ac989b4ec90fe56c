"""The interface of augmenters, which make unlabelled copies of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.errors import UserError, counted
from tasks.data.corpus_reader import SCHEMA
from tasks.data.rows import Rows


@dataclass(frozen=True)
class Copies:
    """A chunk of copies and its counts.

    Attributes:
        table: the copies, in the augmenter's schema.
        words: number of words in all copies, of which `changed` were replaced or dropped.
        unchanged: number of copies in which no word was replaced or dropped.
        counts: the augmenter's own counts.
    """

    table: pa.Table
    words: int
    changed: int
    unchanged: int
    counts: Mapping[str, int] = field(default_factory=dict)


class Augmenter(Protocol):
    """A method of making copies. Classes may inherit from this one to get the defaults below.

    The copies of a row may depend only on the settings, the row and the number of the copy. Augmenters are
    sent to worker processes, so they must be picklable, and their class importable (a frozen dataclass is);
    or they have a `loader`.
    """

    @property
    def name(self) -> str:
        """The method's name in manifests and in the column `method`."""

    @property
    def kind(self) -> str:
        """What the augmenter makes: "copies" or "questions", as in a `CorpusManifest`."""
        return "copies"

    @property
    def schema(self) -> pa.Schema:
        """The columns of its output: `SCHEMA` or `QUESTION_SCHEMA` from `tasks.data.corpus_reader`."""
        return SCHEMA

    @property
    def count_names(self) -> tuple[str, ...]:
        """The keys of `Copies.counts`, whose sums are recorded in the manifest."""
        return ()

    @property
    def shard_copies(self) -> int:
        """Approximate number of copies per file, after which an interrupted job resumes."""
        return 250_000

    @property
    def settings(self) -> dict[str, float | int | str]:
        """All settings that affect the copies, by name."""

    @property
    def description(self) -> str:
        """A description of the method in a few sentences, for the dataset card."""

    @property
    def reads_files(self) -> bool:
        """True if `prepare` and `for_rows` also take `FileRows`, which only other processes should read."""
        return False

    @property
    def chunk_copies(self) -> int | None:
        """Approximate number of copies that are written together; None = those of each `Copies`.

        With a number, `make_copies` can yield the copies of each row by themselves, so that progress is shown
        after each row.
        """
        return None

    def check_requirements(self) -> None:
        """Raise UserError if something that `prepare` needs is missing. Called before rows are read."""
        return

    def prepare(self, rows: Mapping[str, Rows], workers: Workers = THIS_PROCESS) -> Augmenter:
        """Return an augmenter that has collected what it needs from all rows (task -> rows).

        Args:
            workers: processes that may do a part of this; the result must not depend on them.
        """
        return self

    def for_rows(self, rows: Rows) -> Augmenter:
        """Return an augmenter reduced to what it needs for these rows, to be sent to another process."""
        return self

    @property
    def loader(self) -> Callable[[], Augmenter] | None:
        """A picklable function that other processes call once to get the augmenter, such as to load a model.

        None: the augmenter itself is sent to them, with each shard.
        """
        return None

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows` in row order, keeping each row's copies together, in bounded chunks.

        An augmenter that makes questions may make fewer than `copies` for a row.
        """


def works_row_by_row(augmenter: Augmenter) -> bool:
    """True if an augmenter overrides neither `prepare` nor `for_rows`, and so needs only the copied rows."""
    augmenter_class = type(augmenter)
    return augmenter_class.prepare is Augmenter.prepare and augmenter_class.for_rows is Augmenter.for_rows


def copies_table(rows: Rows, copies: int, method: str, text: pa.Array, pair: pa.Array) -> pa.Table:
    """Build the table of copies of `rows`, keeping each row's copies together.

    Args:
        text, pair: the (n * copies,) texts of the copies; `pair` is all null for single-text tasks.

    Raises:
        UserError: there are more or fewer texts.
    """
    count = len(rows) * copies
    for texts in (text, pair):
        if len(texts) != count:
            texts_from_rows = f"{counted(len(texts), 'text')} from {counted(len(rows), 'row')}"
            raise UserError(
                f"the augmenter {method!r} made {texts_from_rows}",
                expected=f"{count:,}, {copies} per row",
            )
    parent = rows.uids.take(pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), copies)))
    number = pa.array(np.tile(np.arange(1, copies + 1, dtype=np.int32), len(rows)))
    columns = [_constant(rows.task, count), parent, number, text, pair, pa.nulls(count, pa.float64())]
    return pa.Table.from_arrays([*columns, _constant(method, count)], schema=SCHEMA)


def _constant(value: str, count: int) -> pa.DictionaryArray:
    """Build a column that repeats one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))
