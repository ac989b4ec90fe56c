"""Reading a file of raw rows (parquet, JSON lines, CSV, TSV or plain text), as a whole or in batches."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.common.errors import UserError, did_you_mean
from tasks.common.reading import not_regular
from tasks.data.collected_rows import CollectedRows
from tasks.data.json_files import json_batches, jsonl_batches
from tasks.data.parquet_files import parquet_batches, read_parquet
from tasks.data.raw_table import RawTable, UnreadableLine, check_header
from tasks.data.text_lines import delimiter_of, text_lines

BATCH_ROWS = 50_000  # rows read at once


def _delimited_batches(collected: CollectedRows, rows: Iterator[tuple[int, list[str]]]) -> Iterator[RawTable]:
    """Tables of the rows (line, fields) of a file whose first row is its header."""
    for line, fields in rows:
        if collected.names is None:
            check_header(collected.path, fields)
            collected.names = fields
        elif len(fields) != len(collected.names):
            message = f"{len(fields)} fields, but the header has {len(collected.names)}"
            collected.bad.append(UnreadableLine(line, message))
        elif collected.add(fields, line):
            yield collected.table()
    yield from collected.rest()


def _csv_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read a CSV file with a header and any delimiter; quoted fields may span lines."""
    collected = CollectedRows(path, size)
    return _delimited_batches(collected, _csv_rows(path, texts, collected.bad))


def _csv_rows(path: Path, texts: Sequence[str], bad: list[UnreadableLine]) -> Iterator[tuple[int, list[str]]]:
    lines = text_lines(path, bad, "", legacy=True)
    header = next(lines, "")
    delimiter = delimiter_of(header, texts)
    reader = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for fields in reader:
            if fields:  # not a blank line
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        bad.append(UnreadableLine(start, f"not CSV: {_csv_reason(error)}; the lines after it were not read"))


def _csv_reason(error: csv.Error) -> str:
    """What is wrong with the file, in words that its author understands."""
    if "field limit" in str(error):
        return f"a field has more than {csv.field_size_limit():,} characters (is a quote not closed?)"
    return "a quote is not closed" if "end of data" in str(error) else str(error)


def _tsv_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read tab-separated lines with a header, in which quotes have no special meaning."""
    collected = CollectedRows(path, size)
    return _delimited_batches(collected, _tsv_rows(path, collected.bad))


def _tsv_rows(path: Path, bad: list[UnreadableLine]) -> Iterator[tuple[int, list[str]]]:
    blank = 0  # lines; those at the end of the file do not count
    for number, line in enumerate(text_lines(path, bad, "\n", legacy=True), start=1):
        line = line.removesuffix("\n").removesuffix("\r")
        if not line:
            blank += 1
            continue
        yield from ((number - lines_ago, [""]) for lines_ago in range(blank, 0, -1))
        blank = 0
        yield number, line.split("\t")


def _txt_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read one text per line; blank lines are skipped.

    The column is called "text", or has the name of the text column if there is only one.
    """
    collected = CollectedRows(path, size)
    collected.names = list(texts) if len(texts) == 1 else ["text"]
    for number, line in enumerate(text_lines(path, collected.bad, "\n", legacy=True), start=1):
        if line.strip() and collected.add([line.rstrip("\r\n")], number):
            yield collected.table()
    yield from collected.rest()


_Batches = Callable[[Path, Sequence[str], int | None], Iterator[RawTable]]
READERS: dict[str, _Batches] = {
    ".parquet": parquet_batches,
    ".jsonl": jsonl_batches,
    ".json-lines": jsonl_batches,
    ".json": json_batches,
    ".csv": _csv_batches,
    ".tsv": _tsv_batches,
    ".txt": _txt_batches,
}


def suffix_of(path: Path) -> str | None:
    """The suffix that names the format of a file: ".csv" of "rows.csv" and "rows.csv.gz"; None if unknown."""
    name = path.name.lower()
    packed = name.endswith(".gz")
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in READERS and not (packed and suffix == ".parquet") else None


def _format(path: Path) -> str:
    if (suffix := suffix_of(path)) is not None:
        return suffix
    if problem := not_regular(path):
        raise UserError(f"{path} {problem}", expected="a file of rows")
    kind = path.suffix or path.name
    similar = did_you_mean(kind, list(READERS))
    raise UserError(
        f"{path}: unknown kind of data file {kind!r}{similar}",
        expected=".csv, .tsv, .jsonl or .json-lines (one JSON object per line), .json (an array of objects), "
        ".txt (one text per line), also with .gz; or .parquet",
    )


def read_file(path: Path, texts: Sequence[str]) -> RawTable:
    """Read one file in the format that its suffix names.

    Args:
        texts: the columns whose values must be text.

    Raises:
        UserError: unknown suffix, or a file that cannot be read at all.
    """
    suffix = _format(path)
    return (
        read_parquet([path], str(path)) if suffix == ".parquet" else next(READERS[suffix](path, texts, None))
    )


def read_batches(
    path: Path, texts: Sequence[str], size: int | None = None, suffix: str | None = None
) -> Iterator[RawTable]:
    """Read one file like `read_file`, in tables of up to `size` rows, each when it is asked for.

    Args:
        path: `tasks.data.text_lines.STANDARD` is standard input.
        size: None = 50,000.
        suffix: the format, if the file's own suffix does not name it.

    Raises:
        UserError: as for `read_file`, when the iterator gets there.
    """
    yield from READERS[suffix or _format(path)](path, texts, size or BATCH_ROWS)


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split; calling it reads them.

    Attributes:
        paths: a file, or parquet shards that are read as if they were one file with the path `label`.
        texts: the columns whose values must be text.
    """

    paths: Sequence[Path]
    texts: Sequence[str]
    label: str | None = None

    @property
    def display_path(self) -> str:
        """The file or the pattern of the shards, as messages name it."""
        return self.label or str(self.paths[0])

    def __call__(self, whole: bool) -> Iterator[RawTable]:
        """The rows, in batches, or all in one table."""
        if whole:
            yield (
                read_file(self.paths[0], self.texts)
                if self.label is None
                else read_parquet(self.paths, self.label)
            )
            return
        first = 0
        for path in self.paths:
            for raw in read_batches(path, self.texts):
                yield replace(raw, path=self.label or raw.path, first=first)
                first += raw.table.num_rows
