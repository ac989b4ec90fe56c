"""Rows without labels whose texts are also validation or test rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import UserError
from tasks.rows import Rows, row_keys
from tasks.sources import DataSource
from tasks.task import Task

_STEP = 65_536  # rows compared at once


def count_overlap(rows: Rows, others: pa.Array) -> int:
    """How many rows have the same texts as one of some others.

    Args:
        others: the keys of the other rows (`tasks.rows.row_keys`).
    """
    found = 0
    for start in range(0, len(rows), _STEP):
        keys = row_keys([column.slice(start, _STEP) for column in rows.texts])
        found += pc.sum(pc.is_in(keys, value_set=others)).as_py() or 0
    return found


def overlap_warnings(source: DataSource, task: Task, rows: Rows, own_split: str | None) -> list[str]:
    """A warning for each validation and test split that has texts of the rows without labels.

    Args:
        own_split: the split that the rows come from, which is not compared.
    """
    found = []
    for split in source.splits(task):
        if split in (task.train, own_split):
            continue
        try:
            table = source.table(task, split)
        except UserError:  # a split that this run does not read may be invalid
            continue
        count = count_overlap(rows, row_keys([table[name] for name in task.columns]))
        if count:
            found.append(
                f"{count:,} of the {len(rows):,} rows without labels of {task.name} are also in the split "
                f"{split}, so scores on it may be too high"
            )
    return found
