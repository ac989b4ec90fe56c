"""Rows of a text file, collected into tables of a limited size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.data.raw_table import RawTable, UnreadableLine, make_table
from tasks.data.text_lines import display_name


class CollectedRows:
    """Rows of a file that become a table of at most `size` rows."""

    def __init__(self, path: Path, size: int | None):
        self.path, self.size = display_name(path), size
        self.names: list[str] | None = None
        self.bad: list[UnreadableLine] = []
        self.tables = 0
        self._rows: list[Sequence[Any]] = []
        self._lines: list[int] = []
        self._has_answers = False  # whether a row so far had a list of answers

    def add(self, row: Sequence[Any], line: int) -> bool:
        """Add a row; returns True if the table is full."""
        self._rows.append(row)
        self._lines.append(line)
        return len(self._rows) == self.size

    def table(self) -> RawTable:
        """The table of the rows so far, which are then dropped."""
        width = len(self.names or [])
        if any(len(row) < width for row in self._rows):
            self._rows = [[*row, *[None] * (width - len(row))] for row in self._rows]
        table = make_table(self.path, self.names or [], self._rows_of_table(), self._lines, self.bad)
        if self.size is not None:
            table = replace(table, rows=self._rows)
        self._rows = []
        self._lines = []
        self.bad[:] = []
        self.tables += 1
        return table

    def _rows_of_table(self) -> list[Sequence[Any]]:
        """The rows; lists of answers, as in SQuAD's releases, become two lists, of texts and of starts."""
        if "answers" not in (self.names or []):
            return self._rows
        column = (self.names or []).index("answers")
        self._has_answers |= any(row[column] and _is_answers(row[column]) for row in self._rows)
        if not self._has_answers:
            return self._rows
        return [
            [*row[:column], answers_as_lists(row[column]), *row[column + 1 :]]
            if _is_answers(row[column])
            else row
            for row in self._rows
        ]

    def rest(self) -> Iterator[RawTable]:
        """The table of the last rows; an empty one only if the file has no rows at all."""
        if self._rows or self.bad or not self.tables:
            yield self.table()


def _is_answers(value: Any) -> bool:
    """True for a list of answers {"text": ..., "answer_start": ...}, which may be empty."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and {"text", "answer_start"} <= part.keys() for part in value
    )


def answers_as_lists(answers: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list of answers as two lists, of texts and of starts."""
    return {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
