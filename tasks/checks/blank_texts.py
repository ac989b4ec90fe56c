"""Rows to predict, and a warning about those whose texts are empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.checks.row_checks import is_blank
from tasks.common.errors import counted, warn_caller
from tasks.data.loading import unlabelled_rows
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.tables import as_table, without_missing
from tasks.task import Task


def rows_to_predict(task: Task, rows: Any) -> Rows | None:
    """Rows in memory, whose labels are not read; None if there are no rows.

    Missing values of a DataFrame or Series are empty texts, as in a CSV file.
    """
    table = as_table(without_missing(rows, task.columns), task.columns)
    if table.num_rows == 0:
        return None
    found = unlabelled_rows(task, RawTable(table, "rows"))
    warn_of_blank(count_blank(found), "the rows")
    return found


def count_blank(rows: Rows) -> int:
    """How many rows have a text column without text."""
    is_empty = np.logical_or.reduce([is_blank(texts).to_numpy(zero_copy_only=False) for texts in rows.texts])
    return int(is_empty.sum())


def warn_of_blank(count: int, where: str) -> None:
    """Warn of rows with an empty text, if there are any; `where` names them."""
    if count:
        rows = f"{counted(count, 'row')} of {where} with an empty text"
        warn_caller(f"{rows}: such predictions carry little information")
