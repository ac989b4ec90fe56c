"""Parsing label columns into numbers: functions that task types share."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, brief, did_you_mean, reason_of, shorten
from tasks.data.raw_table import RawTable
from tasks.data.rows import has_label
from tasks.task import Task

# Kinds of invalid labels (`RowProblem.kind`).
UNKNOWN_LABEL = "unknown label"
NOT_A_NUMBER = "not a number"
OUT_OF_RANGE = "out of range"
_MISSING = ("", "-1", "-1.0", "nan")
_FEW = 8  # labels that are listed in their order


@dataclass(frozen=True)
class RowProblem:
    """A problem of one row (counted from 0) in one column; `kind` groups problems in summaries."""

    row: int
    column: str
    message: str
    kind: str = ""


@dataclass(frozen=True, eq=False)
class ParsedLabels:
    """The labels of one split.

    Attributes:
        values: (n,) or (n, K) float64; NaN = unlabelled or invalid.
        problems: all problems of the labels and related columns.
        answers: n structs {text, answer_start} of lists, for `span` tasks without problems.
        soft: (n, C) float64, the soft labels as logits, if the split has any (`tasks.data.soft_labels`).
        soft_kind: what they were read as: probabilities, logits or scores.
    """

    values: np.ndarray
    problems: list[RowProblem]
    answers: pa.StructArray | None = None
    soft: np.ndarray | None = None
    soft_kind: str | None = None

    def counts(self, task: Task, by_label: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """`by_label`, followed by the number of unlabelled rows if there are any."""
        labelled = has_label(self.values)
        wrong = len({problem.row for problem in self.problems if problem.column == task.label})
        unlabelled = len(labelled) - int(labelled.sum()) - wrong
        return [*by_label, *([("unlabelled", unlabelled)] if unlabelled else [])]


def split_label_list(text: str, labels: Collection[str] = ()) -> list[str]:
    """The labels in a text that lists them: as JSON, or "|"-separated (comma-separated if there is no "|").

    Args:
        labels: the known labels; a text that is one of them is not split.
    """
    text = text.strip()
    if text in labels:
        return [text]
    if text.startswith("["):
        try:
            return [str(label).strip() for label in json.loads(text)]
        except (ValueError, RecursionError):
            return [text]
    return [label.strip() for label in text.split("|" if "|" in text else ",")]


def read_values(
    task: Task,
    split: str,
    table: RawTable,
    values: np.ndarray,
    expected: Callable[[str], str],
    kind_of: Callable[[str], str] = lambda text: UNKNOWN_LABEL,
) -> ParsedLabels:
    """Labels of one number per row, with a problem for each label that could not be parsed.

    A label that is null, empty, NaN, or -1 (unless -1 is a legal value) means "unlabelled"; only some splits
    may have such rows (`Task.may_be_unlabelled`).

    Args:
        values: (n,) float64 of the column; NaN for values that are not labels of the task.
        expected: invalid label -> description of what was expected.
        kind_of: invalid label -> the kind of its problem.
    """
    texts = task_labels(task, table)
    wrong = np.isnan(values)
    if task.may_be_unlabelled(split):
        wrong &= ~means_unlabelled(texts)
    problems = []
    for row in np.flatnonzero(wrong).tolist():
        value = texts[row].as_py()
        problem, kind = (
            ("no label", "no label")
            if not (value or "").strip()
            else (f"label {brief(value)}{did_you_mean(value, task.labels)}", kind_of(value))
        )
        problems.append(RowProblem(row, task.label, f"{problem}; expected: {expected(value or '')}", kind))
    return ParsedLabels(values, problems)


def means_unlabelled(texts: pa.Array) -> np.ndarray:
    """(n,) bool, True for label texts that mean "unlabelled", such as blank ones."""
    is_missing = pc.is_in(texts, value_set=pa.array([None, *_MISSING], type=pa.string()))
    is_missing = pc.or_(is_missing, pc.equal(pc.utf8_trim_whitespace(texts), "").fill_null(True))
    return is_missing.to_numpy(zero_copy_only=False)


def label_texts(column: pa.ChunkedArray, name: str = "the column of labels") -> pa.Array:
    """All labels as text: integers without a decimal point, other numbers with all digits.

    Args:
        name: what to call the column in an error.

    Raises:
        UserError: it holds values that are not text, such as lists, bytes or a time zone that does not exist.
    """
    try:
        column.validate(full=True)
        return _as_text(column.combine_chunks())
    except pa.ArrowException as error:
        raise UserError(
            f"{name} holds {column.type}, which cannot be read as labels: {reason_of(error)}",
            expected="texts or numbers",
        ) from error


def task_labels(task: Task, table: RawTable) -> pa.Array:
    """The labels of a task's rows as text; see `label_texts`."""
    return label_texts(table.table[task.label], f"{table.path}: the column {task.label!r}")


def _as_text(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_floating(array.type):
        texts = [None if value is None else _number_text(value) for value in array.to_pylist()]
        return pa.array(texts, type=pa.string())
    return array.cast(pa.string())


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def class_texts(task: Task, table: RawTable) -> pa.Array:
    """`task_labels` of a task of classes; of a column of true and false, the labels called so."""
    column, names = table.table[task.label], bool_labels(task)
    if pa.types.is_boolean(column.type) and names:
        return pc.if_else(column.combine_chunks(), names[True], names[False])
    return task_labels(task, table)


def bool_labels(task: Task) -> dict[bool, str] | None:
    """The labels called true and false, whatever their case; None if the task has other labels."""
    named = {label.strip().casefold(): label for label in task.labels}
    return (
        {value: named[str(value).lower()] for value in (True, False)}
        if {"true", "false"} == set(named)
        else None
    )


def class_ids(task: Task, texts: pa.Array) -> np.ndarray:
    """(n,) float64 class ids; NaN for texts that are neither a label name nor an id.

    Names take precedence over ids: if any label name is a number, ids are not accepted, and a label called
    1.0 may also be written 1, as `label_texts` writes a column of floating-point numbers, and the other way
    round.
    """
    names = list(task.labels)
    if any(map(is_number, names)):
        plain = [_number_text(float(name)) if is_number(name) else name for name in names]
        names += [*plain, *(f"{name}.0" if name.lstrip("-").isdecimal() else name for name in plain)]
    else:
        ids = range(len(task.labels))
        names += [str(number) for number in ids] + [f"{number}.0" for number in ids]
    indices = pc.index_in(texts, value_set=pa.array(names, type=pa.string()))
    return indices.cast(pa.float64()).to_numpy(zero_copy_only=False) % len(task.labels)


def is_number(name: str) -> bool:
    """True for the name of a label that is a finite number."""
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def nearly_equal_labels(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of labels that differ only in upper and lower case or in the spaces around them."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(label.strip().casefold(), label), label) for label in labels]
    return [pair for pair in pairs if pair[0] != pair[1]]


def named_ids(task: Task, text: str = "") -> str:
    """Some labels of a task with their ids, for messages: of many, those most similar to `text` first."""
    ids = {name: f"{name!r} ({number})" for number, name in enumerate(task.labels)}
    if len(ids) <= _FEW:
        return ", ".join(ids.values())
    near = difflib.get_close_matches(text, ids, cutoff=0.5)
    return shorten([ids[name] for name in dict.fromkeys([*near, *ids])])


def label_positions(labels: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """For each label its position in `names`, ignoring case and punctuation; None = it is not there.

    Names that are equal apart from case and punctuation must match exactly.
    """
    plain_names, plain_labels = ([_plain(name) for name in part] for part in (names, labels))
    if len(set(plain_names)) < len(plain_names) or len(set(plain_labels)) < len(plain_labels):
        plain_names, plain_labels = list(names), list(labels)
    positions = {name: position for position, name in enumerate(plain_names)}
    return [positions.get(label) for label in plain_labels]


def _plain(name: str) -> str:
    """A name in lower case, letters and digits only; unchanged if it has none. Numbers keep sign and dot."""
    if is_number(name):
        return _number_text(float(name))
    return "".join(filter(str.isalnum, name.casefold())) or name
