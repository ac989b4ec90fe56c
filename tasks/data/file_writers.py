"""Writing rows and further columns to a file or to standard output, in batches."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import UserError
from tasks.common.files import atomic_path
from tasks.data.raw_table import RawTable, is_utf8_text, python_values
from tasks.data.text_lines import STANDARD

Added = Sequence[Mapping[str, Any]]  # further columns: one record per row, all with the same keys
Write = Callable[[RawTable, Added], None]
_BEST = pa.struct([("text", pa.string()), ("start", pa.int64()), ("score", pa.float64())])
_TYPES = {"start": pa.int64(), "score": pa.float64(), "n_best": pa.list_(_BEST)}  # may be null in all rows


@contextlib.contextmanager
def open_writer(out: Path, suffix: str) -> Iterator[Write]:
    """Yield a function that writes a table and its further columns; call it once for each part of the rows.

    If there are no rows, call it with an empty table and one example record, which gives the further columns
    their names and types.

    The file appears as a whole when the block succeeds, and replaces an existing one. JSON lines keep the
    values of rows that were read from JSON lines. In CSV and TSV, each label has a column
    `probability_LABEL`, and lists are JSON text.

    Args:
        out: `tasks.data.text_lines.STANDARD` is standard output.
        suffix: the format: .jsonl, .json-lines, .csv, .tsv, .parquet.

    Raises:
        UserError: the file cannot be written, or the format cannot hold a value.
    """
    writers: dict[str, Callable[[Any], contextlib.AbstractContextManager[Write]]] = {
        ".parquet": _parquet,
        ".csv": partial(_delimited, line=_csv_line),
        ".tsv": partial(_delimited, line=_tsv_line),
    }
    write = writers.get(suffix, _jsonl)
    if out == STANDARD:
        if sys.stdout is None:
            raise UserError("standard output is closed", expected="an open one, or a file")
        with write(sys.stdout.buffer) as part:
            yield part
            sys.stdout.buffer.flush()
        return
    with atomic_path(out, alone=True) as temporary:
        opened = gzip.open if out.suffix.lower() == ".gz" else open
        with opened(temporary, "wb") as handle, write(handle) as part:
            yield part


def _records(raw: RawTable, added: Added) -> Iterator[dict[str, Any]]:
    """The rows with their further columns."""
    if not raw.table.num_rows:
        return
    names = raw.table.column_names
    rows = raw.rows if raw.rows is not None else zip(*(_column(raw, name) for name in names), strict=True)
    for row, more in zip(rows, added, strict=True):
        yield {**dict(zip(names, row, strict=True)), **more}


def _column(raw: RawTable, name: str) -> list[Any]:
    """The values of a column; raises UserError for one that cannot be written as text."""
    column = raw.table[name]
    try:
        return python_values(column)
    except ValueError as error:
        raise UserError(
            f"{raw.path}: the column {name!r} holds a {column.type} that cannot be written as text: {error}",
            hint="write parquet, or leave this column out of the file",
        ) from error


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if is_utf8_text(text) else json.dumps(value, default=str)  # JSON may hold lone surrogates


@contextlib.contextmanager
def _jsonl(handle: BinaryIO) -> Iterator[Write]:
    def write(raw: RawTable, added: Added) -> None:
        handle.write("".join(f"{_json(record)}\n" for record in _records(raw, added)).encode())

    yield write


@contextlib.contextmanager
def _delimited(handle: BinaryIO, line: Callable[[RawTable, int, list[str]], str]) -> Iterator[Write]:
    """Write a header and then lines of cells; `line` joins the cells of one row."""
    header: list[str] = []

    def write(raw: RawTable, added: Added) -> None:
        lines = []
        if not raw.table.num_rows:
            header.extend(_flat({**dict.fromkeys(raw.table.column_names), **added[0]}))
            lines.append(line(replace(raw, lines=None), 0, header))
        for row, record in enumerate(map(_flat, _records(raw, added))):
            if not header:
                header.extend(record)
                lines.append(line(raw, row, header))
            if len(record) > len(header):
                new = next(name for name in record if name not in header)
                raise UserError(
                    f"{raw.location(row)}: from about here on, rows have the field {new!r}, which is not "
                    "in the header that has been written",
                    hint="write JSON lines, or give the first row all fields",
                )
            lines.append(line(raw, row, [_cell(record.get(name)) for name in header]))
        handle.write("".join(lines).encode(errors="replace"))

    yield write


def _csv_line(raw: RawTable, row: int, cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _tsv_line(raw: RawTable, row: int, cells: list[str]) -> str:
    wrong = next((cell for cell in cells if re.search(r"[\t\r\n]", cell)), None)
    if wrong is not None:
        raise UserError(
            f"{raw.location(row)}: {wrong[:40]!r} has a tab or a line break, which TSV cannot hold",
            hint="write CSV, JSON lines or parquet",
        )
    return "\t".join(cells) + "\n"


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """The record with one column per label in place of its `probabilities`."""
    of_labels = record.get("probabilities")
    if not isinstance(of_labels, dict):
        return record
    del record["probabilities"]
    return record | {f"probability_{label}": share for label, share in of_labels.items()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _json(value) if isinstance(value, list | dict | bool) else str(value)


@contextlib.contextmanager
def _parquet(handle: BinaryIO) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None
    stack = contextlib.ExitStack()

    def write(raw: RawTable, added: Added) -> None:
        nonlocal writer
        table = raw.table.drop_columns([name for name in raw.table.column_names if name in added[0]])
        for name in added[0]:
            values = pa.array([more[name] for more in added], _TYPES.get(name))
            table = table.append_column(name, values[: raw.table.num_rows])
        if writer and (new := next((n for n in table.column_names if n not in writer.schema.names), None)):
            raise UserError(
                f"{raw.location(0)}: from about here on, rows have the field {new!r}, which is not in "
                "the columns that have been written",
                hint="write JSON lines, or give the first row all fields",
            )
        if writer is None:
            writer = stack.enter_context(_parquet_writer(handle, table.schema, raw.path))
        try:
            _refuse_other_types(table.schema, writer.schema)
            writer.write_table(table.cast(writer.schema))
        except pa.ArrowException as error:
            raise UserError(
                f"{raw.location(0)}: from here on, a column has values of another type than before: {error}",
                hint="write JSON lines instead of parquet",
            ) from error

    with stack:
        yield write


def _parquet_writer(handle: BinaryIO, schema: pa.Schema, path: str) -> pq.ParquetWriter:
    try:
        return pq.ParquetWriter(handle, pa.schema([_known(field) for field in schema]))
    except pa.ArrowException as error:
        raise UserError(
            f"{path}: a column cannot be written as parquet: {error}", hint="write JSON lines instead"
        ) from error


def _refuse_other_types(found: pa.Schema, written: pa.Schema) -> None:
    """Raise ArrowTypeError for columns whose values would change, such as the text 007 to the number 7."""
    for field in found:
        before = written.field(field.name).type
        if not _keeps_values(field.type, before):
            raise pa.ArrowTypeError(f"{field.name!r} held {before}, now {field.type}")


def _keeps_values(kind: pa.DataType, written: pa.DataType) -> bool:
    """True if a cast between these types keeps all values or fails."""
    if pa.types.is_list(kind) and pa.types.is_list(written):
        return _keeps_values(kind.value_type, written.value_type)
    numbers = all(pa.types.is_integer(each) or pa.types.is_floating(each) for each in (kind, written))
    same = kind.id == written.id and not pa.types.is_list(kind)
    return same or numbers or pa.types.is_null(kind) or pa.types.is_string(written)


def _known(field: pa.Field) -> pa.Field:
    """The field as text if the first rows of its column are all null, so that its type is not known."""
    if pa.types.is_null(field.type):
        return field.with_type(pa.string())
    is_list = pa.types.is_list(field.type) and pa.types.is_null(field.type.value_type)
    return field.with_type(pa.list_(pa.string())) if is_list else field
