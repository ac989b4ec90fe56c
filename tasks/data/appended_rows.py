"""Unlabelled rows, for a teacher to label: streamed from files into memory-mapped columns.

Memory use is about 40 bytes per row, whatever the length of the texts. Rows of `span` tasks are an exception:
they are cut into windows in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.common.mapped import MappedTexts, mapped
from tasks.data.loading import require_valid, sample_indices, sample_rows
from tasks.data.raw_table import RawTable
from tasks.data.rows import ANSWERS, STEP, Rows, concat, has_label, row_uids
from tasks.data.schema import fit_columns
from tasks.data.sources import ReadBatches
from tasks.task import UNLABELLED, Task


def checked_batches(task: Task, batches: Iterator[RawTable]) -> Iterator[RawTable]:
    """The rows with the task's columns, text columns as strings; a label column is allowed if it is empty.

    Raises:
        UserError: a row has a label, a text is null, a line cannot be read, or a column is missing.
    """
    plain = replace(task, test=(UNLABELLED,))
    for raw in batches:
        fitted = replace(raw, table=fit_columns(plain, UNLABELLED, raw))
        if task.label in raw.table.column_names:
            _refuse_labels(plain, fitted)
        blank = fitted.table.set_column(
            fitted.table.schema.get_field_index(task.label),
            task.label,
            pa.nulls(raw.table.num_rows, task.type.label_type),
        )
        fitted = replace(fitted, table=blank)
        require_valid(plain, UNLABELLED, fitted, fitted.path)
        yield fitted


def _refuse_labels(task: Task, raw: RawTable) -> None:
    """Raise UserError if a row has a label, or any other value in the label column."""
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
    uids, *texts = _copied((train.uids, *train.texts))
    groups: list[pa.Array] = []
    count = 0
    for raw in tables:
        for column, name in zip(texts, task.columns, strict=True):
            for chunk in raw.table[name].chunks:
                column.add(chunk)
        if task.group is not None:
            groups += [chunk.cast(pa.large_string()) for chunk in raw.table[task.group].chunks]
        uids.add(row_uids(task.name, UNLABELLED, count, raw.table.num_rows))
        count += raw.table.num_rows
    rows = Rows(
        task.name,
        train.split,
        uids.finish(),
        tuple(column.finish() for column in texts),
        _labels(train.labels, count),
        _groups(train.groups, groups),
    )
    if limit is None or limit >= count:
        return rows, count
    new = replace(rows.slice(len(train), len(rows)), split=UNLABELLED)
    if new.groups is not None:
        new = replace(new, groups=new.groups - new.groups.min())
    chosen = sample_indices(new, limit)
    return _subset(rows, np.concatenate([np.arange(len(train)), chosen + len(train)])), len(chosen)


def _copied(columns: Sequence[pa.Array]) -> list[MappedTexts]:
    """Copies of some columns, to which more texts can be added."""
    copies = [MappedTexts() for _ in columns]
    for copy, column in zip(copies, columns, strict=True):
        copy.add(column)
    return copies


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
        row_uids(task.name, UNLABELLED, 0, count),
        tuple(table[name].combine_chunks() for name in task.columns),
        np.full(count, np.nan),
        answers=pa.nulls(count, ANSWERS),
    )
