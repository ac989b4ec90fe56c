"""Warnings about training rows, and unlabelled rows, that are also validation or test rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from tasks.checks.row_hashes import RowHashes, contained, hash_rows
from tasks.common.errors import UserError, counted
from tasks.data.rows import Rows
from tasks.data.sources import DataSource
from tasks.task import Task

MAX_TRAINED_SHARE = 0.02  # share of validation rows that are training rows; more give a warning


def trained_warnings(train: Rows, validation: Mapping[str, Rows]) -> list[str]:
    """A warning for each validation split if more than 2% of its rows are also training rows.

    Args:
        train: all training rows.
        validation: split -> its rows, or a sample of them.
    """
    seen = RowHashes()
    for part in train.parts():
        seen.add(hash_rows(part.texts))
    hashes = seen.distinct()
    shared = {split: contained(hash_rows(rows.texts), hashes) for split, rows in validation.items()}
    return [
        trained_message(f"{train.task}/{split}", int(rows.sum()), len(rows))
        for split, rows in shared.items()
        if rows.mean() > MAX_TRAINED_SHARE
    ]


def trained_message(split: str, trained: int, rows: int) -> str:
    """The warning that `trained` of the `rows` of a validation split are also training rows."""
    are = "is" if trained == 1 else "are"
    return (
        f"{trained:,} of the {counted(rows, 'row')} of {split} ({trained / rows:.0%}) {are} also in the "
        "training rows, so scores on it are too high"
    )


def overlap_warnings(source: DataSource, task: Task, rows: Rows, own_split: str | None) -> list[str]:
    """A warning for each validation and test split that shares texts with the unlabelled rows.

    Args:
        rows: the unlabelled rows.
        own_split: the split that the rows come from, which is not compared.
    """
    by_split: dict[str, np.ndarray] = {}
    for split in source.splits(task):
        if split in (task.train, own_split):
            continue
        hashes = RowHashes()
        try:
            for raw in source.batches(task, split):
                hashes.add(hash_rows([raw.table[name] for name in task.columns]))
        except UserError:  # a split that this run does not read may be invalid
            continue
        by_split[split] = hashes.distinct()
    counts = Counter[str]()
    for part in rows.parts() if by_split else ():
        unlabelled = hash_rows(part.texts)
        counts.update({split: int(contained(unlabelled, hashes).sum()) for split, hashes in by_split.items()})
    warnings = []
    for split in by_split:
        if count := counts[split]:
            warnings.append(
                f"{count:,} of the {counted(len(rows), 'unlabelled row')} of {task.name} "
                f"{'is' if count == 1 else 'are'} also in the split {split}, so scores on it may be too high"
            )
    return warnings
