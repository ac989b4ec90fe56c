"""Label columns as numbers: what task types share when they read labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import shorten
from tasks.raw_table import RawTable
from tasks.rows import has_label
from tasks.task import Task

_MISSING = ("", "-1", "-1.0", "nan")


@dataclass(frozen=True)
class RowProblem:
    """What is wrong with one row (from 0), the column it is in, and the kind of problem, for summaries."""

    row: int
    column: str
    message: str
    kind: str = ""


@dataclass(frozen=True, eq=False)
class ParsedLabels:
    """The labels of one split.

    Attributes:
        values: (n,) or (n, K) float64; NaN = unlabelled or wrong.
        problems: everything that is wrong with the labels and the columns that belong to them.
        answers: n structs {text, answer_start} of lists (tasks that predict spans, none of them wrong).
    """

    values: np.ndarray
    problems: list[RowProblem]
    answers: pa.StructArray | None = None

    def counts(self, task: Task, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """`found`, and the number of rows that may and do lack a label, if there are any."""
        known = has_label(self.values)
        wrong = len({problem.row for problem in self.problems if problem.column == task.label})
        unlabelled = len(known) - int(known.sum()) - wrong
        return [*found, *([("unlabelled", unlabelled)] if unlabelled else [])]


def read_values(
    task: Task, split: str, table: RawTable, values: np.ndarray, expected: Callable[[str], str]
) -> ParsedLabels:
    """Labels of one number per row, with a problem for each that could not be read.

    A label that is null, empty, NaN, or -1 where that is not a legal value, means "unlabelled"; only test
    splits may have such rows.

    Args:
        values: (n,) float64 of the column; NaN where it holds no label of the task.
        expected: what to say was expected instead of a label.
    """
    texts = label_texts(table.table[task.label])
    wrong = np.isnan(values)
    if split in task.test:
        wrong &= ~missing(texts)
    problems = []
    for row in np.flatnonzero(wrong).tolist():
        value = texts[row].as_py()
        given, kind = ("no label", "no label") if value in (None, "") else (f"label {value}", "unknown label")
        problems.append(RowProblem(row, task.label, f"{given}; expected: {expected(value or '')}", kind))
    return ParsedLabels(values, problems)


def missing(texts: pa.Array) -> np.ndarray:
    """(n,) bool: which label texts stand for "unlabelled"."""
    found = pc.is_in(texts, value_set=pa.array([None, *_MISSING], type=pa.string()))
    return found.to_numpy(zero_copy_only=False)


def label_texts(column: pa.ChunkedArray) -> pa.Array:
    """Every label as text: whole numbers without a point, others with every digit."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_floating(array.type):
        numbers = array.to_pylist()
        texts = [None if v is None else str(int(v)) if v.is_integer() else repr(v) for v in numbers]
        return pa.array(texts, type=pa.string())
    return array.cast(pa.string())


def class_ids(task: Task, texts: pa.Array) -> np.ndarray:
    """(n,) float64 class ids; NaN where the text is neither a label's name nor its id.

    A label name comes before an id: where a name is itself a number, ids are not understood.
    """
    known = list(task.labels)
    if not any(name.lstrip("-").isdigit() for name in known):
        ids = range(len(task.labels))
        known += [str(number) for number in ids] + [f"{number}.0" for number in ids]
    found = pc.index_in(texts, value_set=pa.array(known, type=pa.string()))
    return found.cast(pa.float64()).to_numpy(zero_copy_only=False) % len(task.labels)


def named_ids(task: Task, given: str = "") -> str:
    """Some labels of a task with their ids, for messages; those most like `given` first."""
    ids = {name: f"{number} ({name})" for number, name in enumerate(task.labels)}
    near = difflib.get_close_matches(given, ids, cutoff=0.5)
    return shorten([ids[name] for name in dict.fromkeys([*near, *ids])])
