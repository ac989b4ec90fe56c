"""Paragraphs without questions, about which a pipeline of `mtkd init` generates questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mtkd.pipelines.init_data import Part
from tasks.common.errors import UserError
from tasks.data.file_readers import suffix_of
from tasks.data.row_checks import is_blank
from tasks.guess import Guess
from tasks.guess_labels import is_text_column

_LINES = ".txt"
_LINES_COLUMN = "text"  # the column that `read_file` gives the lines of a .txt file
_READ_IN_PLACE = (_LINES, ".jsonl", ".parquet")  # by `mtkd augment questions generate`


@dataclass(frozen=True)
class Paragraphs:
    """The paragraphs of all files together, in the column `column`."""

    part: Part
    column: str


def separate_paragraphs(others: Sequence[Part], guess: Guess) -> tuple[list[Part], Paragraphs | None]:
    """Divide files without labels into unlabelled rows and paragraphs.

    For a span task, paragraphs are the lines of a .txt file, or the contexts in a file without a column of
    questions. Other tasks have none.

    Raises:
        UserError: a file of paragraphs has none, or its contexts are not text.
    """
    if guess.kind != "span":
        return list(others), None
    question, context = guess.columns
    rows: list[Part] = []
    parts: list[Part] = []
    for part in others:
        names = part.raw.table.column_names
        holds_paragraphs = _suffix(part) == _LINES or (context in names and question not in names)
        (parts if holds_paragraphs else rows).append(part)
    return rows, _joined(parts, context) if parts else None


def _joined(parts: Sequence[Part], context: str) -> Paragraphs:
    """A single file that the generator can read; otherwise, all paragraphs in one table."""
    columns = [_LINES_COLUMN if _suffix(part) == _LINES else context for part in parts]
    for part, column in zip(parts, columns, strict=True):
        _check_text(part, column)
    path = parts[0].path
    if len(parts) == 1 and path and path.name.endswith(_READ_IN_PLACE) and _is_utf8(path):
        return Paragraphs(parts[0], columns[0])
    texts = [part.raw.table[column] for part, column in zip(parts, columns, strict=True)]
    chunks = [chunk.cast(pa.string()) for text in texts for chunk in text.chunks]
    return Paragraphs(Part.of(pa.table({context: pa.chunked_array(chunks, pa.string())})), context)


def _is_utf8(path: Path) -> bool:
    """True for a file that the generator can decode; text in another encoding is copied."""
    if path.suffix == ".parquet":
        return True
    try:
        with path.open(encoding="utf-8") as lines:
            return all(True for _ in lines)
    except UnicodeDecodeError:
        return False


def _check_text(part: Part, column: str) -> None:
    """Raise UserError if a column is not text, or if all its texts are empty."""
    values = part.raw.table[column]
    if not is_text_column(values.type):
        raise UserError(
            f"the column {column!r} of {part.raw.path} is not text ({values.type})",
            expected="paragraphs, about which questions are generated",
        )
    if pc.all(is_blank(values)).as_py() is not False:
        raise UserError(f"{part.raw.path} has no paragraphs", hint="leave it out, or add texts to it")


def _suffix(part: Part) -> str:
    return (suffix_of(part.path) or "") if part.path else ""
