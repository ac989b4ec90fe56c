"""Loading the rows of a task: validated, sampled and identified by their content."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import UserError, counted
from tasks.files import digest_parts
from tasks.raw_table import RawTable
from tasks.rows import Rows
from tasks.schema import fit_columns
from tasks.sources import DataSource
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels
from tasks.validation import find_problems, summarise

_SHOWN = 8
_DIGEST_ROWS = 65536


def load_rows(source: DataSource, task: Task, split: str, limit: int | None = None, seed: int = 0) -> Rows:
    """Read and validate one split.

    Args:
        limit: maximum number of rows, a random subset in file order drawn with `seed`; `rank` tasks keep
            whole groups.

    Raises:
        UserError: the split is missing or empty, or a row is invalid.
    """
    return sample_rows(_rows(task, split, *_validated(source, task, split)), limit, seed)


def sample_rows(rows: Rows, limit: int | None, seed: int = 0) -> Rows:
    """The subset of a split's rows that `load_rows` returns with this limit.

    Raises:
        UserError: the limit is less than 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"the limit of {limit} rows is too small", expected="1 or more")
    return rows if limit is None or limit >= len(rows) else rows.take(sample_indices(rows, limit, seed))


def validated_table(source: DataSource, task: Task, split: str) -> RawTable:
    """The raw rows of a split, validated.

    Raises:
        UserError: the split is missing or empty, or a row is invalid.
    """
    return _validated(source, task, split)[0]


def _validated(source: DataSource, task: Task, split: str) -> tuple[RawTable, ParsedLabels]:
    raw = source.raw_table(task, split)
    return raw, require_valid(task, split, raw, f"{task.name}/{split}", source.check_hint(task))


def unlabelled_rows(task: Task, table: RawTable) -> Rows:
    """The rows of a table as unlabelled rows of a task; a label column is ignored.

    Raises:
        UserError: a row is invalid, or a column is missing.
    """
    unlabelled = replace(task, test=("in",), label="__no_label__")
    table = replace(table, table=fit_columns(unlabelled, "in", table))
    return _rows(unlabelled, "in", table, require_valid(unlabelled, "in", table, table.path))


def require_valid(task: Task, split: str, raw: RawTable, what: str, hint: str | None = None) -> ParsedLabels:
    """The labels of the rows; raises UserError if any row is invalid."""
    problems, labels = find_problems(task, split, raw)
    errors = [problem for problem in problems if problem.level == "error"]
    if errors:
        shown = "\n".join(f"  {line}" for _, line in summarise(errors)[:_SHOWN])
        raise UserError(
            f"{counted(len(errors), 'problem')} in {what}:\n{shown}",
            hint=hint,
        )
    assert labels is not None, "an empty split is an error"
    return labels


def _rows(task: Task, split: str, raw: RawTable, labels: ParsedLabels) -> Rows:
    table = raw.table
    numbers = pa.array(np.arange(table.num_rows)).cast(pa.string())
    groups = None
    if task.group is not None:
        groups = table[task.group].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return Rows(
        task.name,
        split,
        pc.binary_join_element_wise(pa.scalar(f"{task.name}/{split}"), numbers, "/"),
        tuple(table[name].combine_chunks() for name in task.columns),
        labels.values,
        groups,
        labels.answers,
        soft=labels.soft,
    )


def sample_indices(rows: Rows, limit: int, seed: int = 0) -> np.ndarray:
    """Sorted row numbers of a random subset; if rows have groups, whole groups and at least one.

    A larger limit only adds rows, so the samples of a learning curve are nested.
    """
    stream = np.random.default_rng([seed, zlib.crc32(f"{rows.task}/{rows.split}".encode())])
    if rows.groups is None:
        return np.sort(stream.permutation(len(rows))[:limit])
    sizes = np.bincount(rows.groups)
    order = stream.permutation(len(sizes))
    count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right")))
    return np.flatnonzero(np.isin(rows.groups, order[:count]))


def digest_rows(rows: Rows) -> str:
    """A SHA-256 of the content of the rows: task, split, uids, texts, labels, groups and soft labels."""
    return digest_parts(_content(rows))


def _content(rows: Rows) -> Iterator[bytes | str]:
    yield from (rows.task, rows.split)
    yield np.where(np.isnan(rows.labels), np.nan, rows.labels).astype("<f8").tobytes()
    for column in (rows.uids, *rows.texts):
        yield b"column"
        for start in range(0, len(column), _DIGEST_ROWS):
            chunk = column.slice(start, _DIGEST_ROWS)
            yield pc.binary_length(chunk).to_numpy(zero_copy_only=False).astype("<i8").tobytes()
            yield "".join(chunk.to_pylist())
    if rows.groups is not None:
        yield rows.groups.astype("<i8").tobytes()
    if rows.answers is not None:
        yield json.dumps(rows.answers.to_pylist())
    if rows.windows is not None:
        yield rows.windows.answers.astype("<i8").tobytes()
    if rows.soft is not None:
        yield rows.soft.astype("<f8").tobytes()
