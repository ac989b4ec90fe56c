"""Reading a file of raw rows (parquet, JSON lines, CSV or TSV), as a whole or some rows at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import UserError, unknown
from tasks.raw_table import RawTable, UnreadableLine, check_header, is_text, make_table, read_tsv


def _read_tsv_file(path: Path, texts: Sequence[str]) -> RawTable:
    return read_tsv(path)


def _lines(path: Path, bad: list[UnreadableLine], newline: str) -> Iterator[str]:
    """The lines of a UTF-8 file without its byte-order mark; those that are not UTF-8 are added to `bad`.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline=newline) as handle:
            for number, line in enumerate(handle, start=1):
                try:
                    line.encode()
                except UnicodeEncodeError as error:
                    byte, at = ord(line[error.start]) - 0xDC00, len(line[: error.start].encode())
                    bad.append(UnreadableLine(number, f"not UTF-8: byte 0x{byte:02x} at position {at}"))
                    line = line.encode(errors="surrogateescape").decode(errors="replace")
                yield line if number > 1 else line.removeprefix("\ufeff")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


class _Collected:
    """Rows of a file that become a table of at most `size` rows."""

    def __init__(self, path: Path, size: int | None):
        self.path, self.size = path, size
        self.names: list[str] | None = None
        self.bad: list[UnreadableLine] = []
        self.tables = 0
        self._rows: list[Sequence[Any]] = []
        self._lines: list[int] = []

    def add(self, row: Sequence[Any], line: int) -> bool:
        """Add a row; returns True if the table is full."""
        self._rows.append(row)
        self._lines.append(line)
        return len(self._rows) == self.size

    def table(self) -> RawTable:
        """The table of the rows so far, which are then dropped."""
        made = make_table(self.path, self.names or [], self._rows, self._lines, self.bad)
        self._rows, self._lines, self.bad[:] = [], [], []
        self.tables += 1
        return made

    def rest(self) -> Iterator[RawTable]:
        """The table of the last rows; an empty one only if the file has no rows at all."""
        if self._rows or self.bad or not self.tables:
            yield self.table()


def _csv_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read comma-separated values with a header; quoted fields may span lines."""
    found = _Collected(path, size)
    reader = csv.reader(_lines(path, found.bad, ""), strict=True)
    start = 1
    try:
        for fields in reader:
            full = False
            if found.names is None:
                found.names = fields
                check_header(path, fields)
            elif len(fields) == len(found.names):
                full = found.add(fields, start)
            elif fields:
                message = f"{len(fields)} fields, but the header has {len(found.names)}"
                found.bad.append(UnreadableLine(start, message))
            start = reader.line_num + 1
            if full:
                yield found.table()
    except csv.Error as error:
        found.bad.append(UnreadableLine(start, f"not CSV: {error}; the lines after it were not read"))
    yield from found.rest()


def _jsonl_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read one JSON object per line; every line must have the fields of the first."""
    found = _Collected(path, size)
    for number, line in enumerate(_lines(path, found.bad, "\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            found.bad.append(UnreadableLine(number, f"not JSON: {error.msg} at column {error.colno}"))
            continue
        problem = _fields_problem(record, found.names, texts)
        if problem:
            found.bad.append(UnreadableLine(number, problem))
            continue
        found.names = found.names or list(record)
        if found.add([record[name] for name in found.names], number):
            yield found.table()
    yield from found.rest()


def _read_csv(path: Path, texts: Sequence[str]) -> RawTable:
    return next(_csv_batches(path, texts, None))


def _read_jsonl(path: Path, texts: Sequence[str]) -> RawTable:
    return next(_jsonl_batches(path, texts, None))


def _fields_problem(record: Any, names: list[str] | None, texts: Sequence[str]) -> str | None:
    """The problem of one JSON line, given the fields of the first line and the text columns; or None."""
    if not isinstance(record, dict) or not record:
        return "not a JSON object with fields"
    expected = record.keys() if names is None else names
    lacking = [name for name in expected if name not in record]
    extra = [name for name in record if name not in expected]
    if lacking:
        return f"the field {lacking[0]!r} is missing"
    if extra:
        return f"the field {extra[0]!r} is not in the first row"
    for name in texts:
        value = record.get(name)
        if value is not None and not is_text(value):
            return f"the field {name!r} is {json.dumps(value)[:40]}, not text"
    return None


def read_parquet(paths: Sequence[Path], label: str) -> RawTable:
    """Read one or more parquet shards as one table with the path `label`.

    Raises:
        UserError: a file is not parquet, or the shards have different columns.
    """
    try:
        tables = [pq.read_table(path, partitioning=None) for path in paths]
        return RawTable(pa.concat_tables(tables).replace_schema_metadata(None), label)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {label} as parquet: {error}") from error


def _parquet_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read a parquet file, `size` rows at a time."""
    first = 0
    try:
        with pq.ParquetFile(path) as file:
            empty = file.schema_arrow.empty_table()
            batches = file.iter_batches(batch_size=size) if file.metadata.num_rows else []
            for table in map(pa.Table.from_batches, ([batch] for batch in batches)):
                yield RawTable(table.replace_schema_metadata(None), str(path), first=first)
                first += table.num_rows
        if not first:
            yield RawTable(empty, str(path))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path} as parquet: {error}") from error


def _read_parquet_file(path: Path, texts: Sequence[str]) -> RawTable:
    return read_parquet([path], str(path))


READERS: dict[str, Callable[[Path, Sequence[str]], RawTable]] = {
    ".parquet": _read_parquet_file,
    ".jsonl": _read_jsonl,
    ".json-lines": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_tsv_file,
}


def read_file(path: Path, texts: Sequence[str]) -> RawTable:
    """Read one file in the format that its suffix names.

    Args:
        texts: the columns whose values must be text.

    Raises:
        UserError: unknown suffix, or a file that cannot be read at all.
    """
    if path.suffix not in READERS:
        raise unknown("kind of data file", path.suffix or path.name, READERS)
    return READERS[path.suffix](path, texts)


_STREAMED: dict[str, Callable[[Path, Sequence[str], int | None], Iterator[RawTable]]] = {
    ".parquet": _parquet_batches,
    ".jsonl": _jsonl_batches,
    ".json-lines": _jsonl_batches,
    ".csv": _csv_batches,
}
BATCH = 50_000  # rows read at once


def read_batches(path: Path, texts: Sequence[str]) -> Iterator[RawTable]:
    """Read one file like `read_file`, in tables of up to 50,000 rows (TSV files: in one table).

    Raises:
        UserError: as for `read_file`, when the iterator gets there.
    """
    if path.suffix in _STREAMED:
        yield from _STREAMED[path.suffix](path, texts, BATCH)
    else:
        yield read_file(path, texts)
