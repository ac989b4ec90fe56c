"""The rows of the training and validation splits of a run."""

from __future__ import annotations

from dataclasses import replace

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.rows import Rows
from tasks.data.sources import DataSource
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task


def training_rows(source: DataSource, task: Task, unlabelled: UnlabelledRequest | None) -> Rows:
    """The rows of the training split; none if the split is missing and the run has unlabelled rows instead.

    Args:
        unlabelled: which unlabelled rows the run uses; None = none.

    Raises:
        UserError: a row is invalid; or the split is missing, and the run has no unlabelled rows, or no
            validation rows.
    """
    assert task.train is not None, "the caller refuses tasks without training rows"
    if unlabelled is None or not unlabelled_rows_suffice(source, task, unlabelled):
        return load_rows(source, task, task.train)
    rows = next(iter(validation_rows(source, task, 1).values()))
    return replace(rows.slice(0, 0), split=task.train)  # only their columns are needed


def unlabelled_rows_suffice(source: DataSource, task: Task, unlabelled: UnlabelledRequest) -> bool:
    """True if a task has no training split, but unlabelled rows from which a student of a teacher can learn.

    Raises:
        UserError: a file of unlabelled rows does not exist.
    """
    can_lack_labels = task.soft_labels is None and task.group is None
    is_missing = task.train not in (*task.files, *source.splits(task))
    return can_lack_labels and is_missing and unlabelled.open(source, task) is not None


def validation_rows(source: DataSource, task: Task, limit: int | None) -> dict[str, Rows]:
    """Split -> validation rows of a task.

    Args:
        limit: maximum number of rows of each split.

    Raises:
        UserError: the source has none, or a row is invalid.
    """
    present = [split for split in task.validation if split in source.splits(task)]
    if not present:
        missing_split = task.validation[:1] or ("validation",)
        error = source.missing(task, missing_split[0])
        hint = error.hint or "add its rows, or leave the task out"
        raise UserError(
            f"{error.problem}; training needs a validation split",
            expected=error.expected,
            hint=f"{hint}; validation rows need labels (docs/unlabelled.md#how-many-labelled-rows)",
        )
    return {split: load_rows(source, task, split, limit) for split in present}
