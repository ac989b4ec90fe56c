"""Tables of rows in memory: DataFrames, data sets, mappings of columns and lists, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError, a_type, brief, counted
from tasks.data.raw_table import (
    NOT_UTF8,
    UNREADABLE,
    check_header,
    is_utf8_text,
    strict_array,
    without_views,
)

_NO_COLUMN = (str, bytes, Mapping, set, frozenset)  # types that cannot hold the values of a column
ACCEPTED_TABLES = "a pandas or polars DataFrame, a datasets.Dataset, a pyarrow.Table, a mapping of columns,"


def as_table(rows: Any, columns: Sequence[str] = (), what: str = "the rows") -> pa.Table:
    """Convert rows of any common type to an Arrow table.

    A column that Arrow cannot hold, such as one of mixed types, becomes nulls (`UNREADABLE`, `NOT_UTF8`). It
    is an error only if a task reads it.

    Args:
        rows: a DataFrame (pandas, polars), datasets.Dataset, pyarrow.Table, mapping of column name -> values,
            or list or generator of dicts. With `columns`, also a list of strings (one column) or of tuples,
            an array, or a Series.
        columns: the column names for rows that are strings or tuples.
        what: what to call the rows in error messages.

    Raises:
        UserError: the rows have another type, or the columns have different lengths.
    """
    accepted = f"{ACCEPTED_TABLES} or a list of {_values(columns)}"
    if getattr(rows, "ndim", None) == 0 and hasattr(rows, "tolist"):
        raise UserError(
            f"{what} cannot be {a_type(rows)} without dimensions",
            expected=accepted,
            hint="for one row: `[value]`",
        )
    if columns and _is_pandas_row(rows, columns):
        raise UserError(
            f"{what} cannot be a single row of a DataFrame, which is a Series of its cells",
            expected=accepted,
            hint="for one row: `frame.iloc[[0]]`",
        )
    if hasattr(rows, "with_format") and not hasattr(rows, "__len__"):  # datasets.IterableDataset
        raise UserError(
            f"{what} cannot be {a_type(rows)}, whose number of rows is unknown",
            expected=accepted,
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
            expected=accepted,
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
    if hasattr(getattr(rows, "columns", rows), "levels"):  # a MultiIndex
        return rows
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
    if columns and (values := single_column(rows)) is not None:
        return _of_records(values, columns)
    if hasattr(rows, "with_format"):  # datasets.Dataset
        return rows.with_format("arrow")[:]
    if hasattr(rows, "to_arrow"):  # polars
        return rows.to_arrow()
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas
        return _of_pandas(rows)
    if isinstance(rows, Mapping):
        columns_of_rows = {}
        for name, values in rows.items():
            is_scalar = not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0
            if is_scalar or isinstance(values, _NO_COLUMN):
                raise TypeError(f"the column {name!r} is {a_type(values)}, not a list of values")
            columns_of_rows[str(name)] = list(values) if isinstance(values, Iterator) else values
        return _table(columns_of_rows)
    if isinstance(rows, Iterator):
        rows = list(rows)
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise TypeError(f"{a_type(rows)} is not a table")
    return _of_records(rows, columns)


def _of_pandas(rows: Any) -> pa.Table:
    """A table of a DataFrame; columns that Arrow cannot hold become nulls (`UNREADABLE`)."""
    if hasattr(rows.columns, "levels"):
        raise TypeError("the names of its columns are a MultiIndex")
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        columns = {}
        for name in rows.columns:
            try:
                columns[str(name)] = pa.array(rows[name], from_pandas=True)
            except (pa.ArrowException, OverflowError, UnicodeEncodeError):
                columns[str(name)] = rows[name].astype(object).where(rows[name].notna(), None).tolist()
        return _table(columns)


def single_column(rows: Any) -> list[Any] | None:
    """The values of a single column: an array of numpy or pyarrow, or a Series; None for anything else."""
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        return rows.to_pylist()
    others = ("columns", "with_format")  # of a DataFrame or a data set
    if isinstance(rows, Sequence | Mapping) or any(hasattr(rows, name) for name in others):
        return None
    for method in ("tolist", "to_list"):
        if hasattr(rows, method) and isinstance(values := getattr(rows, method)(), list):
            return values
    return None


def _of_records(rows: Sequence[Any], columns: list[str]) -> pa.Table:
    """A table of dicts, tuples or strings; raises TypeError or ValueError that names the first wrong row."""
    if not rows:
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        return _table({name: [row.get(name) for row in rows] for name in names})
    if isinstance(rows[0], Mapping):
        number = next(number for number, row in enumerate(rows) if not isinstance(row, Mapping))
        raise TypeError(f"row {number} is {a_type(rows[number])}, not a dict like row 0")
    if not columns:
        raise TypeError(f"a list of {type(rows[0]).__name__} has no column names")
    rows = [row.tolist() if isinstance(row, np.ndarray) and row.ndim == 1 else row for row in rows]
    odd = next((row for row in rows if not isinstance(row, str | tuple | list)), rows[0])
    if not isinstance(odd, str | tuple | list):
        raise TypeError(f"row {rows.index(odd)} is {a_type(odd)}")
    tuples = [(row,) if isinstance(row, str) else tuple(row) for row in rows]
    wrong = next((row for row in tuples if len(row) != len(columns)), None)
    if wrong is not None:
        values = f"{counted(len(wrong), 'value')} in {str(wrong)[:60]}"
        raise ValueError(f"{values}; expected {len(columns)}: {', '.join(columns)}")
    return _table(dict(zip(columns, map(list, zip(*tuples, strict=True)), strict=True)))


def _is_pandas_row(rows: Any, columns: Sequence[str]) -> bool:
    """True for a row of a pandas DataFrame: a Series whose index has the names of the columns."""
    return hasattr(rows, "iloc") and not hasattr(rows, "columns") and all(n in rows.index for n in columns)


def _table(columns: Mapping[str, Any]) -> pa.Table:
    """A table of columns; those that Arrow cannot hold become nulls (`UNREADABLE`)."""
    arrays, fields = [], []
    for name, values in columns.items():
        metadata = None
        try:
            array = _array(values)
        except UnicodeEncodeError as error:
            array, metadata = pa.nulls(len(values)), {NOT_UTF8: _why_not_utf8(values, error).encode()}
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            array = pa.nulls(len(values))
            metadata = {UNREADABLE: _why_unreadable(values, error).encode(errors="backslashreplace")}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.table(arrays, schema=pa.schema(fields))


def _array(values: Any) -> pa.Array | pa.ChunkedArray:
    """A column of values of any type; a matrix is a column of lists."""
    if isinstance(values, list):
        return strict_array(values)
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1]:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    return values if isinstance(values, pa.ChunkedArray) else pa.array(values)


def _why_unreadable(values: Any, error: Exception) -> str:
    """Why a column cannot be read, with up to three rows whose types do not fit together."""
    if not isinstance(values, list):
        return f"is {a_type(values)}, which cannot be read: {error}"
    for row, value in enumerate(values):
        if isinstance(value, int) and value.bit_length() > 63:
            return f"holds {brief(value)} in row {row}, which does not fit in a signed 64-bit integer"
    rows = {type(value): row for row, value in reversed(list(enumerate(values))) if value is not None}
    first_rows = sorted(rows.items(), key=itemgetter(1))[:3]
    types = ", ".join(f"{kind.__name__} in row {row}" for kind, row in first_rows)
    return f"mixes types: {types}" if len(rows) > 1 else f"cannot be read: {error}"


def _why_not_utf8(values: Any, error: UnicodeEncodeError) -> str:
    """Why a column with a lone surrogate cannot be read, with the first row that has one."""
    for row, value in enumerate(values):
        if isinstance(value, str) and not is_utf8_text(value):
            return f"holds {brief(value)} in row {row}, which is not text that UTF-8 can hold"
    return f"holds text that UTF-8 cannot hold: {error}"
