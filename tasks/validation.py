"""What is wrong with raw rows, found once for `mtkd data check` and for every run that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.raw_table import Level, RawTable
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one split.

    Attributes:
        place: "file:line" or "file, row number".
        column: the column it is in; None where a whole line or file is meant.
        level: an "error" stops training, a "warning" does not.
    """

    place: str
    column: str | None
    message: str
    level: Level = "error"

    def __str__(self) -> str:
        column = f"column {self.column!r}: " if self.column else ""
        return f"{self.place}: {column}{self.message}"


def find_problems(task: Task, split: str, sheet: RawTable) -> tuple[list[Problem], ParsedLabels | None]:
    """Every problem of one split (unreadable lines, null or empty texts, wrong labels), and its labels.

    Args:
        sheet: rows that have the task's columns (`tasks.sources` sees to it).

    Returns:
        Line problems first, then row by row; the labels are None if the split is empty.
    """
    lines = [Problem(f"{sheet.path}:{bad.line}", None, bad.message, bad.level) for bad in sheet.bad_lines]
    if sheet.table.num_rows == 0:
        return [*lines, Problem(sheet.path, None, "the split is empty")], None
    labels = task.type.read_labels(task, split, sheet)
    found = [*_text_problems(task, sheet), *_label_problems(labels, sheet)]
    found.sort(key=lambda item: item[0])
    return lines + [problem for _, problem in found], labels


def _text_problems(task: Task, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    for name in task.columns:
        texts = sheet.table[name].combine_chunks()
        for row in _where(pc.is_null(texts)):
            yield row, Problem(sheet.place(row), name, "null instead of text")
        for row in _where(pc.equal(pc.utf8_trim_whitespace(texts), "")):
            yield row, Problem(sheet.place(row), name, "empty text", "warning")


def _where(mask: pa.Array) -> list[int]:
    """The row numbers at which a boolean column is true (null counts as false)."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()


def _label_problems(labels: ParsedLabels, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    for found in labels.problems:
        yield found.row, Problem(sheet.place(found.row), found.column, found.message)
