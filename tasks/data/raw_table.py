"""Raw rows with the line number of every row, and the Arrow types of their columns.

Unreadable lines do not stop the reader. They are left out of the table and recorded in `RawTable.bad_lines`,
so that all of them can be reported at once.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError

# Keys of a field's metadata that say why its values could not be read; NOT_UTF8: because of a lone surrogate.
UNREADABLE, NOT_UTF8 = b"unreadable", b"not UTF-8"
CLASS_NAMES = b"huggingface"  # the key of the metadata in which `datasets` describes columns
TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
Level = Literal["error", "warning"]


@dataclass(frozen=True)
class UnreadableLine:
    """A line of a file that could not be read as a row."""

    line: int
    message: str
    level: Level = "error"


@dataclass(frozen=True)
class RawTable:
    """The raw rows of one file.

    Attributes:
        table: n rows with the columns of the file.
        path: the file, the pattern of its shards, or a name such as "pocket:rte/train".
        lines: (n,) int64, the line at which each row starts, counted from 1; None if there are no lines.
        bad_lines: the lines that are not in the table.
        first: the number of rows of the file before those of the table.
        rows: the values of each row as they were read, also of bad lines; None for parquet, and for a file
            that was read as a whole.
    """

    table: pa.Table
    path: str
    lines: np.ndarray | None = None
    bad_lines: tuple[UnreadableLine, ...] = ()
    first: int = 0
    rows: Sequence[Sequence[Any]] | None = None

    def location(self, row: int) -> str:
        """The location of row `row` (counted from 0), as "file:line" or "file, row number"."""
        if self.lines is None:
            return f"{self.path}, row {self.first + row}"
        return f"{self.path}:{self.lines[row]}"

    def parts(self, size: int) -> Iterator[RawTable]:
        """The table in parts of up to `size` rows, without copying; the first has all bad lines."""
        for start in range(0, max(1, self.table.num_rows), size):
            yield replace(
                self,
                table=self.table.slice(start, size),
                lines=None if self.lines is None else self.lines[start : start + size],
                bad_lines=() if start else self.bad_lines,
                first=self.first + start,
            )


def make_table(
    path: Path | str,
    names: Sequence[str],
    rows: list[Sequence[Any]],
    lines: list[int],
    bad: list[UnreadableLine],
) -> RawTable:
    """Make a table of rows (tuples in the order of `names`); rows on lines in `bad` are dropped."""
    broken = {problem.line for problem in bad}
    if broken:
        keep = [number for number, line in enumerate(lines) if line not in broken]
        rows = [rows[number] for number in keep]
        lines = [lines[number] for number in keep]
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_array(column) for column in columns]
    order = sorted(bad, key=lambda problem: problem.line)
    return RawTable(
        pa.table(arrays, names=list(names)), str(path), np.array(lines, dtype=np.int64), tuple(order)
    )


def _array(values: Sequence[Any]) -> pa.Array:
    """An Arrow column; values of mixed types are converted to JSON text."""
    if not values:
        return pa.array([], type=pa.string())
    try:
        return strict_array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        texts = [value if value is None or is_utf8_text(value) else json.dumps(value) for value in values]
        return pa.array(texts, type=pa.string())


def strict_array(values: Sequence[Any]) -> pa.Array:
    """An Arrow column; raises ArrowTypeError for truth values beside numbers, which pyarrow makes 0 and 1."""
    array = pa.array(values)
    is_list = pa.types.is_list(array.type)
    inner = array.type.value_type if is_list else array.type
    if pa.types.is_floating(inner) or pa.types.is_integer(inner):
        parts = (
            itertools.chain.from_iterable(value for value in values if value is not None)
            if is_list
            else values
        )
        if any(isinstance(part, bool) for part in parts):
            raise pa.ArrowTypeError("truth values beside numbers")
    return array


def is_list_column(kind: pa.DataType) -> bool:
    """True for a column of lists, also if all have the same length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def holds_text(kind: pa.DataType) -> bool:
    """True for a column of text, which may be dictionary-encoded, or of nulls only."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return plain in (*TEXT_TYPES, pa.null())


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column; raises ValueError for one that Python cannot hold, such as the year 10000."""
    try:
        return column.to_pylist()
    except (OverflowError, KeyError, pa.ArrowException) as error:  # KeyError: no such time zone
        raise ValueError(str(error)) from error


def without_views(table: pa.Table) -> pa.Table:
    """The table with plain texts and bytes in place of views, for which Arrow has few functions."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for index, field in enumerate(table.schema):
        if field.type in plain:
            table = table.set_column(index, field.name, table[field.name].cast(plain[field.type]))
    return table


def is_utf8_text(value: Any) -> bool:
    """True for a string that can be encoded as UTF-8; JSON may contain lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_header(path: Path | str, names: Sequence[str]) -> None:
    """Refuse a file that has two columns of the same name; raises UserError."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UserError(f"{path} names the column {twice[0]!r} twice", hint="give each column its own name")
