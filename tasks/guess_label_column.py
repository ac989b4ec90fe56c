"""Guessing which column of a table holds the labels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, shorten
from tasks.guess_labels import MAX_LABELS, SCORES
from tasks.task_types.labels import label_texts, means_unlabelled

USUAL_LABELS = (
    *("label", "labels", "target", "class", "category", "intent", "sentiment", "topic"),
    *("tags", "answers"),
)
USUAL_TEXTS = ("text", "sentence", "content", "review", "body", "message", "utterance", "tweet", "comment")
RARE = 0.05  # texts with fewer different values per row are taken for a category
_WORD = re.compile(r"[a-z]+")
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # "createdAt" and "created_at" have the same two
_NO_LABELS = ("id", "ids", "uuid", "guid", "url", "date", "datetime", "timestamp", "at")
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_TIME = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([T ].*)?)?"  # 2024-05-31, 2024-05-31T10:00:00Z, 2024-05
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?"  # 31.05.2024
    rf"|(\w+,? )?\d{{1,2}}[ -]{_MONTH}[ -]\d{{2,4}}( .*)?|{_MONTH} \d{{1,2}},? \d{{4}}( .*)?"  # 31 May 2024
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[ap]m)?"  # 10:00
    r"|1\d{9}(\.\d+)?|1\d{12}",  # seconds or milliseconds since 1970
    re.IGNORECASE,
)
_LONG = 6  # words: most values of a column of free text have as many
_FEW = 20  # different values that may have two rows each; more values must have `_ROWS_PER_VALUE`
_ROWS_PER_VALUE = 5


def label_columns(table: pa.Table, columns: Sequence[str], what: str) -> list[str]:
    """The columns that may hold the labels, the most likely one first.

    If a column has one of the usual names of label columns, it is the only one. Otherwise these are the
    columns with few different values that are not dates, ids or free text. More likely are columns whose
    name contains a usual name, then those with fewer missing values, then those with fewer different values.

    Args:
        columns: the text columns that the user gave.
        what: the name of the table in messages.

    Raises:
        UserError: there are too few rows, or no column looks like labels.
    """
    names = {name.lower(): name for name in table.column_names if name not in columns}
    for name in (*USUAL_LABELS, *SCORES):
        if name in names:
            return [names[name]]
    plain = [name for name in names.values() if not pa.types.is_nested(table[name].type)]
    texts = {name: label_texts(table[name], f"the column {name!r} of {what}") for name in plain}
    different = {name: pc.unique(values) for name, values in texts.items()}
    most_values = min(MAX_LABELS, table.num_rows // 2)
    if most_values < 2:
        raise UserError(
            f"{what} has too few rows to guess the label column from: {table.num_rows}",
            expected="4 rows or more",
            hint=f"name it with `label='COLUMN'`; the columns are {shorten(table.column_names)}",
        )
    fitting = {
        name: len(values)
        for name, values in different.items()
        if 2 <= len(values) <= most_values
        and (_has_usual_word(name) or len(values) <= max(_FEW, table.num_rows // _ROWS_PER_VALUE))
        and _is_plausible(name, table[name].type, values, table.num_rows)
    }
    if not fitting:
        raise UserError(
            f"no column of {what} looks like labels: the columns are {shorten(table.column_names)}",
            expected=f"a column with 2 to {most_values:,} different values, not dates, ids or free text",
            hint="name the column of labels with `label='COLUMN'`; if there is none, label some rows first: "
            "models are validated on labelled rows (docs/unlabelled.md#how-many-labelled-rows)",
        )

    def unlikely(name: str) -> tuple[bool, int, int]:
        return not _has_usual_word(name), int(means_unlabelled(texts[name]).sum()), fitting[name]

    return sorted(fitting, key=unlikely)


def _has_usual_word(name: str) -> bool:
    """True if the name of a column contains a usual name of label columns."""
    return bool(set(_WORD.findall(name.lower())) & {*USUAL_LABELS, *SCORES})


def _is_plausible(name: str, kind: pa.DataType, values: pa.Array, rows: int) -> bool:
    """False for a column of dates, ids or free text.

    Args:
        values: its different values, as text.
        rows: the number of rows of the table.
    """
    parts = [part.lower() for part in _NAME_PART.findall(name)]
    is_no_label = name.lower() in USUAL_TEXTS or (bool(parts) and parts[-1] in _NO_LABELS)
    if is_no_label and not _has_usual_word(name):
        return False
    present = [text.strip() for text in values.filter(pa.array(~means_unlabelled(values))).to_pylist()]
    if pa.types.is_temporal(kind) or (present and all(map(_TIME.fullmatch, present))):
        return False
    long = sum(len(text.split()) >= _LONG for text in present)
    return long <= len(present) / 2 or len(present) <= RARE * rows
