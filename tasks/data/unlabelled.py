"""Which unlabelled rows a run uses, and where they are read from."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError, did_you_mean
from tasks.common.urls import url_of
from tasks.data.appended_rows import append_unlabelled
from tasks.data.file_patterns import matching_files, refuse_repeated
from tasks.data.file_readers import suffix_of
from tasks.data.missing_data import missing_unlabelled
from tasks.data.raw_table import RawTable
from tasks.data.rows import STEP, Rows
from tasks.data.sources import DataSource, ReadBatches, read_all_batches
from tasks.data.tables import as_table, single_column
from tasks.task import UNLABELLED, Task

_SAMPLE = 100  # items of a list that decide whether it names files


@dataclass(frozen=True)
class UnlabelledRequest:
    """Which unlabelled rows a run uses.

    Attributes:
        files: task -> what to read instead of the task's own file: a file, a pattern of files or a list of
            these (`names_files`), the name of a split without labels, or rows in memory (see
            `tasks.data.tables.as_table`). An array, a Series or an iterator may stand for a list.
        limit: maximum number of rows per task; 0 = none, None = all.
    """

    files: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", {task: _files_as_list(v) for task, v in self.files.items()})

    @staticmethod
    def of_files(files: Mapping[str, Any], limit: int | None) -> UnlabelledRequest:
        """A request without rows in memory: each text is a file, a pattern or a split, also in lists."""
        paths = {task: v if isinstance(v, str | Path) else [*map(Path, v)] for task, v in files.items()}
        return UnlabelledRequest(paths, limit)

    def check(self, tasks: Sequence[Task]) -> None:
        """Check the names of the tasks.

        Raises:
            UserError: a task is not among `tasks`.
        """
        names = [task.name for task in tasks]
        for name in self.files:
            if name not in names:
                raise UserError(
                    f"`unlabelled` names the task {name!r}, which this run does not "
                    f"train{did_you_mean(name, names)}",
                    expected=", ".join(names),
                    hint="add it to `tasks`, or leave its rows out",
                )

    def record(self) -> dict[str, Any]:
        """The request as plain JSON; rows in memory by their type."""
        named = {
            name: _plain(value) if names_files(value) else f"memory ({type(value).__name__})"
            for name, value in self.files.items()
        }
        limit = {} if self.limit is None else {"unlabelled_limit": self.limit}
        return ({"unlabelled": named} if named else {}) | limit

    def open(self, source: DataSource, task: Task) -> ReadBatches | None:
        """A function that reads the unlabelled rows of a task; None if it has none.

        Raises:
            UserError: a file or split does not exist.
        """
        requested = self.files.get(task.name)
        if self.limit == 0:
            return None
        if requested is None or (isinstance(requested, str) and requested == UNLABELLED):
            batches = source.unlabelled(task, named=requested is not None)
            if batches is None and (requested or task.unlabelled):
                raise missing_unlabelled(task, task.unlabelled or [UNLABELLED], source.root)
            return batches
        if isinstance(requested, str) and requested in task.splits:
            return partial(source.batches, task, requested)
        if not names_files(requested):
            table = as_table(requested, task.columns, f"the unlabelled rows of {task.name}")
            return lambda: RawTable(table, f"unlabelled:{task.name}").parts(STEP)
        patterns = [requested] if isinstance(requested, str | Path) else list(requested)
        paths: list[Path] = []
        for pattern in map(str, patterns):
            matching = matching_files([pattern], Path())
            if not matching:
                error = missing_unlabelled(task, [pattern], source.root)
                if len(patterns) == 1:
                    raise error
                raise UserError(
                    error.problem,
                    expected=error.expected,
                    hint="a list of which at least half are names of files is read as files; "
                    f"to pass texts, write `{{{task.columns[0]!r}: texts}}`",
                )
            paths += matching
        refuse_repeated(paths, task)
        return lambda: read_all_batches(paths, task)

    def append(self, source: DataSource, task: Task, train: Rows) -> tuple[Rows, int]:
        """The training rows followed by the requested unlabelled rows, and the number of these.

        Raises:
            UserError: as for `open` and `append_unlabelled`.
        """
        batches = self.open(source, task)
        return append_unlabelled(task, train, batches, self.limit) if batches else (train, 0)

    def split_of(self, task: Task) -> str | None:
        """The split that the rows come from, if it is one of the task's own."""
        requested = self.files.get(task.name)
        return requested if isinstance(requested, str) and requested in task.splits else None


def names_files(value: Any) -> bool:
    """True for a path, a pattern or a split, and for a list of files; other lists of texts are rows.

    A list names files if at least half of its first items do, so that a misspelt name is not read as a text.
    """
    if isinstance(value, str | Path):
        return True
    items = value if isinstance(value, Sequence) else single_column(value)
    sample = list(itertools.islice(items or (), _SAMPLE))
    return bool(sample) and 2 * sum(map(_looks_like_file, sample)) >= len(sample)


def _files_as_list(value: Any) -> Any:
    """A list in place of an iterator, or of an array or Series of file names; other values unchanged."""
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, str | Path) or not names_files(value):
        return value
    return list(value) if isinstance(value, Sequence) else single_column(value)


def _looks_like_file(part: Any) -> bool:
    """True for a path, and for a text that is a URL, has the suffix of a data file, or matches a file."""
    if not isinstance(part, str):
        return isinstance(part, Path)
    is_named = url_of(part) is not None or suffix_of(Path(part)) is not None or os.path.isfile(part)
    return is_named or (
        glob.has_magic(part) and "\0" not in part and any(map(os.path.isfile, glob.glob(part)))
    )


def _plain(value: Any) -> Any:
    return [str(part) for part in value] if isinstance(value, list | tuple) else str(value)
