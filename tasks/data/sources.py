"""Data sources: the pocket tasks, the Hugging Face hub, and `open_data`, which opens these and others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.common.errors import UserError, a_type, brief, did_you_mean
from tasks.common.remote import local_copy, with_local_paths
from tasks.common.scalar_checks import path_problem
from tasks.common.urls import url_of
from tasks.data import file_readers
from tasks.data.class_names import with_label_names
from tasks.data.file_patterns import files_of_task
from tasks.data.file_readers import SplitFiles, read_batches
from tasks.data.missing_data import missing_file
from tasks.data.raw_table import RawTable
from tasks.data.schema import fit_columns
from tasks.glue import TASKS
from tasks.task import UNLABELLED, Task

ReadBatches = Callable[[], Iterator[RawTable]]  # reads rows, in batches
ReadSplit = Callable[[bool], Iterator[RawTable]]  # the same; with True, all rows in one table


class DataSource(ABC):
    """Provides the raw rows of tasks, with the hub's column names.

    A task that names its own files is read from these, whatever the source; relative paths start at `root`.

    Attributes:
        name: "pocket", "hub" or the directory as the user wrote it.
        root: directory of a task's own relative files; None if the source has no directory.
    """

    name: str
    root: Path | None = None

    @property
    def described(self) -> str:
        """The source in an error message."""
        return repr(self.name)

    @abstractmethod
    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        """A function that reads a split from this source, for a task that names no files; None if missing."""

    def splits(self, task: Task) -> list[str]:
        """The splits of the task that this source has."""
        return [split for split in task.splits if self._find(task, split)]

    def raw_table(self, task: Task, split: str) -> RawTable:
        """The raw rows of a split with the task's columns, text columns as strings.

        If a test split has no label column, a column of nulls is added.

        Raises:
            UserError: the split or a column is missing, or a text column does not hold text.
        """
        (raw,) = self.batches(task, split, whole=True)
        return raw

    def batches(self, task: Task, split: str, *, whole: bool = False) -> Iterator[RawTable]:
        """The rows of `raw_table`, in batches, so that a split may be larger than memory.

        Args:
            whole: yield all rows in one table. Rows with soft labels always come in one table if the task
                does not name the kind of these, since that is decided from all of them.

        Raises:
            UserError: as for `raw_table`, when the iterator reaches the row.
        """
        read = self._find(task, split)
        if read is None:
            raise self.missing(task, split)
        unknown = task.has_soft_labels(split) and task.soft_labels_kind is None
        for raw in read(whole or unknown):
            yield with_label_names(task, replace(raw, table=fit_columns(task, split, raw)))

    def table(self, task: Task, split: str) -> pa.Table:
        """The rows of `raw_table` as an Arrow table."""
        return self.raw_table(task, split).table

    def split_files(self, task: Task, split: str) -> SplitFiles | None:
        """The files that hold a split; None if it is missing, or does not come from such files."""
        read = self._find(task, split)
        return read if isinstance(read, SplitFiles) else None

    def unlabelled(self, task: Task, named: bool = False) -> ReadBatches | None:
        """A function that reads the unlabelled rows of a task, in batches; None if there are none.

        Args:
            named: True if they were asked for; the pocket tasks have such rows only then.

        Raises:
            UserError: the task names a file twice, or some files exist and others do not.
        """
        if task.unlabelled:
            paths = files_of_task(task, self.root)
            return partial(read_all_batches, paths, task) if paths else None
        read = self._find_in_source(task, UNLABELLED)
        return None if read is None else partial(read, False)

    def missing(self, task: Task, split: str) -> UserError:
        """The error for a split that this source does not have."""
        if split in task.files:
            return missing_file(task, split, self._folders())
        present = self.splits(task)
        return UserError(
            f"no split {split!r} of task {task.name!r} in {self.described}",
            expected=f"one of {', '.join(present)}" if present else None,
            hint=self._search_hint(task, split),
        )

    def outside_warning(self, splits: Iterable[tuple[Task, str]]) -> str | None:
        """A warning if all these splits come from files outside the source's directory, which tasks name."""
        return None

    def arguments(self, task: Task) -> str:
        """The arguments that name this source and a task, for an example of a call in a hint."""
        named = "TASK.toml" if task.files else task.name
        return f"data={self.name!r}, tasks={named!r}"

    def check_hint(self, task: Task) -> str:
        """How to list all problems of a task's data."""
        return f"`mtkd.check_data({self.arguments(task)})` lists all problems"

    def _folders(self) -> list[Path]:
        """The directories in which a task's own relative files are looked up."""
        return [self.root] if self.root else []

    def _find(self, task: Task, split: str) -> ReadSplit | None:
        """A function that reads a split, from the file that the task names or from this source."""
        if not task.files:
            read = self._find_in_source(task, split)
            if read is None and task.trained_on and split == task.train:
                read = self._find_in_source(TASKS[task.trained_on], split)
            return read
        if split not in task.files:
            return None
        file = with_local_paths(task.files[split])
        path = (self.root or Path()) / file
        usable = path.is_file() and (self.root is not None or Path(file).is_absolute())
        return SplitFiles([path], task.columns) if usable else None

    def _search_hint(self, task: Task, split: str) -> str:
        if task.files or task.unlabelled:
            return f"name the file of the split {split!r} under [files] in the task file"
        return "choose another task, or another `data`: pocket, hub or a directory"


class PocketSource(DataSource):
    """The built-in pocket tasks, written by a seeded generator."""

    name = "pocket"

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        from tasks.pocket import POCKET_SPLITS

        name = next((name for name in known_as(task) if split in POCKET_SPLITS.get(name, ())), None)
        return None if name is None else self._generated(name, split)

    def unlabelled(self, task: Task, named: bool = False) -> ReadBatches | None:
        from tasks.pocket import has_unlabelled

        name = next(filter(has_unlabelled, known_as(task)), None) if named else None
        if name is None:
            return super().unlabelled(task)
        return partial(self._generated(name, UNLABELLED), False)

    def _generated(self, name: str, split: str) -> ReadSplit:
        from tasks.pocket import generate

        return at_once(lambda: RawTable(generate(name, split), f"pocket:{name}/{split}"))


class HubSource(DataSource):
    """The official copies on the Hugging Face hub, loaded with `datasets`."""

    name = "hub"

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        location = task.on_hub(split)
        if location is None or split not in task.splits:
            return None
        from tasks.data.hub_data import fetch

        return at_once(lambda: RawTable(fetch(*location), f"hub:{'/'.join(location)}"))


class FilesSource(DataSource):
    """Only the files that the tasks name themselves; the source if no data is given."""

    name = described = "the task files"

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        return None

    def _find(self, task: Task, split: str) -> ReadSplit | None:
        if not task.files and not task.unlabelled:
            raise UserError(
                f"the task {task.name!r} names no files of its own, so it needs data",
                hint="choose a source of rows: `data='DIR'`, `data='pocket'` or `data='hub'`",
            )
        return super()._find(task, split)

    def arguments(self, task: Task) -> str:
        return "data=None, tasks='TASK.toml'"


def open_data(spec: Any) -> DataSource:
    """Open the data source that the argument `data` names.

    Args:
        spec: "pocket", "hub", a directory or its URL, a `DataSource`, or tables in memory (task -> split ->
            rows or file, see `tasks.data.table_source.TableSource`); or a list of these, where each split is
            read from the first that has it. None = only the files that the tasks name themselves.

    Raises:
        UserError: the directory does not exist, or the value is of another type.
    """
    if isinstance(spec, DataSource):
        return spec
    if spec is None:
        return FilesSource()
    if isinstance(spec, Mapping):
        from tasks.data.table_source import TableSource

        return TableSource(spec)
    if isinstance(spec, list | tuple):
        from tasks.data.combined_source import CombinedSource

        sources = [open_data(part) for part in spec]
        if not sources:
            raise UserError("`data` is an empty list", expected="pocket, hub or a directory")
        return sources[0] if len(sources) == 1 else CombinedSource(sources)
    if isinstance(spec, os.PathLike):
        spec = Path(os.fspath(spec))
    if not isinstance(spec, str | Path):
        raise UserError(
            f"`data` cannot be {a_type(spec)}",
            expected='pocket, hub, a directory, or tables such as {"rte": {"train": rows}}',
        )
    if spec in _SOURCES:
        return _SOURCES[str(spec)]()
    if expected := path_problem(str(spec)):
        raise UserError(f"`data={brief(str(spec))}` is not valid", expected=expected)
    root = local_copy(url) if (url := url_of(spec)) else Path(os.path.expanduser(spec))
    if not root.is_dir():
        raise _no_directory(str(spec), root)
    from tasks.data.directory_source import DirectorySource

    return DirectorySource(root)


def _no_directory(spec: str, root: Path) -> UserError:
    """The error for a data directory that does not exist, or that is a file."""
    problem = "is a file" if root.exists() else "does not exist"
    beside = root.parent.iterdir() if root.parent.is_dir() else ()
    directories = [str(root.with_name(entry.name)) for entry in beside if entry.is_dir()]
    place = f"DIR/TASK/validation{root.suffix}"
    return UserError(
        f"the data directory {spec!r} {problem}{did_you_mean(spec, [*_SOURCES, *directories])}",
        expected="pocket, hub or a directory",
        hint=f"put the file in a directory, as {place} (TASK: the task's name)" if root.is_file() else None,
    )


_SOURCES: dict[str, type[DataSource]] = {"pocket": PocketSource, "hub": HubSource}


def read_all_batches(paths: Sequence[Path], task: Task) -> Iterator[RawTable]:
    """The rows of some files, in batches."""
    for path in paths:
        yield from read_batches(path, task.columns)


def at_once(read: Callable[[], RawTable]) -> ReadSplit:
    """A `ReadSplit` function for a table that can only be read as a whole."""

    def parts(whole: bool) -> Iterator[RawTable]:
        raw = read()
        yield from [raw] if whole else raw.parts(file_readers.BATCH_ROWS)

    return parts


def known_as(task: Task) -> list[str]:
    """The names under which a source may have the task."""
    shared = [task.hub[1]] if task.hub and not task.languages else []
    return list(dict.fromkeys([task.name, *shared]))
