"""What an augmentation method is: something that makes unlabelled copies of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tasks.rows import Rows


@dataclass(frozen=True)
class Copies:
    """Some copies, and counts over them.

    Attributes:
        table: the copies, by the method's schema.
        words: words of all copies; `changed` of them were replaced.
        unchanged: copies in which no word was replaced.
    """

    table: pa.Table
    words: int
    changed: int
    unchanged: int


class Method(Protocol):
    """A way to make copies: a frozen record.

    The copies of a row may depend on the settings, the row and the copy's number only. It is sent to
    worker processes.
    """

    @property
    def name(self) -> str:
        """The method's name in manifests and in the column `method`."""

    @property
    def kind(self) -> str:
        """What it makes: "copies" or "questions", as in `tasks.corpus.CorpusManifest`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of what it makes: `SCHEMA` or `QUESTION_SCHEMA` of `tasks.corpus`."""

    @property
    def settings(self) -> dict[str, float | int | str]:
        """What decides the copies, by name."""

    @property
    def about(self) -> str:
        """What it does, in a few sentences for the corpus's card."""

    def make(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows` in row order, a row's copies together, in chunks of bounded size.

        A method that makes questions may make fewer than `copies` of a row.
        """
