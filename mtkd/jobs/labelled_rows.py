"""The rows that an evaluation scores, and why it skips others."""

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
    """The rows to score, and the skipped splits and tasks ("task" or "task/split" -> reason).

    Raises:
        UserError: a row is invalid.
    """
    labelled: list[tuple[Task, Rows]] = []
    skipped: dict[str, str] = {}
    for original in tasks:
        if split == "test" and not original.test:  # a task file names only the splits that it has files of
            original = replace(original, test=("test",))
        requested_splits = (
            list(original.validation or original.test) if split is None else _named(original, split)
        )
        task, moved = _without_missing_files(original, requested_splits)
        if isinstance(source, FilesSource):  # there is no other place to search
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
            skipped[task.name] = f"no split {wanted} in {source.name!r}: {available}{moved}"
    return labelled, skipped


def _named(task: Task, split: str) -> list[str]:
    """The splits of a task that a name means: "test" also stands for test_de and so on."""
    return [name for name in task.splits if name.startswith(f"{split}_")] or [split]


def _without_missing_files(task: Task, splits: Sequence[str]) -> tuple[Task, str]:
    """The task without its own files if those of `splits` are missing, and a remark about that.

    A model records the paths of the files beside a task's TOML file. If they have moved, the rows are
    searched in the data directory under the task's name.
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
