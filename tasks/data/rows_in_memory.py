"""Reading rows to predict or texts to encode from memory, with a warning about empty texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.data.blank_texts import count_blank, warn_of_blank
from tasks.data.loading import unlabelled_rows_or_none
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.tables import as_table, is_frame, without_missing
from tasks.task import Task

_TEXTS = Task("texts", "regress", ("text",))  # the type does not matter: no labels are read


def rows_to_predict(task: Task, rows: Any) -> Rows | None:
    """Read rows in memory, without their labels; None if there are no rows.

    Missing values of a DataFrame or Series are read as empty texts, as in a CSV file.
    """
    if isinstance(rows, str):
        raise UserError("`rows` cannot be a str", expected="a list of rows", hint="for one row: `[text]`")
    if (plain := _plain_rows(task, rows)) is not None:
        return plain
    found = _rows_in_memory(task, rows, "rows")
    if found is not None:
        warn_of_blank(count_blank(found))
    return found


def texts_to_encode(texts: Any) -> Rows | None:
    """Read single texts in memory as rows; None if there are none. Missing values are read as empty texts."""
    if isinstance(texts, str):
        raise UserError("`texts` cannot be a str", expected="a list of texts", hint="for one text: `[text]`")
    plain = _plain_rows(_TEXTS, texts)
    return _rows_in_memory(_TEXTS, texts, "texts") if plain is None else plain


def _plain_rows(task: Task, rows: Any) -> Rows | None:
    """The rows of a list that needs no further check; None for anything else.

    Each row must have one non-blank str per text column. `_rows_in_memory` gives the same rows, but makes and
    validates a table for them, which takes longer than many models take for a row.
    """
    if type(rows) is not list or not rows or task.kind not in ("classify", "regress", "multilabel"):
        return None
    if task.group is not None or task.soft_labels is not None:
        return None
    width = len(task.columns)
    texts: list[list[str]] = [[] for _ in range(width)]
    for row in rows:
        values = (row,) if type(row) is str else row
        if type(values) not in (tuple, list) or len(values) != width:
            return None
        for column, value in zip(texts, values, strict=True):
            if type(value) is not str or not value.strip():
                return None
            column.append(value)
    try:
        columns = tuple(pa.array(column, pa.string()) for column in texts)
    except (UnicodeEncodeError, pa.ArrowException):  # a lone surrogate, or too much text for an array
        return None
    if not all(isinstance(column, pa.StringArray) for column in columns):  # in chunks, since they are large
        return None
    shape = (len(rows), len(task.labels)) if task.kind == "multilabel" else (len(rows),)
    # with a type, since pyarrow looks for dateutil each time that it infers one
    uids = pa.array([f"{task.name}/in/{number}" for number in range(len(rows))], pa.string())
    return Rows(task.name, "in", uids, columns, np.full(shape, np.nan))


def _rows_in_memory(task: Task, rows: Any, what: str) -> Rows | None:
    table = as_table(without_missing(rows, task.columns), task.columns, f"the {what}")
    if not table.num_rows:
        if not is_frame(rows) or not len(rows.columns):
            return None
        # The types of columns without values do not matter, only their names.
        table = pa.table({name: pa.array([], pa.string()) for name in table.column_names})
    raw = RawTable(table, what)
    if task is _TEXTS:
        return unlabelled_rows_or_none(task, raw, "pass the values of one of them")
    return unlabelled_rows_or_none(task, raw)
