"""Rows to predict whose texts are empty."""

from __future__ import annotations

import warnings

import numpy as np

from tasks.checks.row_checks import is_blank
from tasks.common.errors import MtkdWarning, counted
from tasks.data.rows import Rows


def count_blank(rows: Rows) -> int:
    """How many rows have a text column without text."""
    is_empty = np.logical_or.reduce([is_blank(texts).to_numpy(zero_copy_only=False) for texts in rows.texts])
    return int(is_empty.sum())


def warn_of_blank(count: int, where: str) -> None:
    """Warn of rows with an empty text, if there are any; `where` names them."""
    if count:
        rows = f"{counted(count, 'row')} of {where} with an empty text"
        warnings.warn(f"{rows}: such predictions carry little information", MtkdWarning, stacklevel=3)
