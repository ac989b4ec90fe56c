"""Counting the rows with an empty text, and a warning about them."""

from __future__ import annotations

import numpy as np

from tasks.common.errors import counted, warn_caller
from tasks.data.row_checks import is_blank
from tasks.data.rows import Rows


def count_blank(rows: Rows) -> int:
    """The number of rows with a text column that has no visible characters."""
    is_empty = np.logical_or.reduce([is_blank(texts).to_numpy(zero_copy_only=False) for texts in rows.texts])
    return int(is_empty.sum())


def warn_of_blank(count: int, file: str | None = None) -> None:
    """Warn about rows with an empty text, if there are any.

    Args:
        count: the number of such rows.
        file: the file that they are from, for the message.
    """
    if count:
        rows = counted(count, "row") + (f" of {file}" if file else "")
        warn_caller(f"{rows} with an empty text: predictions for such rows carry little information")
