"""The lines of a text file or of standard input, in its encoding, and the delimiter of a CSV file."""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import io
import json
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.common.errors import MtkdWarning, UserError
from tasks.common.reading import require_file
from tasks.data.raw_table import UnreadableLine

STANDARD = Path("-")  # standard input, or output
_INPUTS = frozenset(map(Path, ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")))
_OUTPUTS = frozenset(map(Path, ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))
_LONGEST = 1 << 26  # characters of a line
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_BINARY = {  # the first bytes of files that are often given in place of text -> what they are, and a hint
    b"PAR1": ("a parquet file", "give it a name that ends in .parquet"),
    b"\x1f\x8b": ("compressed by gzip", "unpack it, or rename it to end in .gz"),
    b"PK\x03\x04": ("a zip archive or a spreadsheet (.xlsx)", "save the rows as CSV"),
    b"\xff\xfe\0\0": ("UTF-32", "save it as UTF-8"),
}
_BINARY_INPUT = {  # hints for standard input, which has no name
    b"PAR1": "name the file instead: parquet cannot be read from standard input",
    b"\x1f\x8b": "unpack it first: `gunzip -c rows.jsonl.gz | ...`",
}


def input_path(path: Path) -> Path:
    """The path of an input; `STANDARD` for the paths that systems give to standard input."""
    return STANDARD if path in _INPUTS else path


def output_path(path: Path) -> Path:
    """The path of an output; `STANDARD` for the paths that systems give to standard output."""
    return STANDARD if path in _OUTPUTS else path


def display_name(path: Path) -> str:
    """The name of a file in messages; "standard input" for `STANDARD`."""
    return "standard input" if path == STANDARD else str(path)


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """The bytes of a file, unpacked if its name ends in .gz, or of standard input.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if path == STANDARD:
            if sys.stdin is None:
                raise UserError("standard input is closed", expected="rows on it, or a file")
            source = sys.stdin.buffer
            yield source if hasattr(source, "peek") else io.BufferedReader(source)  # type: ignore[type-var]
        else:
            require_file(path)
            with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as handle:
                yield handle
    except (OSError, EOFError, zlib.error) as error:  # gzip raises the last two for damaged files
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"cannot read {display_name(path)}: {reason}") from error


def limited_lines(handle: Any, name: str) -> Iterator[Any]:
    """The lines of an open file, of text or bytes; raises UserError for one of more than 64 MiB."""
    number = 0
    while line := handle.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST:
            raise UserError(f"{name}, line {number}: longer than {_LONGEST:,} characters")
        yield line


def text_lines(path: Path, bad: list[UnreadableLine], newline: str, *, legacy: bool = False) -> Iterator[str]:
    """The lines of a file in UTF-8 (with or without a byte-order mark) or UTF-16, read one by one.

    Args:
        bad: lines that cannot be decoded are added to it.
        newline: as for `open`.
        legacy: if the first line with other characters than ASCII is not UTF-8, read the file as Windows-1252
            (or Latin-1, for bytes without a meaning there), with a warning.

    Raises:
        UserError: the file cannot be read.
    """
    with open_bytes(path) as handle:
        head = handle.peek(4096)
        _refuse_binary(path, head)
        utf16 = _utf16(head)
        text = io.TextIOWrapper(handle, utf16 or "utf-8", "replace" if utf16 else "surrogateescape", newline)
        encoding = utf16 or ("" if legacy else "utf-8")  # "": not known yet
        try:
            for number, line in enumerate(limited_lines(text, display_name(path)), start=1):
                if not utf16 and not line.isascii():
                    raw = line.encode(errors="surrogateescape")
                    if not encoding:
                        encoding = _encoding(raw)
                        _warn(path, number, encoding)
                    line = _decoded(raw, encoding, number, bad)
                yield line.removeprefix("\ufeff") if number == 1 else line
        finally:
            text.detach()  # standard input stays open


def _refuse_binary(path: Path, head: bytes) -> None:
    """Raise UserError if a file, or standard input, starts like a file of another format than text."""
    for start, (kind, hint) in _BINARY.items():
        if head.startswith(start):
            is_input = path == STANDARD
            raise UserError(
                f"{display_name(path)} is not text: it is {kind}",
                expected="JSON lines, CSV or TSV" if is_input else "the format that its name says",
                hint=_BINARY_INPUT.get(start, hint) if is_input else hint,
            )


def _utf16(head: bytes) -> str | None:
    """The kind of UTF-16 that a file starts with; None if it looks like bytes of another encoding."""
    if head[:2] in _BYTE_ORDER_MARKS:
        return "utf-16"
    half = len(head) // 4
    if head[1::2].count(0) > half:
        return "utf-16-le"
    return "utf-16-be" if head[::2].count(0) > half else None


def _encoding(raw: bytes) -> str:
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode(encoding)
            return encoding
    return "latin-1"


@functools.cache  # a file is read several times
def _warn(path: Path, number: int, encoding: str) -> None:
    if encoding != "utf-8":
        warnings.warn(
            f"{display_name(path)} is not UTF-8 (line {number}): it is read as {encoding}. If letters come "
            "out wrong, convert the file to UTF-8",
            MtkdWarning,
            stacklevel=3,
        )


def _decoded(raw: bytes, encoding: str, number: int, bad: list[UnreadableLine]) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-8":
            byte = raw[error.start]
            bad.append(UnreadableLine(number, f"not UTF-8: byte 0x{byte:02x} at position {error.start}"))
            return raw.decode(errors="replace")
        return raw.decode("latin-1")


def repeated_key(line: str, record: Any) -> str | None:
    """A key that occurs twice in an object of a JSON line, whose last value was read; None if there is none.

    Args:
        record: what was read from the line.
    """
    if isinstance(record, dict) and line.count(":") == len(record):
        return None  # as nearly always, since each key has a colon
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)

    json.loads(line, object_pairs_hook=note, parse_int=str)  # as text, since it may have thousands of digits
    return repeated[0] if repeated else None


def delimiter_of(header: str, columns: Sequence[str]) -> str:
    """The delimiter of a CSV file with this first line: a comma, semicolon, tab or pipe.

    It is the one that finds most of the wanted columns, then the one that finds most columns.
    """

    def columns_found(delimiter: str) -> tuple[int, int]:
        try:
            names = next(csv.reader([header], delimiter=delimiter), [])
        except csv.Error:  # without a delimiter, the line is one field, which may be too long
            names = []
        return len(set(names) & set(columns)), len(names)

    return max(",;\t|", key=columns_found)
