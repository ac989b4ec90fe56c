"""The labelled rows that an evaluation scores, and why it skips other splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tasks.data.loading import load_rows
from tasks.data.rows import Rows, has_label
from tasks.data.sources import DataSource, FilesSource
from tasks.task import Task


def labelled_rows(
    source: DataSource, tasks: Sequence[Task], split: str | None, limit: int | None
) -> tuple[list[tuple[Task, Rows]], dict[str, str]]:
    """Read the rows to score.

    Args:
        split: a split of each task; None = the validation splits, or the test splits of a task without them.
        limit: maximum number of rows per split; None = all.

    Returns:
        (task, rows) for each split to score; and "task" or "task/split" -> why it is skipped.

    Raises:
        UserError: a row is invalid.
    """
    labelled: list[tuple[Task, Rows]] = []
    skipped: dict[str, str] = {}
    for original in tasks:
        if split == "test" and not original.test:  # a task file names only the splits for which it has files
            original = replace(original, test=("test",))
        requested_splits = (
            list(original.validation or original.test) if split is None else _matching(original, split)
        )
        task, remark = _without_missing_files(original, requested_splits)
        if isinstance(source, FilesSource):  # which reads only the task's own files
            task = original
        present = source.splits(task)
        for name in [name for name in requested_splits if name in present]:
            rows = load_rows(source, task, name, limit)
            if rows.labelled:
                labelled.append((task, rows))
            else:
                unlabelled = int((~has_label(rows.labels)).sum())
                skipped[f"{task.name}/{name}"] = f"not labelled ({unlabelled:,} of {len(rows):,} rows)"
        if not set(requested_splits) & set(present):
            available = f"its splits are {', '.join(present)}" if present else "it has no data for this task"
            wanted = " or ".join(name or "''" for name in requested_splits)
            skipped[task.name] = f"no split {wanted} in {source.described}: {available}{remark}"
    return labelled, skipped


def _matching(task: Task, split: str) -> list[str]:
    """The splits of a task for a requested name: "test" also matches test_de and so on."""
    return [name for name in task.splits if name.startswith(f"{split}_")] or [split]


def _without_missing_files(task: Task, splits: Sequence[str]) -> tuple[Task, str]:
    """The task without its own files if those of `splits` are missing, and a remark about the missing file.

    A model records the paths that a task file names. If these files have moved, the rows are searched for in
    the data directory, under the task's name.
    """
    files = [Path(task.files[split]) for split in splits if split in task.files]
    missing = [file for file in files if file.is_absolute() and not file.is_file()]
    if not missing:
        return task, ""
    remark = (
        f"; {missing[0]}, which the model recorded as the task's file, is missing: pass the task's TOML "
        f"file, or put the rows under {task.name}/ in the data directory"
    )
    return replace(task, files={}), remark
