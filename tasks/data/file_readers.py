"""Reading a file of raw rows (parquet, JSON lines, CSV, TSV or plain text), as a whole or in batches."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tasks.common.errors import UserError, did_you_mean
from tasks.common.reading import not_regular
from tasks.data.parquet_files import parquet_batches, read_parquet
from tasks.data.raw_table import RawTable, UnreadableLine, check_header, is_utf8_text, make_table
from tasks.data.text_lines import STANDARD, delimiter_of, display_name, open_bytes, repeated_key, text_lines

BATCH_ROWS = 50_000  # rows read at once
_MAX_FIELDS = 1000  # of all lines of a JSON file, where fields may be missing
_MAX_JSON_BYTES = 1 << 28  # of a JSON file that is read as a whole
_JSON_FORMATS = "an array of objects, or the format of SQuAD's releases; one object per line is .jsonl"


class _Collected:
    """Rows of a file that become a table of at most `size` rows."""

    def __init__(self, path: Path, size: int | None):
        self.path, self.size = display_name(path), size
        self.names: list[str] | None = None
        self.bad: list[UnreadableLine] = []
        self.tables = 0
        self._rows: list[Sequence[Any]] = []
        self._lines: list[int] = []
        self._has_answers = False  # whether a row so far had a list of answers

    def add(self, row: Sequence[Any], line: int) -> bool:
        """Add a row; returns True if the table is full."""
        self._rows.append(row)
        self._lines.append(line)
        return len(self._rows) == self.size

    def table(self) -> RawTable:
        """The table of the rows so far, which are then dropped."""
        width = len(self.names or [])
        if any(len(row) < width for row in self._rows):
            self._rows = [[*row, *[None] * (width - len(row))] for row in self._rows]
        table = make_table(self.path, self.names or [], self._rows_of_table(), self._lines, self.bad)
        if self.size is not None:
            table = replace(table, rows=self._rows)
        self._rows = []
        self._lines = []
        self.bad[:] = []
        self.tables += 1
        return table

    def _rows_of_table(self) -> list[Sequence[Any]]:
        """The rows; lists of answers, as in SQuAD's releases, become two lists, of texts and of starts."""
        if "answers" not in (self.names or []):
            return self._rows
        column = (self.names or []).index("answers")
        self._has_answers |= any(row[column] and _is_answers(row[column]) for row in self._rows)
        if not self._has_answers:
            return self._rows
        return [
            [*row[:column], _as_lists(row[column]), *row[column + 1 :]] if _is_answers(row[column]) else row
            for row in self._rows
        ]

    def rest(self) -> Iterator[RawTable]:
        """The table of the last rows; an empty one only if the file has no rows at all."""
        if self._rows or self.bad or not self.tables:
            yield self.table()


def _is_answers(value: Any) -> bool:
    """True for a list of answers {"text": ..., "answer_start": ...}, which may be empty."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and {"text", "answer_start"} <= part.keys() for part in value
    )


def _as_lists(answers: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list of answers as two lists, of texts and of starts."""
    return {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}


def _delimited_batches(collected: _Collected, rows: Iterator[tuple[int, list[str]]]) -> Iterator[RawTable]:
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
    collected = _Collected(path, size)
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
    collected = _Collected(path, size)
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


def _jsonl_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read one JSON object per line; a field that a line lacks is null.

    A table has a column for each field up to its last line, so later tables may have more columns.
    """
    collected = _Collected(path, size)
    names: dict[str, None] = {}  # those of `collected`, in order
    for number, line in enumerate(text_lines(path, collected.bad, "\n"), start=1):
        if not line.strip():
            continue
        try:
            record = from_json(line)
        except ValueError as error:
            reason = str(error).replace(" at line 1 column", " at column")
            if reason.startswith("EOF"):
                reason = "the line ends inside an object, a list or a text; each line must be one row"
            elif number == 1 and texts:
                reason += f"; expected: rows such as {json.dumps(dict.fromkeys(texts, '...'))}"
            if number == 1 and path == STANDARD:
                reason += "; for CSV, add `format='csv'`"
            collected.bad.append(UnreadableLine(number, f"not JSON: {reason}"))
            continue
        problem = _fields_problem(record, names, texts)
        if not problem and (name := repeated_key(line, record)):
            problem = f"the key {name!r} occurs twice"
        if problem:
            collected.bad.append(UnreadableLine(number, problem))
            continue
        if record.keys() - names.keys():
            names.update(dict.fromkeys(record))
            collected.names = list(names)
        if collected.add([record.get(name) for name in names], number):
            yield collected.table()
    yield from collected.rest()


def _fields_problem(record: Any, names: Collection[str], texts: Sequence[str]) -> str | None:
    """The problem of one JSON line, given the fields of the lines before and the text columns; or None."""
    if isinstance(record, list):
        return "a JSON list in place of an object with fields"
    if not isinstance(record, dict) or not record:
        return "not a JSON object with fields"
    extra = [name for name in record if name not in names]
    if names and len(names) + len(extra) > _MAX_FIELDS:
        return f"the field {extra[0]!r} is one too many: the rows have more than {_MAX_FIELDS:,} fields"
    for name in texts:
        value = record.get(name)
        if value is not None and not is_utf8_text(value):
            return f"the field {name!r} is {json.dumps(value)[:40]}, not text"
    return None


def _txt_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read one text per line; blank lines are skipped.

    The column is called "text", or has the name of the text column if there is only one.
    """
    collected = _Collected(path, size)
    collected.names = list(texts) if len(texts) == 1 else ["text"]
    for number, line in enumerate(text_lines(path, collected.bad, "\n", legacy=True), start=1):
        if line.strip() and collected.add([line.rstrip("\r\n")], number):
            yield collected.table()
    yield from collected.rest()


def _json_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read an array of JSON objects, or a file in the format of SQuAD's releases, as a whole.

    Such a file becomes one row per question, with the columns id, title, context, question and answers.
    """
    collected = _Collected(path, size)
    with open_bytes(path) as handle:
        content = handle.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise UserError(
            f"{path} has more than {_MAX_JSON_BYTES:,} bytes",
            expected="a smaller file, or one JSON object per line (.jsonl)",
        )
    try:
        records = from_json(content.decode(json.detect_encoding(content)))
        if isinstance(records, dict) and isinstance(records.get("data"), list):
            records = records["data"]
            if any(isinstance(record, dict) and "paragraphs" in record for record in records):
                records = list(_squad_rows(records))
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}", expected=_JSON_FORMATS) from error
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"a part of it lacks {error}" if isinstance(error, KeyError) else "a part has another form"
        raise UserError(
            f"{path} does not have the format of SQuAD: {lacks}", expected=_JSON_FORMATS
        ) from error
    if not isinstance(records, list):
        raise UserError(f"{path} does not hold a list of rows", expected=_JSON_FORMATS)
    names: dict[str, None] = {}
    for number, record in enumerate(records, start=1):
        if problem := _fields_problem(record, names, texts):
            raise UserError(f"{path}, row {number - 1}: {problem}", expected=_JSON_FORMATS)
        names.update(dict.fromkeys(record))
        collected.names = list(names)
        if collected.add([record.get(name) for name in names], number):
            yield replace(collected.table(), lines=None, first=number - (size or 0))
    for table in collected.rest():
        yield replace(table, lines=None, first=len(records) - table.table.num_rows)


def _squad_rows(articles: list[Any]) -> Iterator[dict[str, Any]]:
    """The questions of a file in the format of SQuAD 1.1 or 2.0."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers")
                yield {
                    "id": question["id"],
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": None if answers is None else _as_lists(answers),
                }


_Batches = Callable[[Path, Sequence[str], int | None], Iterator[RawTable]]
READERS: dict[str, _Batches] = {
    ".parquet": parquet_batches,
    ".jsonl": _jsonl_batches,
    ".json-lines": _jsonl_batches,
    ".json": _json_batches,
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
