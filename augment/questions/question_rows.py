"""The rows of a question corpus, as records and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks.data.corpus_reader import QUESTION_SCHEMA


@dataclass(frozen=True)
class QuestionRow:
    """One row of a question corpus.

    Attributes:
        task: the name of the task.
        parent: the paragraph's uid; `copy`: the number of the question among those of the paragraph.
        text: the question; `context`: the text that it is about.
        method: how the row was made; `source`: the title or the file of the paragraph.
        answer, start: the answer and its character offset; "" and -1 = unanswerable; None = unknown.
        asked_for: the answer that the question was generated for; None = none or unknown.
    """

    task: str
    parent: str
    copy: int
    text: str
    context: str
    method: str
    source: str | None
    answer: str | None = None
    start: int | None = None
    asked_for: str | None = None

    @property
    def uid(self) -> str:
        """The identifier of the row in the corpus."""
        return f"{self.parent}#{self.copy}"


def questions_of(table: pa.Table) -> list[QuestionRow]:
    """The rows of a table with the columns of `QUESTION_SCHEMA`; missing columns are read as null."""
    names = [name for name in QUESTION_SCHEMA.names if name != "label"]  # in the order of the fields
    columns = [
        table[name].to_pylist() if name in table.column_names else [None] * len(table) for name in names
    ]
    return [QuestionRow(*values) for values in zip(*columns, strict=True)]


def question_table(rows: Sequence[QuestionRow]) -> pa.Table:
    """Build the table of some rows."""
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
