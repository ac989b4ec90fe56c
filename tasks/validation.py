"""What is wrong with raw rows, found once for `mtkd data check` and for every run that reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.raw_table import Level, RawTable
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels

_EXAMPLES = 3  # rows that are named where many have the same problem


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one split.

    Attributes:
        place: "file:line" or "file, row number".
        column: the column it is in; None where a whole line or file is meant.
        level: an "error" stops training, a "warning" does not.
        kind: what the rows with the same problem have in common; the message itself where it is "".
        path: the file, so that the rows of one file can be counted together.
    """

    place: str
    column: str | None
    message: str
    level: Level = "error"
    kind: str = ""
    path: str = ""

    def __str__(self) -> str:
        column = f"column {self.column!r}: " if self.column else ""
        return f"{self.place}: {column}{self.message}"


def summarise(problems: Iterable[Problem]) -> list[tuple[Level, str]]:
    """Problems as lines to print, each with its level: one for each problem, or one for many of a kind.

    More than three problems of one kind in one column of one file become a single line with their number and
    the first three. Lines are in the order of their first problem.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        kind = problem.kind or problem.message
        key = (problem.level, problem.path or problem.place, problem.column or "", kind)
        groups.setdefault(key, []).append(problem)
    lines: list[tuple[Level, str]] = []
    for (_, path, column, kind), found in groups.items():
        level = found[0].level
        if len(found) <= _EXAMPLES:
            lines += [(level, str(problem)) for problem in found]
            continue
        where = f"{path}: column {column!r}" if column else path
        lines.append((level, f"{where}: {kind}: {len(found):,} rows, the first of them:"))
        lines += [(level, f"  {problem}") for problem in found[:_EXAMPLES]]
    return lines


def find_problems(task: Task, split: str, raw: RawTable) -> tuple[list[Problem], ParsedLabels | None]:
    """Every problem of one split (unreadable lines, null or empty texts, wrong labels), and its labels.

    Args:
        sheet: rows that have the task's columns (`tasks.sources` sees to it).

    Returns:
        Line problems first, then row by row; the labels are None if the split is empty.
    """
    lines = [
        Problem(
            f"{raw.path}:{bad.line}",
            None,
            bad.message,
            bad.level,
            kind=bad.message.partition(":")[0],
            path=raw.path,
        )
        for bad in raw.bad_lines
    ]
    if raw.table.num_rows == 0:
        return [*lines, Problem(raw.path, None, "the split is empty")], None
    labels = task.type.read_labels(task, split, raw)
    found = [*_text_problems(task, raw), *_label_problems(labels, raw)]
    found.sort(key=lambda item: item[0])
    return lines + [problem for _, problem in found], labels


def _text_problems(task: Task, raw: RawTable) -> Iterator[tuple[int, Problem]]:
    for name in task.columns:
        texts = raw.table[name].combine_chunks()
        for row in _where(pc.is_null(texts)):
            yield row, _row_problem(raw, row, name, "null instead of text")
        for row in _where(pc.equal(pc.utf8_trim_whitespace(texts), "")):
            yield row, _row_problem(raw, row, name, "empty text", level="warning")


def _row_problem(
    raw: RawTable, row: int, column: str, message: str, kind: str = "", level: Level = "error"
) -> Problem:
    return Problem(raw.location(row), column, message, level, kind, raw.path)


def _where(mask: pa.Array) -> list[int]:
    """The row numbers at which a boolean column is true (null counts as false)."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()


def _label_problems(labels: ParsedLabels, raw: RawTable) -> Iterator[tuple[int, Problem]]:
    for found in labels.problems:
        yield found.row, _row_problem(raw, found.row, found.column, found.message, found.kind)
