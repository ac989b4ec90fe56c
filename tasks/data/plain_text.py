"""Plain text of any size, read in chunks: the training data of task-agnostic recipes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from tasks.common.errors import UserError, brief, unknown
from tasks.common.reading import not_regular
from tasks.common.sha256 import digest_bytes
from tasks.data.parquet_files import open_parquet, parquet_errors
from tasks.data.raw_table import check_header, holds_text, python_values
from tasks.data.text_lines import limited_lines, open_bytes, repeated_key
from tasks.task import Task

TEXT_TASK = Task("text", "text", ("text",), metrics=(), validation=(), test=())
HELD_OUT = "held-out"  # the split of plain text on which the loss is measured
HELD_OUT_TEXT = f"{TEXT_TASK.name}/{HELD_OUT}"  # its name among scores
TEXTS_PER_CHUNK = 4096
_FORMATS = (".txt", ".jsonl", ".parquet", ".txt.gz", ".jsonl.gz")
_EDGE = 1 << 20


@dataclass(frozen=True)
class PlacedText:
    """A text (possibly blank) with its file, its number in that file from 0, and its title ("" = none)."""

    text: str
    file: Path
    number: int
    title: str


@dataclass(frozen=True)
class TextFiles:
    """Files of plain text: one text per line (.txt), row (.parquet) or JSON object (.jsonl).

    Attributes:
        paths: the files, in reading order.
        column: the column or key that holds the text.
    """

    paths: tuple[Path, ...]
    column: str = "text"

    @staticmethod
    def open(path: Path, column: str = "text") -> TextFiles:
        """The text files at `path`: one file, or all text files of a directory, sorted by name.

        Raises:
            UserError: nothing exists there, the format is not supported, or a parquet file lacks the column.
        """
        if not path.is_dir() and (problem := not_regular(path)):
            raise UserError(f"{path} {problem}", expected=f"text as {', '.join(_FORMATS)}")
        if not path.exists():
            raise UserError(f"no such file or directory: {path}", expected=f"text as {', '.join(_FORMATS)}")
        paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if _readable(p))
        if not paths or not all(map(_readable, paths)):
            raise _not_text(path)
        for file in paths:
            if file.suffix == ".parquet":
                _check_column(file, column)
        return TextFiles(tuple(paths), column)

    @property
    def digest(self) -> str:
        """A SHA-256 of the size and the first and last megabyte of each file."""
        parts: list[bytes | str] = [self.column]
        for path in self.paths:
            size = path.stat().st_size
            with open(path, "rb") as handle:
                parts += [path.name, str(size), handle.read(_EDGE)]
                handle.seek(max(0, size - _EDGE))
                parts.append(handle.read())
        return digest_bytes(*parts)

    def chunks(self, start: int = 0) -> Iterator[pa.StringArray]:
        """Yield the texts from number `start` on, in chunks of TEXTS_PER_CHUNK, without blank texts.

        Raises:
            UserError: a line is not UTF-8 or not JSON; names the file and line.
        """
        waiting: list[str] = []
        for number, text in enumerate(text for path in self.paths for text in self._texts(path)):
            if number < start:
                continue
            waiting.append(text)
            if len(waiting) == TEXTS_PER_CHUNK:
                yield pa.array(waiting, pa.string())
                waiting = []
        if waiting:
            yield pa.array(waiting, pa.string())

    def placed(self, title: str = "title") -> Iterator[PlacedText]:
        """Yield every text with its position; `title` names a column or key with its title, if there is one.

        Raises:
            UserError: as for `chunks`.
        """
        for path in self.paths:
            for number, (text, name) in enumerate(self._records(path, title)):
                yield PlacedText(clean(text), path, number, clean(name))

    def _texts(self, path: Path) -> Iterator[str]:
        return (text for raw, _ in self._records(path, None) if (text := clean(raw)))

    def _records(self, path: Path, title: str | None) -> Iterator[tuple[Any, Any]]:
        return self._rows(path, title) if path.suffix == ".parquet" else self._lines(path, title)

    def _rows(self, path: Path, title: str | None) -> Iterator[tuple[Any, Any]]:
        with parquet_errors(path), open_parquet(path) as file:
            columns = [self.column, *([title] if title in file.schema_arrow.names else [])]
            for batch in file.iter_batches(TEXTS_PER_CHUNK, columns=columns):
                texts = python_values(batch[self.column])
                names = python_values(batch[title]) if len(columns) == 2 else [None] * len(texts)
                yield from zip(texts, names, strict=True)

    def _lines(self, path: Path, title: str | None) -> Iterator[tuple[Any, Any]]:
        objects = ".jsonl" in path.suffixes
        with open_bytes(path) as handle:
            for number, raw in enumerate(limited_lines(handle, str(path)), 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{path}, line {number}: not UTF-8 ({error.reason})") from error
                try:
                    record = from_json(line) if objects and line.strip() else {self.column: line}
                    row = record[self.column], record.get(title)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise UserError(
                        f"{path}, line {number}: not a JSON object with the key {self.column!r}",
                        hint="pass `text_column='NAME'` if the text is under another key",
                    ) from error
                if not isinstance(row[0], str | None):
                    raise UserError(f"{path}, line {number}: {self.column} = {brief(row[0])} is not text")
                if objects and line.strip() and (key := repeated_key(line, record)):
                    raise UserError(f"{path}, line {number}: the key {key!r} occurs twice")
                yield row


def clean(value: Any) -> str:
    """A text without white space at its ends; "" for None."""
    return "" if value is None else str(value).strip()


def _readable(path: Path) -> bool:
    return path.is_file() and path.name.endswith(_FORMATS)


def _not_text(path: Path) -> UserError:
    """The error for a file or directory without plain text; tables as CSV may be meant."""
    problem = "is not a text file that can be read" if path.is_file() else "contains no text files"
    hint = "convert tables to JSON lines or parquet with a column of texts"
    if ".csv" in path.suffixes or ".tsv" in path.suffixes:
        problem = "is a table (CSV or TSV), which cannot be read as plain text"
        stem, _, kind = str(path).removesuffix(".gz").rpartition(".")
        separator = ", sep='\\t'" if kind == "tsv" else ""
        parquet = f"{stem}.parquet"
        hint = (
            f"convert it with `pandas.read_csv({str(path)!r}{separator}).to_parquet({parquet!r})`, and "
            "name its column of texts with `text_column='COLUMN'`"
        )
    return UserError(f"{path} {problem}", expected=", ".join(_FORMATS), hint=hint)


def _check_column(path: Path, column: str) -> None:
    """Check that a parquet file has a column of text."""
    with parquet_errors(path):
        schema = pq.read_schema(path)
    check_header(path, schema.names)
    if column not in schema.names:
        raise unknown(f"text column of {path}", column, schema.names, hint="pass `text_column='NAME'`")
    kind = schema.field(column).type
    if not holds_text(kind):
        raise UserError(f"{path}: column {column!r} holds {kind}, not text")
