"""Rows of a `questions` corpus, as records and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks.corpus_reader import QUESTION_SCHEMA


@dataclass(frozen=True)
class QuestionRow:
    """One row.

    Attributes:
        task: its task; `parent`: the paragraph's uid; `copy`: its number among the paragraph's questions.
        text: the question; `context`: what it is asked of.
        method: how it was made; `source`: what the paragraph says of itself.
        answer, start: an answer and its first character; "" and -1 = none in the context; None = not known.
        asked_for: the answer that the question was written for; None = for none, or none that is known.
    """

    task: str
    parent: str
    copy: int
    text: str
    context: str
    method: str
    source: str | None
    answer: str | None
    start: int | None
    asked_for: str | None = None

    @property
    def uid(self) -> str:
        """Its name in the corpus."""
        return f"{self.parent}#{self.copy}"


def questions_of(table: pa.Table) -> list[QuestionRow]:
    """The rows of a table by `QUESTION_SCHEMA`, of which columns that may be null may be left out."""
    names = (
        "task",
        "parent",
        "copy",
        "text",
        "text_pair",
        "method",
        "source",
        "answer",
        "answer_start",
        "asked_for",
    )
    columns = [
        table[name].to_pylist() if name in table.column_names else [None] * len(table) for name in names
    ]
    return [QuestionRow(*values) for values in zip(*columns, strict=True)]


def question_table(rows: Sequence[QuestionRow]) -> pa.Table:
    """The table of some rows."""
    columns = {
        "task": [row.task for row in rows],
        "parent": [row.parent for row in rows],
        "copy": [row.copy for row in rows],
        "text": [row.text for row in rows],
        "text_pair": [row.context for row in rows],
        "label": [None] * len(rows),
        "method": [row.method for row in rows],
        "source": [row.source for row in rows],
        "answer": [row.answer for row in rows],
        "answer_start": [row.start for row in rows],
        "asked_for": [row.asked_for for row in rows],
    }
    return pa.table(columns, schema=QUESTION_SCHEMA)
