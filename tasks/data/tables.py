"""Data sources made of objects in memory (DataFrames, data sets, Arrow tables, lists) or of other sources."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.common.errors import UserError, a_type, brief, counted, shorten
from tasks.common.reading import require_file
from tasks.common.remote import local
from tasks.common.scalar_checks import path_problem
from tasks.data.file_readers import SplitFiles
from tasks.data.missing_data import similar_name, similar_split
from tasks.data.raw_table import RawTable, check_header, strict_array, without_views
from tasks.data.sources import Batches, DataSource, Read, at_once
from tasks.task import UNLABELLED, Task

_NO_COLUMN = (str, bytes, Mapping, set, frozenset)  # types that cannot hold the values of a column
_SPLITS = ("train", "validation", "test", UNLABELLED)
_TABLES = "a pandas or polars DataFrame, a datasets.Dataset, a pyarrow.Table, a mapping of columns,"


def as_table(rows: Any, columns: Sequence[str] = (), what: str = "the rows") -> pa.Table:
    """Convert rows of any common type to an Arrow table.

    Args:
        rows: a DataFrame (pandas, polars), datasets.Dataset, pyarrow.Table, mapping of column name -> values,
            or list or generator of dicts. With `columns`, also a list of strings (one column) or of tuples,
            an array, or a Series.
        columns: the column names for rows that are strings or tuples.
        what: what to call the rows in error messages.

    Raises:
        UserError: the rows have another type, or the columns have different lengths.
    """
    if hasattr(rows, "with_format") and not hasattr(rows, "__len__"):  # datasets.IterableDataset
        raise UserError(
            f"{what} cannot be {a_type(rows)}, whose number of rows is unknown",
            expected=f"{_TABLES} or a list of {_values(columns)}",
            hint="read the first rows with `list(dataset.take(1000))`, or write all of them to a file with "
            "`dataset.to_parquet(FILE)`",
        )
    try:
        table = without_views(_convert(rows, list(columns)))
    except (pa.ArrowException, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        in_parts = len(error.args) > 1 and not isinstance(error, UnicodeError)
        text = "; ".join(map(str, error.args)) if in_parts else str(error)
        reason = "lists inside each other" if deep else text.strip().split("\n")[0]
        raise UserError(
            f"{what} cannot be read ({type(rows).__name__}): {reason}",
            expected=f"{_TABLES} or a list of {_values(columns)}",
        ) from error
    check_header(f"the table of {what}", table.column_names)
    return table if table.num_columns else _of_records([], list(columns))


def is_frame(rows: Any) -> bool:
    """True for a DataFrame of pandas or polars."""
    return hasattr(rows, "columns") and (hasattr(rows, "iloc") or _is_polars(rows))


def with_columns(frame: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """A copy of a pandas or polars DataFrame with more columns, which replace those of the same names."""
    if hasattr(frame, "iloc"):
        return frame.assign(**columns)
    return frame.with_columns(type(frame)(columns).get_columns())


def _is_polars(rows: Any) -> bool:
    """True for a DataFrame or Series of polars, which is not imported here."""
    return hasattr(rows, "fill_null") and hasattr(rows, "to_arrow")


def without_missing(rows: Any, columns: Sequence[str]) -> Any:
    """Replace missing values in text columns by empty texts.

    Pandas and polars read the empty cells of a CSV file as missing values.

    Args:
        rows: a DataFrame or Series of pandas or polars; anything else is returned unchanged.
        columns: the text columns of a DataFrame.
    """
    if hasattr(rows, "isna") and not hasattr(rows, "columns"):  # a Series of pandas
        return rows.astype(object).where(rows.notna(), "") if rows.isna().any() else rows
    if hasattr(rows, "isna") and rows.columns.is_unique:
        gaps = [name for name in columns if name in rows.columns and rows[name].isna().any()]
        return rows.assign(**{name: without_missing(rows[name], ()) for name in gaps})
    if _is_polars(rows):
        if not hasattr(rows, "columns"):
            return rows.fill_null("")
        present = [name for name in columns if name in rows.columns]
        return rows.with_columns(rows[name].fill_null("") for name in present)
    return rows


def _values(columns: Sequence[str]) -> str:
    """What a list of rows can consist of, for error messages."""
    if not columns:
        return "dicts"
    return "dicts or " + (f"tuples ({', '.join(columns)})" if len(columns) > 1 else "strings")


def _convert(rows: Any, columns: list[str]) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if columns and (values := _column(rows)) is not None:
        return _of_records(values, columns)
    if hasattr(rows, "with_format"):  # datasets.Dataset
        return rows.with_format("arrow")[:]
    if hasattr(rows, "to_arrow"):  # polars
        return rows.to_arrow()
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas
        return _of_pandas(rows)
    if isinstance(rows, Mapping):
        for name, values in rows.items():
            if values is None or isinstance(values, _NO_COLUMN):
                raise TypeError(f"the column {name!r} is {a_type(values)}, not a list of values")
        return pa.table(
            {
                str(name): _array(str(name), values) if isinstance(values, list) else pa.array(values)
                for name, values in rows.items()
            }
        )
    if isinstance(rows, Iterator):
        rows = list(rows)
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise TypeError(f"{a_type(rows)} is not a table")
    return _of_records(rows, columns)


def _of_pandas(rows: Any) -> pa.Table:
    """A table of a DataFrame; raises TypeError that names a column of mixed types, and some of its rows."""
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException:
        for number, name in enumerate(rows.columns):
            if str(rows.dtypes.iloc[number]) == "object":
                column = rows.iloc[:, number]
                _array(str(name), column.where(column.notna(), None).tolist())
        raise


def _column(rows: Any) -> list[Any] | None:
    """The values of a single column: an array of numpy or pyarrow, or a Series; None for anything else."""
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        return rows.to_pylist()
    is_column = not isinstance(rows, Sequence | Mapping) and not hasattr(rows, "columns")
    for method in ("tolist", "to_list"):
        if is_column and hasattr(rows, method):
            return list(getattr(rows, method)())
    return None


def _of_records(rows: Sequence[Any], columns: list[str]) -> pa.Table:
    """A table of dicts, tuples or strings; raises TypeError or ValueError that names the first wrong row."""
    if not rows:
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        return pa.table({name: _array(name, [row.get(name) for row in rows]) for name in names})
    if isinstance(rows[0], Mapping):
        number = next(number for number, row in enumerate(rows) if not isinstance(row, Mapping))
        raise TypeError(f"row {number} is {a_type(rows[number])}, not a dict like row 0")
    if not columns:
        raise TypeError(f"a list of {type(rows[0]).__name__} has no column names")
    odd = next((row for row in rows if not isinstance(row, str | tuple | list)), rows[0])
    if not isinstance(odd, str | tuple | list):
        raise TypeError(f"row {rows.index(odd)} is {a_type(odd)}")
    tuples = [(row,) if isinstance(row, str) else tuple(row) for row in rows]
    wrong = next((row for row in tuples if len(row) != len(columns)), None)
    if wrong is not None:
        values = f"{counted(len(wrong), 'value')} in {str(wrong)[:60]}"
        raise ValueError(f"{values}; expected {len(columns)}: {', '.join(columns)}")
    return pa.table(dict(zip(columns, zip(*tuples, strict=True), strict=True)))


def _array(name: str, values: list[Any]) -> pa.Array:
    """A column; raises TypeError that names it, and up to three rows whose types do not fit together."""
    try:
        return strict_array(values)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        rows = {type(value): row for row, value in reversed(list(enumerate(values))) if value is not None}
        first_rows = sorted(rows.items(), key=itemgetter(1))[:3]
        types = ", ".join(f"{kind.__name__} in row {row}" for kind, row in first_rows)
        problem = f"mixes types: {types}" if len(rows) > 1 else f"cannot be read: {error}"
        raise TypeError(f"the column {name!r} {problem}") from None


class TableSource(DataSource):
    """Rows in memory, or in files that are given by their paths.

    Args:
        tables: task name -> split -> rows (see `as_table`) or the path of a file, such as
            {"rte": {"train": frame, "validation": "dev.csv"}}.
        name: the name of the source in messages and records.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], name: str = "memory"):
        self.name = name
        self._tables: dict[str, dict[str, pa.Table | Path]] = {}
        shown = "dataset_dict" if type(tables).__name__.endswith("DatasetDict") else "{'train': ...}"
        for task, splits in tables.items():
            if not isinstance(task, str):
                raise UserError(f"`data` has the key {brief(task)}", expected="names of tasks, such as 'rte'")
            if not isinstance(splits, Mapping) or not all(isinstance(split, str) for split in splits):
                hint = f"name the split of these rows: `data={{{task!r}: {{'train': ...}}}}`"
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

    def _locate(self, task: Task, split: str) -> Read | None:
        rows = self._tables.get(task.name, {}).get(split)
        if isinstance(rows, Path):
            return SplitFiles([rows], task.columns)
        return None if rows is None else at_once(lambda: RawTable(rows, f"{self.name}:{task.name}/{split}"))

    def _find(self, task: Task, split: str) -> Read | None:
        """Rows in memory take precedence over a task's own files."""
        return self._locate(task, split)

    def unlabelled(self, task: Task, named: bool = False) -> Batches | None:
        """Rows in memory take precedence over a task's own files."""
        read = self._locate(task, UNLABELLED)
        return super().unlabelled(task) if read is None else partial(read, False)

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
        similar = similar_split(split, splits)
        return UserError(
            f"the data of task {task.name!r} have no split {split!r}",
            expected=f"a key {split!r}; the keys are {', '.join(map(repr, splits)) or 'none'}",
            hint=f"rename the key {similar!r} to {split!r}" if similar else None,
        )


def _table_or_file(rows: Any, what: str) -> pa.Table | Path:
    """The rows of a split as a table, or the path of their file, which is read only when it is needed."""
    if isinstance(rows, str | os.PathLike):
        if expected := path_problem(os.fspath(rows)):
            raise UserError(f"the file of {what} cannot be {brief(rows)}", expected=expected)
        return require_file(Path(local(os.path.expanduser(rows))), f"the file of {what}")
    if isinstance(rows, Sequence) and rows and all(isinstance(row, str | os.PathLike) for row in rows):
        raise UserError(
            f"{what} cannot be {a_type(rows)} of strings or paths",
            expected=f"{_TABLES} a list of dicts, or the path of one file",
            hint="join several files first: `pandas.concat(map(pandas.read_csv, files))`",
        )
    return as_table(rows, what=what)


class CombinedSource(DataSource):
    """Several sources; each split of a task is read from the first source that has it."""

    def __init__(self, sources: Sequence[DataSource]):
        self._sources = list(sources)
        self.name = " + ".join(source.name for source in sources)

    def check_hint(self, task: Task) -> str:
        """How to list all problems of a task's data."""
        return f"`mtkd.check_data` lists all problems of {task.name!r}"

    def missing(self, task: Task, split: str) -> UserError:
        """The error for a split that no source has, with the hints of all sources."""
        error = super().missing(task, split)
        hints = [hint for source in self._sources if (hint := source.missing(task, split).hint)]
        return UserError(error.problem, expected=error.expected, hint="; ".join(dict.fromkeys(hints)))

    def _folders(self) -> list[Path]:
        return [folder for source in self._sources for folder in source._folders()]

    def _locate(self, task: Task, split: str) -> Read | None:
        return next((read for source in self._sources if (read := source._find(task, split))), None)

    def _find(self, task: Task, split: str) -> Read | None:
        return self._locate(task, split)

    def unlabelled(self, task: Task, named: bool = False) -> Batches | None:
        return next((read for source in self._sources if (read := source.unlabelled(task, named))), None)
