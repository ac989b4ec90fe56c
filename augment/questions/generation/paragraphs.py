"""The paragraphs to ask about, read from files or the hub, and selected and cut by their word count."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from augment.questions.sentences import group_sentences, sentences
from tasks.common.errors import UserError, counted, unknown
from tasks.data.plain_text import PlacedText, TextFiles
from tasks.data.rows import Rows

HUB = "hub:"


@dataclass(frozen=True)
class Words:
    """The allowed word count of a paragraph; longer paragraphs are cut at sentence ends."""

    least: int
    most: int

    @staticmethod
    def parse(spec: str) -> Words:
        """Parse a range such as "200:320"; UserError if it is invalid."""
        match = re.fullmatch(r"(\d+):(\d+)", spec.strip())
        words = Words(*map(int, match.groups())) if match else None
        if words is None or not 1 <= words.least <= words.most:
            raise UserError(
                f"`words={spec!r}` is not valid", expected="MIN:MAX with 1 <= MIN <= MAX, such as 200:320"
            )
        return words

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph: a unique name, its text, and its source (a title or a file name)."""

    uid: str
    text: str
    source: str


@dataclass(frozen=True)
class Counts:
    """How many paragraphs were read, cut, shortened, left out and kept.

    Attributes:
        read: all paragraphs; `empty` were blank, `outside` had no piece with an allowed word count.
        cut: paragraphs that were cut into a total of `pieces` pieces.
        shortened: pieces of which the generator reads only the sentences that fit.
        too_long: pieces left out because no sentence fits the generator.
        not_english: pieces left out because the rules know English only.
        kept: pieces that questions are generated from.
    """

    read: int = 0
    empty: int = 0
    outside: int = 0
    cut: int = 0
    pieces: int = 0
    shortened: int = 0
    too_long: int = 0
    not_english: int = 0
    kept: int = 0

    def __add__(self, other: Counts) -> Counts:
        """The counts of the paragraphs of both."""
        both = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(one + another for one, another in both))

    def to_json(self) -> dict[str, int]:
        """The counts by name."""
        return dataclasses.asdict(self)

    def sentence(self) -> str:
        """The counts as a sentence."""
        parts = [
            (self.empty, "blank"),
            (self.outside, "outside the word range"),
            (self.cut, f"cut into {counted(self.pieces, 'piece')}"),
            (self.shortened, "too long for the generator (it read the sentences that fit)"),
            (self.too_long, "left out because no sentence fits the generator"),
            (self.not_english, "skipped because the rules work for English only"),
        ]
        details = "; ".join(f"{count} {outcome}" for count, outcome in parts if count)
        start = f"{counted(self.read, 'paragraph')} read, {self.kept:,} kept"
        return f"{start}: {details}." if details else f"{start}."


def open_paragraphs(spec: str, column: str, title: str, split: str = "train") -> Iterator[Paragraph]:
    """Open the paragraphs of a file, a directory, or a dataset on the hub ("hub:NAME[/CONFIG]").

    Raises:
        UserError: the text or the column does not exist (at once), or a line cannot be read (on iteration).
    """
    if spec.startswith(HUB):
        return _of_hub(spec.removeprefix(HUB), column, title, split)
    path = Path(os.path.expanduser(spec))
    return _of_files(TextFiles.open(path, column), path, title)


def names_in_uids(files: TextFiles, root: Path) -> dict[Path, str]:
    """File -> its name in the uids of its paragraphs."""
    names = {path: _stem(path, root) for path in files.paths}
    if len(set(names.values())) < len(names):  # a.txt beside a.jsonl
        names = {path: str(path.relative_to(root)) for path in files.paths}
    return names


def _of_files(files: TextFiles, root: Path, title: str) -> Iterator[Paragraph]:
    names = names_in_uids(files, root)

    def paragraph(text: PlacedText) -> Paragraph:
        return Paragraph(f"{names[text.file]}/{text.number}", text.text, text.title or text.file.name)

    return map(paragraph, files.placed(title))


def _stem(path: Path, root: Path) -> str:
    relative = path.relative_to(root) if root.is_dir() else Path(path.name)
    return str(relative).split(".")[0]


def _of_hub(name: str, column: str, title: str, split: str) -> Iterator[Paragraph]:
    from tasks.data.hub_data import fetch

    parts = name.split("/")
    if not all(parts) or len(parts) > 3:
        raise UserError(
            f"`text={HUB + name!r}` is not valid", expected="hub:OWNER/NAME or hub:OWNER/NAME/CONFIG"
        )
    table = fetch("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split)
    if column not in table.column_names:
        raise unknown(f"text column of {name}", column, table.column_names, hint="`text_column='NAME'`")
    return _of_table(name, table[column], table[title] if title in table.column_names else None)


def _of_table(name: str, texts: pa.ChunkedArray, titles: pa.ChunkedArray | None) -> Iterator[Paragraph]:
    for number, text in enumerate(texts):
        source = titles[number].as_py() if titles is not None else None
        yield Paragraph(f"{name}/{number}", str(text.as_py() or "").strip(), str(source or name))


def select_paragraphs(paragraphs: Iterable[Paragraph], words: Words | None) -> tuple[list[Paragraph], Counts]:
    """Select the non-blank paragraphs; with `words`, cut them and keep the pieces in its range."""
    chosen: list[Paragraph] = []
    read = empty = outside = cut = pieces = 0
    for paragraph in paragraphs:
        read += 1
        if not paragraph.text.strip():
            empty += 1
            continue
        parts = _in_range(paragraph, words) if words else [paragraph]
        chosen += parts
        outside += not parts
        if parts and parts[0] is not paragraph:
            cut, pieces = cut + 1, pieces + len(parts)
    return chosen, Counts(read, empty, outside, cut, pieces, kept=len(chosen))


def _in_range(paragraph: Paragraph, words: Words) -> list[Paragraph]:
    count = len(paragraph.text.split())
    if count <= words.most:
        return [paragraph] if count >= words.least else []
    parts = sentences(paragraph.text)
    sizes = [len(part.split()) for part in parts]
    return [
        Paragraph(f"{paragraph.uid}.{number}", " ".join(parts[start:stop]), paragraph.source)
        for number, (start, stop) in enumerate(group_sentences(sizes, words.least, words.most))
        if words.least <= sum(sizes[start:stop]) <= words.most
    ]


def as_rows(task: str, paragraphs: Sequence[Paragraph]) -> Rows:
    """Convert paragraphs to rows of two texts: the paragraph and its source."""
    uids, texts, sources = (
        pa.array([getattr(paragraph, name) for paragraph in paragraphs], pa.string())
        for name in ("uid", "text", "source")
    )
    return Rows(task, "text", uids, (texts, sources), np.full(len(uids), np.nan))


def paragraphs_of(rows: Rows) -> Iterator[Paragraph]:
    """The paragraphs that `as_rows` has converted."""
    for part in rows.parts():
        columns = (column.to_pylist() for column in (part.uids, *part.texts))
        yield from map(Paragraph, *columns)
