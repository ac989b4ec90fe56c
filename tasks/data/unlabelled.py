"""Unlabelled rows, for a teacher to label: streamed from files into memory-mapped columns.

Memory use is about 40 bytes per row, whatever the length of the texts. Rows of `span` tasks are an exception:
they are cut into windows in memory.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, did_you_mean
from tasks.common.mapped import MappedTexts, mapped
from tasks.common.urls import url_of
from tasks.data.file_patterns import matching_files, refuse_repeated
from tasks.data.file_readers import suffix_of
from tasks.data.loading import require_valid, sample_indices, sample_rows
from tasks.data.missing_data import missing_unlabelled
from tasks.data.raw_table import RawTable
from tasks.data.rows import ANSWERS, STEP, Rows, concat, has_label
from tasks.data.schema import fit_columns
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
                hint = (
                    error.hint
                    if len(patterns) == 1
                    else (
                        "a list of which at least half are names of files is read as files; "
                        f"to pass texts, write `{{{task.columns[0]!r}: texts}}`"
                    )
                )
                raise UserError(error.problem, expected=error.expected, hint=hint)
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


def checked_batches(task: Task, batches: Iterator[RawTable]) -> Iterator[RawTable]:
    """The rows with the task's columns, text columns as strings; a label column is allowed if it is empty.

    Raises:
        UserError: a row has a label, a text is null, a line cannot be read, or a column is missing.
    """
    plain = dataclasses.replace(task, test=(UNLABELLED,))
    for raw in batches:
        fitted = dataclasses.replace(raw, table=fit_columns(plain, UNLABELLED, raw))
        if task.label in raw.table.column_names:
            _refuse_labels(plain, fitted)
        blank = fitted.table.set_column(
            fitted.table.schema.get_field_index(task.label),
            task.label,
            pa.nulls(raw.table.num_rows, task.type.label_type),
        )
        fitted = dataclasses.replace(fitted, table=blank)
        require_valid(plain, UNLABELLED, fitted, fitted.path)
        yield fitted


def _refuse_labels(task: Task, raw: RawTable) -> None:
    """Raise UserError if a row has a label, or something else that stands in the place of one."""
    column = raw.table[task.label]
    if column.null_count == len(column):
        return
    labels = task.type.read_labels(task, UNLABELLED, raw)
    invalid = [problem.row for problem in labels.problems if problem.column == task.label]
    rows = sorted({*np.flatnonzero(has_label(labels.values)).tolist(), *invalid})
    if rows:
        value = repr(column[rows[0]].as_py())[:40]
        raise UserError(
            f"{raw.location(rows[0])}: column {task.label!r} holds {value}, but unlabelled rows "
            f"(task {task.name!r}) must not have one",
            hint=f"put these rows into the training file, or drop the column {task.label!r}",
        )


def append_unlabelled(
    task: Task, train: Rows, batches: ReadBatches, limit: int | None = None
) -> tuple[Rows, int]:
    """The training rows followed by the unlabelled rows, and the number of these.

    Args:
        limit: maximum number of unlabelled rows, a random subset in file order; that of a larger limit
            contains it. Tasks with groups keep whole groups.

    Raises:
        UserError: as for `checked_batches`; or the file is empty.
    """
    tables = checked_batches(task, batches())
    if train.answers is not None:
        rows = sample_rows(_span_rows(task, tables), limit)
        return concat([train, rows]), len(rows)
    texts = [MappedTexts() for _ in task.columns]
    groups: list[pa.Array] = []
    count = len(train)
    uids = _copy(train, texts)
    for raw in tables:
        for column, name in zip(texts, task.columns, strict=True):
            for chunk in raw.table[name].chunks:
                column.add(chunk)
        if task.group is not None:
            groups += [chunk.cast(pa.large_string()) for chunk in raw.table[task.group].chunks]
        uids.add(_uids(task, count - len(train), raw.table.num_rows))
        count += raw.table.num_rows
    rows = Rows(
        task.name,
        train.split,
        uids.finish(),
        tuple(column.finish() for column in texts),
        _labels(train.labels, count - len(train)),
        _groups(train.groups, groups),
    )
    added = count - len(train)
    if limit is None or limit >= added:
        return rows, added
    new = dataclasses.replace(rows.slice(len(train), count), split=UNLABELLED)
    if new.groups is not None:
        new = dataclasses.replace(new, groups=new.groups - new.groups.min())
    chosen = sample_indices(new, limit)
    return _subset(rows, np.concatenate([np.arange(len(train)), chosen + len(train)])), len(chosen)


def _uids(task: Task, start: int, count: int) -> pa.Array:
    """(count,) the names "task/unlabelled/number" of rows, counted from `start`."""
    numbers = pa.array(np.arange(start, start + count)).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(f"{task.name}/{UNLABELLED}"), numbers, "/")


def _copy(train: Rows, texts: Sequence[MappedTexts]) -> MappedTexts:
    """Add the texts of the training rows to `texts`; returns their uids, to be continued."""
    for column, values in zip(texts, train.texts, strict=True):
        column.add(values)
    uids = MappedTexts()
    uids.add(train.uids)
    return uids


def _labels(labels: np.ndarray, added: int) -> np.ndarray:
    """(n + added, ...) memory-mapped labels: those of the n training rows, then NaN for the added rows."""
    missing = (np.full((min(STEP, added - i), *labels.shape[1:]), np.nan) for i in range(0, added, STEP))
    return mapped(itertools.chain([labels], missing), np.float64)


def _groups(groups: np.ndarray | None, added: Sequence[pa.Array]) -> np.ndarray | None:
    """The groups of the training rows, followed by new groups."""
    if groups is None:
        return None
    codes = pa.chunked_array(added).combine_chunks().dictionary_encode().indices.to_numpy()
    return np.concatenate([groups, codes.astype(np.int64) + int(groups.max()) + 1])


def _subset(rows: Rows, indices: np.ndarray) -> Rows:
    """`Rows.take` into memory-mapped columns."""
    columns = [MappedTexts() for _ in (rows.uids, *rows.texts)]
    for start in range(0, len(indices), STEP):
        part = pa.array(indices[start : start + STEP])
        for column, values in zip(columns, (rows.uids, *rows.texts), strict=True):
            column.add(values.take(part))
    uids, *texts = (column.finish() for column in columns)
    labels = mapped((rows.labels[indices[i : i + STEP]] for i in range(0, len(indices), STEP)), np.float64)
    groups = None if rows.groups is None else rows.groups[indices]
    return Rows(rows.task, rows.split, uids, tuple(texts), labels, groups)


def _span_rows(task: Task, tables: Iterator[RawTable]) -> Rows:
    """All rows of a `span` task, in memory."""
    table = pa.concat_tables([raw.table.select(list(task.columns)) for raw in tables])
    count = table.num_rows
    return Rows(
        task.name,
        UNLABELLED,
        _uids(task, 0, count),
        tuple(table[name].combine_chunks() for name in task.columns),
        np.full(count, np.nan),
        answers=pa.nulls(count, ANSWERS),
    )
