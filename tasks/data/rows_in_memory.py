"""Reading rows to predict or texts to encode from memory, with a warning about empty texts."""

from __future__ import annotations

from typing import Any

from tasks.checks.blank_texts import count_blank, warn_of_blank
from tasks.common.errors import UserError
from tasks.data.loading import unlabelled_rows
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.tables import as_table, without_missing
from tasks.task import Task

_TEXTS = Task("texts", "regress", ("text",))  # the type does not matter: no labels are read


def rows_to_predict(task: Task, rows: Any) -> Rows | None:
    """Read rows in memory, without their labels; None if there are no rows.

    Missing values of a DataFrame or Series are read as empty texts, as in a CSV file.
    """
    if isinstance(rows, str):
        raise UserError("`rows` cannot be a str", expected="a list of rows", hint="for one row: `[text]`")
    found = _rows_in_memory(task, rows, "rows")
    if found is not None:
        warn_of_blank(count_blank(found))
    return found


def texts_to_encode(texts: Any) -> Rows | None:
    """Read single texts in memory as rows; None if there are none. Missing values are read as empty texts."""
    if isinstance(texts, str):
        raise UserError("`texts` cannot be a str", expected="a list of texts", hint="for one text: `[text]`")
    return _rows_in_memory(_TEXTS, texts, "texts")


def _rows_in_memory(task: Task, rows: Any, what: str) -> Rows | None:
    table = as_table(without_missing(rows, task.columns), task.columns, f"the {what}")
    return unlabelled_rows(task, RawTable(table, what)) if table.num_rows else None
