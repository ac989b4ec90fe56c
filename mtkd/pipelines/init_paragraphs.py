"""Paragraphs without questions, about which a pipeline of `mtkd init` generates questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from mtkd.pipelines.init_data import Part
from tasks.data.file_readers import suffix_of
from tasks.guess import Guess

_LINES = ".txt"
_LINES_COLUMN = "text"  # the column that `read_file` gives the lines of a .txt file
_READ_IN_PLACE = (_LINES, ".jsonl", ".parquet")  # by `mtkd augment questions generate`


@dataclass(frozen=True)
class Paragraphs:
    """The paragraphs of all files together, in the column `column`."""

    part: Part
    column: str


def separate_paragraphs(others: Sequence[Part], guess: Guess) -> tuple[list[Part], Paragraphs | None]:
    """The files of unlabelled rows, and the paragraphs of the other files.

    For a span task, paragraphs are the lines of a .txt file, or rows with a context but no question. Other
    tasks have none.
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
    """One file that can be read as it is, or the paragraphs of several as a table."""
    columns = [_LINES_COLUMN if _suffix(part) == _LINES else context for part in parts]
    if len(parts) == 1 and _suffix(parts[0]) in _READ_IN_PLACE:
        return Paragraphs(parts[0], columns[0])
    texts = [part.raw.table[column] for part, column in zip(parts, columns, strict=True)]
    chunks = [chunk.cast(pa.string()) for text in texts for chunk in text.chunks]
    return Paragraphs(Part.of(pa.table({context: pa.chunked_array(chunks, pa.string())})), context)


def _suffix(part: Part) -> str:
    return (suffix_of(part.path) or "") if part.path else ""
