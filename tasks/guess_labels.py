"""Guessing what a label column holds: the task type, the labels and the range of scores."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, counted
from tasks.data.raw_table import TEXT_TYPES, is_list_column
from tasks.task_types.labels import label_texts, means_unlabelled, split_label_list

MAX_LABELS = 1000
SCORES = ("score", "rating", "stars", "similarity")  # usual names of columns of scores
_MAX_CLASS_NUMBERS = 50  # different whole numbers that are taken for classes
FEW_WRONG = 0.05  # the fraction of labels that may be mistakes: words among scores, or numbers among words
_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
MINUS_ONE = "it means no label; if it is a class, call it something else in the file"
Location = Callable[[int], str]  # the number of a row -> where it is, for messages


def readable_columns(table: pa.Table, named: Collection[str | None]) -> pa.Table:
    """The columns that can hold texts or labels, and those that are named.

    Others hold bytes, or what cannot be shown as text, such as times in a time zone that does not exist.
    """
    names = []
    for field in table.schema:
        binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        with contextlib.suppress(UserError):
            if not (
                binary or pa.types.is_nested(field.type) or is_text_column(field.type) or field.name in named
            ):
                label_texts(table[field.name])
            names += [] if binary else [field.name]
    return table.select(names)


def guessed_texts(column: pa.ChunkedArray) -> pa.Array:
    """`label_texts`; if all are numbers, whole numbers without a decimal point, as in a column of numbers."""
    texts = label_texts(column)
    if as_numbers(texts.filter(pa.array(~means_unlabelled(texts))).unique().to_pylist()) is None:
        return texts
    return pc.replace_substring_regex(texts, r"^([+-]?\d+)\.0*$", r"\1")


def without_label(column: pa.ChunkedArray, kind: str) -> pa.Array:
    """True for the rows of a label column that have no label."""
    if pa.types.is_nested(column.type):
        return column.combine_chunks().is_null()
    if kind == "regress":  # -1 may be a score
        return pa.array([_is_no_score(text) for text in guessed_texts(column).to_pylist()])
    return pa.array(means_unlabelled(guessed_texts(column)))


def _is_no_score(text: str | None) -> bool:
    return text is None or text.strip() in ("", "nan")


def is_minus_one(text: str | None) -> bool:
    """True for the number -1, which stands for a missing label in many data sets of classes."""
    return text in ("-1", "-1.0")


def is_text_column(kind: pa.DataType) -> bool:
    """True for a column of text."""
    return kind in TEXT_TYPES


def check_label_kind(column: pa.DataType, label: str, kind: str, what: str) -> None:
    """Check that a label column of this type can hold the labels of a task type.

    Raises:
        UserError: it cannot.
    """
    plain = not pa.types.is_nested(column)
    fits = {"span": _holds_answers(column), "multilabel": plain or is_list_column(column)}
    fits["regress"] = plain and not pa.types.is_boolean(column)
    if not fits.get(kind, plain):
        expected = {
            "span": "a table per row with two lists, text and answer_start",
            "multilabel": "a list of labels per row, or labels separated by |",
        }.get(kind, "one number per row" if kind == "regress" else "one label per row")
        raise UserError(
            f"the label column {label!r} of {what} holds {column}, not the labels of kind {kind}",
            expected=expected,
            hint="name another column with `label='COLUMN'`, or another type with `kind='KIND'`",
        )


def _holds_answers(column: pa.DataType) -> bool:
    return pa.types.is_struct(column) and {"text", "answer_start"} <= {field.name for field in column}


def label_kind(column: pa.ChunkedArray, label: str, what: str, location: Location) -> str:
    """The task type that a label column suggests.

    Raises:
        UserError: it holds what cannot be a label, numbers that cannot be read, or too many labels.
    """
    if pa.types.is_struct(column.type):
        if not _holds_answers(column.type):
            raise UserError(
                f"the label column {label!r} of {what} holds {column.type}, which cannot be a label"
            )
        return "span"
    if pa.types.is_nested(column.type):
        return "multilabel"
    values = plain_values(column)
    distinct = list(dict.fromkeys(values))
    numbers = [number for value in distinct for number in as_numbers([value]) or ()]
    others = {value for value in distinct if as_numbers([value]) is None}
    if not others:
        if _are_scores(numbers, label, len(values)):
            return "regress"
    elif _are_nearly_scores(values, numbers, others, label):
        raise _no_scores(column, label, location)
    elif _holds_lists(distinct):
        return "multilabel"
    if len(distinct) > MAX_LABELS:
        raise UserError(
            f"the label column {label!r} of {what} has {len(distinct):,} different values",
            expected=f"at most {MAX_LABELS:,} labels",
            hint="name another column with `label='COLUMN'`, or say what it holds with `kind='classify'` "
            "or `kind='regress'`",
        )
    return "classify"


def _are_scores(numbers: Sequence[float], label: str, rows: int) -> bool:
    """True if the different numbers of a label column are taken for scores, not for classes."""
    named = label.lower() in SCORES and len(numbers) > 2
    fractions = not all(number.is_integer() for number in numbers)
    return fractions or named or _MAX_CLASS_NUMBERS < len(numbers) < rows / 2


def _are_nearly_scores(
    values: Sequence[str], numbers: Sequence[float], others: Collection[str], label: str
) -> bool:
    """True if a label column would hold scores if decimal commas were points, or without a few values."""
    words = {value for value in others if not _WITH_COMMA.fullmatch(value)}
    few = sum(value in words for value in values) <= FEW_WRONG * len(values)
    return few and (len(words) < len(others) or _are_scores(numbers, label, len(values)))


def plain_values(column: pa.ChunkedArray) -> list[str]:
    """The labels of the labelled rows, as text."""
    texts = guessed_texts(column)
    return [text for text, gone in zip(texts.to_pylist(), means_unlabelled(texts), strict=True) if not gone]


def as_numbers(values: Iterable[str]) -> list[float] | None:
    """The values as finite numbers; None if one is not."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _holds_lists(distinct: Sequence[str]) -> bool:
    """True for texts that are lists of labels: JSON, or parts that occur in several combinations.

    Commas are also found in names of labels; they separate only parts that are fewer than their combinations.
    """
    if all(value.startswith("[") for value in distinct):
        return True
    lists = [split_label_list(value) for value in distinct]
    count = sum(map(len, lists))
    different = len({part for parts in lists for part in parts})
    piped = any("|" in value for value in distinct)
    return count > len(lists) and (different < count if piped else different < len(lists))


def row_labels(column: pa.ChunkedArray, kind: str) -> list[list[str]]:
    """The labels of each row, as a task of this type reads them; none for a row without a label."""
    if pa.types.is_nested(column.type):
        return [[str(part) for part in value or ()] for value in column.to_pylist()]
    texts = guessed_texts(column)
    values = zip(texts.to_pylist(), means_unlabelled(texts), strict=True)
    split = split_label_list if kind == "multilabel" else lambda text: [text]
    return [[] if gone else split(text) for text, gone in values]


def ordered_labels(labels: Iterable[str]) -> list[str]:
    """Numbers by size, other labels by the alphabet."""
    listed = sorted(labels)
    numbers = as_numbers(listed)
    return listed if numbers is None else sorted(listed, key=float)


def score_range(column: pa.ChunkedArray, label: str, what: str, location: Location) -> tuple[float, float]:
    """The whole numbers around the scores.

    Raises:
        UserError: a label is not a number, or all are equal.
    """
    scores = as_numbers(text for text in guessed_texts(column).to_pylist() if not _is_no_score(text))
    if scores is None:
        raise _no_scores(column, label, location)
    if not scores or min(scores) == max(scores):
        raise UserError(
            f"the label column {label!r} of {what} does not hold scores", expected="numbers, not all equal"
        )
    return float(math.floor(min(scores))), float(math.ceil(max(scores)))


def _no_scores(column: pa.ChunkedArray, label: str, location: Location) -> UserError:
    """The error for a column of scores in which some values are not numbers."""
    texts = enumerate(guessed_texts(column).to_pylist())
    wrong = [(row, text) for row, text in texts if not _is_no_score(text) and as_numbers([text]) is None]
    row, text = next((item for item in wrong if _WITH_COMMA.fullmatch(item[1])), wrong[0])
    if _WITH_COMMA.fullmatch(text):
        return UserError(
            f"{location(row)}: the label column {label!r} holds numbers with a comma, such as {text!r}",
            expected="numbers with a decimal point, such as 3.5",
            hint="replace the commas; if they separate labels, say so with `kind='multilabel'`",
        )
    more = f", the first of {counted(len(wrong), 'such label')}" if len(wrong) > 1 else ""
    return UserError(
        f"{location(row)}: the label {text!r} in the column {label!r} is not a number{more}",
        expected="scores: finite numbers",
        hint="correct the cell, or leave it empty if there is no score; if the column holds classes, say so "
        "with `kind='classify'`",
    )
