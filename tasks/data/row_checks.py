"""Validation of raw rows, shared by `mtkd data check` and every run that reads data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.data.raw_table import Level, RawTable
from tasks.data.soft_labels import contradicted_labels, read_soft_labels
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels

NULL_TEXT = "null instead of text"
_EXAMPLES = 3  # rows that are printed if many have the same problem


@dataclass(frozen=True)
class Problem:
    """One problem of one split.

    Attributes:
        place: "file:line" or "file, row number".
        column: the affected column; None for a whole line or file.
        level: an "error" prevents training, a "warning" does not.
        kind: groups rows with the same problem in summaries; "" stands for the message itself.
        path: the file; problems are counted per file.
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


class ProblemSummary:
    """A summary of problems as lines to print, which does not keep all problems.

    More than three problems of the same kind in one column of one file become one line with their number,
    followed by the first three. Lines are in the order of their first problem.
    """

    def __init__(self, problems: Iterable[Problem] = ()):
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._examples: dict[tuple[str, ...], list[Problem]] = {}
        for problem in problems:
            kind = problem.kind or problem.message
            self._add(
                (problem.level, problem.path or problem.place, problem.column or "", kind), 1, [problem]
            )

    @property
    def total(self) -> int:
        """The number of problems."""
        return self._counts.total()

    def merge(self, later: ProblemSummary) -> None:
        """Add the problems of rows that come after those of this summary."""
        for key, examples in later._examples.items():
            self._add(key, later._counts[key], examples)

    def _add(self, key: tuple[str, ...], count: int, examples: Iterable[Problem]) -> None:
        self._counts[key] += count
        shown = self._examples.setdefault(key, [])
        shown += list(examples)[: _EXAMPLES - len(shown)]

    def lines(self) -> list[tuple[Level, str]]:
        """The lines, each with its level."""
        lines: list[tuple[Level, str]] = []
        for group, examples in self._examples.items():
            level, (_, path, column, kind) = examples[0].level, group
            if self._counts[group] <= _EXAMPLES:
                lines += [(level, str(problem)) for problem in examples]
                continue
            location = f"{path}: column {column!r}" if column else path
            lines.append((level, f"{location}: {kind}: {self._counts[group]:,} rows, the first are:"))
            lines += [(level, f"  {problem}") for problem in examples]
        return lines


def summarise(problems: Iterable[Problem]) -> list[tuple[Level, str]]:
    """Summarise problems as lines to print, each with its level; see `ProblemSummary`."""
    return ProblemSummary(problems).lines()


def find_problems(task: Task, split: str, raw: RawTable) -> tuple[list[Problem], ParsedLabels | None]:
    """Find all problems of one split, such as unreadable lines, null texts and invalid labels.

    Args:
        raw: rows with the task's columns, as returned by `DataSource.raw_table`.

    Returns:
        Problems of lines and of the whole table, then of rows in order; and the labels, None if the split is
        empty.
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
    if raw.table.num_rows == 0 and any(line.level == "error" for line in lines):
        return lines, None
    if raw.table.num_rows == 0:
        return [*lines, Problem(raw.path, None, "there are no rows")], None
    labels = task.type.read_labels(task, split, raw)
    if task.has_soft_labels(split):
        soft = read_soft_labels(task, raw)
        if wrong_order := contradicted_labels(task, soft, labels.values):
            lines.append(Problem(raw.path, task.soft_labels, wrong_order))
        problems = [*labels.problems, *soft.problems]
        labels = replace(labels, soft=soft.logits, soft_kind=soft.kind, problems=problems)
    row_problems = [*_text_problems(task, raw), *_label_problems(labels, raw)]
    row_problems.sort(key=lambda item: item[0])
    return lines + [problem for _, problem in row_problems], labels


def is_blank(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """True for texts without a visible character; null for null."""
    return pc.equal(pc.utf8_trim_whitespace(texts.cast(pa.large_string())), "")


def _text_problems(task: Task, raw: RawTable) -> Iterator[tuple[int, Problem]]:
    for name in task.columns:
        texts = raw.table[name].combine_chunks()
        for row in _where(pc.is_null(texts)):
            yield row, _row_problem(raw, row, name, NULL_TEXT)
        for row in _where(is_blank(texts)):
            yield row, _row_problem(raw, row, name, "empty text", level="warning")


def _row_problem(
    raw: RawTable, row: int, column: str, message: str, kind: str = "", level: Level = "error"
) -> Problem:
    return Problem(raw.location(row), column, message, level, kind, raw.path)


def _where(mask: pa.Array) -> list[int]:
    """The row numbers where a boolean column is true; null counts as false."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()


def _label_problems(labels: ParsedLabels, raw: RawTable) -> Iterator[tuple[int, Problem]]:
    for problem in labels.problems:
        yield problem.row, _row_problem(raw, problem.row, problem.column, problem.message, problem.kind)
