"""Loading the rows of a task: validated, sampled and identified by their content."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc

from tasks.common.errors import UserError, counted
from tasks.common.mapped import release_pages
from tasks.common.sha256 import LongPart, digest_bytes, digest_parts
from tasks.data.raw_table import RawTable
from tasks.data.row_checks import NULL_TEXT, ProblemSummary, find_problems
from tasks.data.rows import STEP, Rows, concat, row_uids
from tasks.data.schema import fit_columns
from tasks.data.sources import DataSource
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels

DIGEST_BLOCK = 65_536  # rows that have one digest in `digest_blocks`; corpora of format 2 depend on it
_NO_LABEL, _NONE_APPLIES = "no label; expected", "[] for no labels"
_SHOWN = 8
_Part = TypeVar("_Part")


def load_rows(source: DataSource, task: Task, split: str, limit: int | None = None) -> Rows:
    """Read and validate one split, in batches.

    The texts of more than `tasks.data.rows.MAPPED_ROWS` rows are memory-mapped.

    Args:
        limit: maximum number of rows, a random subset in file order, the same in every call; `rank` tasks
            keep whole groups.

    Raises:
        UserError: the split is missing or empty, or a row is invalid.
    """
    tables = source.batches(task, split)
    parts = _valid_parts(task, split, tables, f"{task.name}/{split}", source.check_hint(task))
    return sample_rows(concat(parts), limit)


def sample_rows(rows: Rows, limit: int | None) -> Rows:
    """The subset of a split's rows that `load_rows` returns with this limit.

    Raises:
        UserError: the limit is less than 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"the limit of {limit} rows is too small", expected="1 or more")
    return rows if limit is None or limit >= len(rows) else rows.take(sample_indices(rows, limit))


def validated_table(source: DataSource, task: Task, split: str) -> RawTable:
    """The raw rows of a split, validated.

    Raises:
        UserError: the split is missing or empty, or a row is invalid.
    """
    raw = source.raw_table(task, split)
    require_valid(task, split, raw, f"{task.name}/{split}", source.check_hint(task))
    return raw


def unlabelled_rows(task: Task, table: RawTable, fix: str | None = None) -> Rows:
    """The rows of a table as unlabelled rows of a task; a label column is ignored.

    Args:
        fix: what to do if a text column is missing, for the hint; None = pass `columns` to `predict`.

    Raises:
        UserError: a row is invalid, or a column is missing.
    """
    unlabelled = _without_labels(task)
    table = replace(table, table=fit_columns(unlabelled, "in", table, fix or _name_columns(task)))
    return concat(_valid_parts(unlabelled, "in", iter([table]), table.path))


def unlabelled_rows_or_none(task: Task, table: RawTable, fix: str | None = None) -> Rows | None:
    """Like `unlabelled_rows`; None if the file has no rows, but the right columns or none at all."""
    if table.table.num_rows or any(line.level == "error" for line in table.bad_lines):
        return unlabelled_rows(task, table, fix)
    if table.table.column_names:
        fit_columns(_without_labels(task), "in", table, fix or _name_columns(task))
    return None


def _name_columns(task: Task) -> str:
    names = ["A", "B"][: len(task.columns)]
    return f"rename one, or name those with the texts in their order: `columns={names}`"


def _without_labels(task: Task) -> Task:
    """The task with a test split "in" and a label column that no table has."""
    return replace(task, test=("in",), label="__no_label__")


def require_valid(task: Task, split: str, raw: RawTable, what: str, hint: str | None = None) -> None:
    """Raise UserError if any row is invalid."""
    list(_valid_parts(task, split, iter([raw]), what, hint))


def parse_tables(
    task: Task, split: str, tables: Iterable[RawTable], start: int = 0
) -> Iterator[tuple[ProblemSummary, Rows | None]]:
    """For each table, the errors in it, and its rows if there are none.

    Args:
        start: the number of rows of the split before those of the first table, for the uids.
    """
    groups: dict[Any, int] = {}
    for raw in tables:
        problems, labels = find_problems(task, split, raw)
        errors = ProblemSummary(problem for problem in problems if problem.level == "error")
        valid = None
        if not errors.total:
            assert labels is not None, "an empty split is an error"
            valid = _rows(task, split, raw, labels, start, groups)
        yield errors, valid
        start += raw.table.num_rows


def require_no_errors(
    checked: Iterator[tuple[ProblemSummary, _Part | None]], what: str, hint: str | None = None
) -> Iterator[_Part]:
    """Yield the result for each part. If a part has errors, raise one UserError with the errors of all parts.

    Args:
        checked: for each part the errors in it, and what was made of it if there are none.
    """
    for errors, part in checked:
        if part is None:
            for later, _ in checked:
                errors.merge(later)
            raise _invalid(errors, what, hint)
        yield part


def _valid_parts(
    task: Task, split: str, tables: Iterator[RawTable], what: str, hint: str | None = None
) -> Iterator[Rows]:
    """The rows of some tables; raises UserError if any row is invalid, with the problems of all tables."""
    return require_no_errors(parse_tables(task, split, tables), what, hint)


def _invalid(errors: ProblemSummary, what: str, hint: str | None) -> UserError:
    shown = "\n".join(f"  {line}" for _, line in errors.lines()[:_SHOWN])
    hints = []
    if _NO_LABEL in shown:
        advice = "drop the rows without a label, or pass them as unlabelled text (`unlabelled`)"
        hints.append(
            f"write [] where no label applies; otherwise {advice}" if _NONE_APPLIES in shown else advice
        )
    if NULL_TEXT in shown:
        hints.append("drop the rows without a text, or fill it in")
    hints += [hint] if hint else []
    return UserError(f"{counted(errors.total, 'problem')} in {what}:\n{shown}", hint="; ".join(hints) or None)


def _rows(
    task: Task, split: str, raw: RawTable, labels: ParsedLabels, start: int, group_ids: dict[Any, int]
) -> Rows:
    """The rows of a table after `start` rows of the split; `group_ids`: the numbers of the groups so far."""
    table = raw.table
    groups = None
    if task.group is not None:
        coded = table[task.group].combine_chunks().dictionary_encode()
        ids = [group_ids.setdefault(value, len(group_ids)) for value in coded.dictionary.to_pylist()]
        groups = np.array(ids, np.int64)[coded.indices.to_numpy()]
    return Rows(
        task.name,
        split,
        row_uids(task.name, split, start, table.num_rows),
        tuple(table[name].combine_chunks() for name in task.columns),
        labels.values,
        groups,
        labels.answers,
        soft=labels.soft,
    )


def sample_indices(rows: Rows, limit: int) -> np.ndarray:
    """Sorted row numbers of a random subset; if rows have groups, whole groups and at least one.

    A larger limit only adds rows, so the samples of a learning curve are nested.
    """
    stream = np.random.default_rng([0, zlib.crc32(f"{rows.task}/{rows.split}".encode())])
    if rows.groups is None:
        return np.sort(stream.permutation(len(rows))[:limit])
    sizes = np.bincount(rows.groups)
    order = stream.permutation(len(sizes))
    count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right")))
    return np.flatnonzero(np.isin(rows.groups, order[:count]))


def digest_rows(rows: Rows) -> str:
    """A SHA-256 of the content of the rows: task, split, uids, texts, labels, groups and soft labels."""
    return digest_parts(_content(rows))


def digest_blocks(rows: Rows) -> str:
    """A SHA-256 of the digests of consecutive blocks of `DIGEST_BLOCK` rows, computed in any process."""
    starts = range(0, len(rows), DIGEST_BLOCK)
    return digest_bytes(*(digest_rows(rows.slice(n, min(n + DIGEST_BLOCK, len(rows)))) for n in starts))


def _content(rows: Rows) -> Iterator[bytes | str | LongPart]:
    yield from (rows.task, rows.split)
    starts = range(0, len(rows), STEP)
    blocks = (rows.labels[start : start + STEP] for start in starts)
    same = (np.where(np.isnan(some), np.nan, some).astype("<f8").tobytes() for some in blocks)
    yield LongPart(rows.labels.size * 8, same)
    for column in (rows.uids, *rows.texts):
        yield b"column"
        for start in starts:
            chunk = column.slice(start, STEP)
            yield pc.binary_length(chunk).to_numpy(zero_copy_only=False).astype("<i8").tobytes()
            yield "".join(chunk.to_pylist())
            release_pages()
    if rows.groups is not None:
        yield rows.groups.astype("<i8").tobytes()
    if rows.answers is not None:
        yield json.dumps(rows.answers.to_pylist())
    if rows.windows is not None:
        yield rows.windows.answers.astype("<i8").tobytes()
    if rows.soft is not None:
        yield rows.soft.astype("<f8").tobytes()
