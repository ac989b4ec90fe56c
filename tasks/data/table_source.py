"""The data source of rows in memory: DataFrames, data sets, Arrow tables, lists; or the paths of files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.common.errors import UserError, a_type, brief, shorten
from tasks.common.reading import require_file
from tasks.common.remote import with_local_paths
from tasks.common.scalar_checks import path_problem
from tasks.data.file_readers import SplitFiles, suffix_of
from tasks.data.missing_data import similar_name, similar_split
from tasks.data.raw_table import RawTable
from tasks.data.sources import DataSource, ReadBatches, ReadSplit, at_once
from tasks.data.tables import ACCEPTED_TABLES, as_table, single_column
from tasks.task import UNLABELLED, Task

_SPLITS = ("train", "validation", "test", UNLABELLED)


class TableSource(DataSource):
    """Rows in memory, or in files that are given by their paths.

    Args:
        tables: task name -> split -> rows (see `as_table`) or the path of a file, such as
            {"rte": {"train": frame, "validation": "dev.csv"}}.
    """

    name = "memory"

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]):
        self._tables: dict[str, dict[str, pa.Table | Path]] = {}
        shown = "dataset_dict" if type(tables).__name__.endswith("DatasetDict") else "{'train': ...}"
        for task, splits in tables.items():
            if not isinstance(task, str):
                raise UserError(f"`data` has the key {brief(task)}", expected="names of tasks, such as 'rte'")
            if not isinstance(splits, Mapping) or not all(isinstance(split, str) for split in splits):
                hint = f"name the split of these rows: `data={{{task!r}: {{'train': ...}}}}`"
                if _is_column_or_cell(splits):
                    raise UserError(
                        f"`data` must name tasks and splits, but its key {task!r} holds {a_type(splits)}",
                        expected='{task: {split: table}}, such as {"mood": {"train": rows}}',
                        hint=f"if {task!r} is a column, name the task and the split of its table: "
                        "`data={'TASK': {'train': ...}}`",
                    )
                if similar_name(task, _SPLITS):
                    hint = f"if {task!r} is a split, name the task of the splits: `data={{'TASK': {shown}}}`"
                raise UserError(
                    f"the data of task {task!r} cannot be {a_type(splits)}",
                    expected='a mapping of splits to rows, such as {"train": ..., "validation": ...}',
                    hint=hint,
                )
            self._tables[task] = {
                split: _table_or_file(rows, f"{task}/{split}") for split, rows in splits.items()
            }

    @property
    def task_names(self) -> list[str]:
        """The names of the tasks that have rows."""
        return list(self._tables)

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        rows = self._tables.get(task.name, {}).get(split)
        if isinstance(rows, Path):
            return SplitFiles([rows], task.columns)
        return None if rows is None else at_once(lambda: RawTable(rows, f"{self.name}:{task.name}/{split}"))

    def _find(self, task: Task, split: str) -> ReadSplit | None:
        """Rows in memory take precedence over a task's own files."""
        return self._find_in_source(task, split)

    def unlabelled(self, task: Task, named: bool = False) -> ReadBatches | None:
        """Rows in memory take precedence over a task's own files."""
        read = self._find_in_source(task, UNLABELLED)
        return super().unlabelled(task) if read is None else partial(read, False)

    def arguments(self, task: Task) -> str:
        return f"data=..., tasks={task.name!r}"

    def check_hint(self, task: Task) -> str:
        """How to list all problems of a task's data."""
        return "`mtkd.check_data(data, tasks).all_problems` lists all problems"

    def missing(self, task: Task, split: str) -> UserError:
        """The error for a split that is not in memory; it suggests which key to rename."""
        splits = self._tables.get(task.name)
        if splits is None:
            near = difflib.get_close_matches(task.name, self._tables, n=1)
            return UserError(
                f"the data have no task {task.name!r}",
                expected=f"a key {task.name!r}; the keys are {shorten(self._tables, task.name) or 'none'}",
                hint=f"rename the key {near[0]!r} to {task.name!r}" if near else None,
            )
        if split in splits:
            return UserError(
                f"the task {task.name!r} does not name the split {split!r} of the data",
                expected=f"one of its splits: {', '.join(task.splits) or 'none'}",
                hint=f"name the split in the task, such as `validation=({split!r},)`",
            )
        similar = similar_split(split, splits)
        return UserError(
            f"the data of task {task.name!r} have no split {split!r}",
            expected=f"a key {split!r}; the keys are {', '.join(map(repr, splits)) or 'none'}",
            hint=f"rename the key {similar!r} to {split!r}" if similar else None,
        )


def _is_column_or_cell(value: Any) -> bool:
    """True for a number or a text that is no file of rows, and for a list, array or Series of these."""
    values = value if isinstance(value, list | tuple) else single_column(value)
    first = values[0] if values else value
    if isinstance(first, str):
        return suffix_of(Path(first)) is None
    return first is None or isinstance(first, float | int)


def _table_or_file(rows: Any, what: str) -> pa.Table | Path:
    """The rows of a split as a table, or the path of their file, which is read only when it is needed."""
    if isinstance(rows, str | os.PathLike):
        if expected := path_problem(os.fspath(rows)):
            raise UserError(f"the file of {what} cannot be {brief(rows)}", expected=expected)
        return require_file(Path(with_local_paths(os.path.expanduser(rows))), f"the file of {what}")
    if isinstance(rows, Sequence) and rows and all(isinstance(row, str | os.PathLike) for row in rows):
        raise UserError(
            f"{what} cannot be {a_type(rows)} of strings or paths",
            expected=f"{ACCEPTED_TABLES} a list of dicts, or the path of one file",
            hint="join several files first: `pandas.concat(map(pandas.read_csv, files))`",
        )
    return as_table(rows, what=what)
