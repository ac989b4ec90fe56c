"""Guessing a task from a table of labelled rows: its text columns, its label column, its type and labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, shorten, unknown
from tasks.data.class_names import class_names
from tasks.guess_label_column import RARE, USUAL_LABELS, USUAL_TEXTS, label_columns
from tasks.guess_labels import (
    MINUS_ONE,
    SCORES,
    Location,
    as_numbers,
    check_label_kind,
    is_minus_one,
    is_text_column,
    label_kind,
    ordered_labels,
    plain_values,
    readable_columns,
    row_labels,
    score_range,
)
from tasks.task_types import task_type, task_type_names
from tasks.task_types.labels import label_texts

GUESSED_TYPES = ("classify", "regress", "multilabel", "span")
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question", "context"),
    ("question", "passage"),
    ("question", "paragraph"),
    ("question", "sentence"),
    ("query", "passage"),
)


@dataclass(frozen=True)
class Guess:
    """What a table seems to hold.

    Attributes:
        kind: the task type: classify, regress, multilabel or span.
        columns: one or two text columns.
        label: the label column.
        labels: the names of the labels, in the order of their ids; empty for regress and span.
        range: lowest and highest score (regress).
        unanswerable: True if rows have no answer (span).
        others: text columns that were not chosen.
        other_labels: other columns that could be the label; empty if its name says that it is.
    """

    kind: str
    columns: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unanswerable: bool = False
    others: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()


def guess_task(
    table: pa.Table,
    what: str,
    *,
    columns: Sequence[str] = (),
    label: str | None = None,
    kind: str | None = None,
    location: Location | None = None,
    least_labels: int = 2,
) -> Guess:
    """Guess a task from its labelled rows; what is given is not guessed.

    Args:
        what: the name of the table in messages.
        location: the number of a row -> where it is, for messages; by default its number in the table.
        least_labels: the number of labels that a task of classes needs.

    Raises:
        UserError: the table has no rows or one column, no column looks like texts or labels, there are
            more than 1,000 labels or scores that are not numbers, or something that is given does not fit.
    """
    location = location or (lambda row: f"{what}, row {row}")
    usual = [name for name in table.column_names if name.lower() in (*USUAL_LABELS, *SCORES)]
    table = readable_columns(table, [*columns, *usual, label])
    _check_given(table, what, columns, label, kind)
    other_labels: list[str] = []
    if label is None:
        label, *other_labels = label_columns(table, columns, what)
        _refuse_row_as_names(label, table[label], what)
    if kind is None:
        kind = label_kind(table[label], label, what, location)
    else:
        check_label_kind(table[label].type, label, kind, what)
    texts, others = (list(columns), []) if columns else _text_columns(table, label, kind, what)
    other_labels = [name for name in other_labels if name not in texts]
    guess = Guess(kind, tuple(texts), label, others=tuple(others), other_labels=tuple(other_labels))
    if kind == "regress":
        return replace(guess, range=score_range(table[label], label, what, location))
    if "labels" in task_type(kind).fields:
        values = set(itertools.chain.from_iterable(row_labels(table[label], kind)))
        names = class_names(table.schema).get(label) or ordered_labels(values)
        if len(names) < least_labels:
            numbers = kind == "classify" and any(map(is_minus_one, label_texts(table[label]).to_pylist()))
            values_found = f"one value, {names[0]!r}" if names else "no values"
            raise UserError(
                f"the label column {label!r} of {what} has {values_found}",
                expected="two labels or more",
                hint="name another column with `label='COLUMN'`, add rows with other labels, or give a "
                "`teacher` that predicts them" + (f"; for the label -1: {MINUS_ONE}" if numbers else ""),
            )
        return replace(guess, labels=tuple(names))
    return replace(guess, unanswerable=any(not value["text"] for value in table[label].to_pylist() if value))


def _check_given(
    table: pa.Table, what: str, columns: Sequence[str], label: str | None, kind: str | None
) -> None:
    """Check that a table can hold a task, and that the columns and the task type that are given exist."""
    if not table.num_rows or not table.num_columns:
        raise UserError(f"{what} has no rows", expected="labelled rows")
    if table.num_columns == 1:
        raise UserError(
            f"{what} has one column, {table.column_names[0]!r}",
            expected="a text column and a label column",
            hint="label some rows first (docs/unlabelled.md#how-many-labelled-rows); texts alone can be "
            "added to them with `unlabelled=['FILE']`",
        )
    for name in [*columns, *([] if label is None else [label])]:
        if name not in table.column_names:
            raise unknown(f"column of {what}:", name, table.column_names)
    if kind in task_type_names() and kind not in GUESSED_TYPES:
        raise UserError(
            f"a task of the type {kind!r} cannot be guessed from its rows",
            expected=", ".join(GUESSED_TYPES),
            hint="write its task file by hand: docs/add-a-task.md describes the format",
        )
    if kind is not None and kind not in GUESSED_TYPES:
        raise unknown("task type", kind, GUESSED_TYPES)


def _refuse_row_as_names(label: str, column: pa.ChunkedArray, what: str) -> None:
    """Raise UserError if the name of the label column looks like a label."""
    values = [] if pa.types.is_nested(column.type) else plain_values(column)
    if label in values or (as_numbers([label]) is not None and as_numbers(values) is not None):
        raise UserError(
            f"the first line of {what} looks like a row, not like column names: {label!r} is a label",
            expected="column names in the first line",
            hint="add such a line, or name the label column with `label='COLUMN'`",
        )


def _text_columns(table: pa.Table, label: str, kind: str, what: str) -> tuple[list[str], list[str]]:
    """The text columns of the task, and other columns of texts."""
    names = [name for name in table.column_names if name != label and is_text_column(table[name].type)]
    lower = {name.lower(): name for name in names}
    prose = [name for name in names if _is_prose(table[name])]
    for pair in _PAIRS:
        if all(name in lower for name in pair):
            chosen = [lower[name] for name in pair]
            return chosen, [name for name in prose if name not in chosen]
    by_length = sorted(prose or names, key=lambda name: _length(table[name]))
    usual = [lower[name] for name in USUAL_TEXTS if lower.get(name) in (prose or names)]
    if kind == "span" and len(by_length) > 1:
        chosen = by_length[-2:]
    elif len(prose) in (1, 2):
        chosen = prose
    elif by_length:
        chosen = usual[:1] or by_length[-1:]
    else:
        raise UserError(
            f"no column of {what} looks like text",
            expected="a column of texts; the columns are " + shorten(table.column_names),
            hint="name it with `columns=['COLUMN']`",
        )
    return chosen, [name for name in prose if name not in chosen]


def _is_prose(column: pa.ChunkedArray) -> bool:
    """True if most values have several words and values rarely repeat."""
    values = column.drop_null()
    several = pc.sum(pc.match_substring(values, " ")).as_py() or 0
    return several > len(values) / 2 and len(pc.unique(values)) > RARE * len(values)


def _length(column: pa.ChunkedArray) -> float:
    mean: Any = pc.mean(pc.utf8_length(column.drop_null())).as_py()
    return mean or 0.0
