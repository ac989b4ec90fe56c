"""Paragraphs that stay in their parquet files, so that each worker reads its own.

They are planned from the footers of the files. Workers select the paragraphs of ranges of rows and count
them, so that every selected paragraph has a number; then they digest blocks of them, and read those of their
shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from augment.questions.generation.paragraph_selection import ParagraphSelection
from augment.questions.generation.paragraphs import Counts, Paragraph, as_rows, names_in_uids
from mtkd.output_files.worker_pools import WorkerPool
from tasks.common.progress import Advance
from tasks.common.sha256 import digest_bytes
from tasks.data import loading, rows
from tasks.data.file_rows import FileRange, RowsInFiles
from tasks.data.loading import digest_rows
from tasks.data.parquet_files import parquet_errors
from tasks.data.plain_text import TextFiles, clean
from tasks.data.raw_table import python_values
from tasks.data.rows import Rows, concat

CHUNK = 1024  # rows of a file whose selected paragraphs are counted together
_MAX_CHUNKS = 64  # per task of a worker


@dataclass(frozen=True)
class ParagraphFile:
    """Consecutive rows of a parquet file of paragraphs, which begin with a chunk.

    Attributes:
        name: the file's name in uids.
        path: the file, as messages name it.
        text, title: the columns to read; `title` is None if the file has no such column.
        rows_per_chunk: how many rows have one count of selected paragraphs.
    """

    range: FileRange
    name: str
    path: Path
    text: str
    title: str | None
    rows_per_chunk: int

    @property
    def n_chunks(self) -> int:
        """The number of chunks, the last of which may be shorter."""
        return -(-len(self.range) // self.rows_per_chunk)

    def slice(self, start: int, stop: int) -> ParagraphFile:
        """The chunks from `start` up to `stop`."""
        begin = self.range.start + start * self.rows_per_chunk
        end = min(self.range.start + stop * self.rows_per_chunk, self.range.stop)
        return replace(self, range=replace(self.range, start=begin, stop=end))

    def chunks(self) -> Iterator[list[Paragraph]]:
        """The paragraphs of each chunk.

        Raises:
            UserError: the file has changed since it was planned, or cannot be read.
        """
        paragraphs = self._paragraphs()
        while chunk := list(itertools.islice(paragraphs, self.rows_per_chunk)):
            yield chunk

    def _paragraphs(self) -> Iterator[Paragraph]:
        number = self.range.start
        columns = [self.text, *([self.title] if self.title else [])]
        for table in self.range.tables(columns, self.rows_per_chunk):
            with parquet_errors(self.path):
                texts = python_values(table[self.text])
                titles = python_values(table[self.title]) if self.title else [None] * len(texts)
            for text, title in zip(texts, titles, strict=True):
                yield Paragraph(f"{self.name}/{number}", clean(text), clean(title) or self.path.name)
                number += 1


@dataclass(frozen=True, eq=False)
class ParagraphsInFiles(RowsInFiles):
    """Consecutive selected paragraphs.

    Attributes:
        task: the name of the task.
        files: the files, or the parts of files, that have them.
        selected: (chunks of all files,) int64, how many paragraphs are selected from each chunk.
        start, stop: the first of these paragraphs, counted from 0, and the one after the last.
    """

    task: str
    selection: ParagraphSelection
    files: tuple[ParagraphFile, ...]
    selected: np.ndarray
    start: int
    stop: int
    digest: str = ""

    n_texts = 2

    @cached_property
    def _ends(self) -> np.ndarray:
        """(chunks,) the number of selected paragraphs up to the end of each chunk."""
        return np.cumsum(self.selected)

    @cached_property
    def _first_chunks(self) -> np.ndarray:
        """(files + 1,) the number of chunks before each file."""
        return np.cumsum([0, *(file.n_chunks for file in self.files)])

    def __len__(self) -> int:
        return self.stop - self.start

    def slice(self, start: int, stop: int) -> ParagraphsInFiles:
        """The paragraphs from `start` up to `stop`, at least one, with only the chunks that have them."""
        start, stop = self.start + start, self.start + stop
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        files = []
        numbers = np.searchsorted(self._first_chunks, [first, last], side="right") - 1
        for number in range(numbers[0], numbers[1] + 1):
            before = int(self._first_chunks[number])
            file = self.files[number]
            files.append(file.slice(max(0, int(first) - before), min(file.n_chunks, int(last) + 1 - before)))
        selected = self.selected[first : last + 1]
        skipped = int(self._ends[first] - selected[0])
        return replace(
            self,
            files=tuple(files),
            selected=selected.copy(),
            start=start - skipped,
            stop=stop - skipped,
            digest="",
        )

    def read(self) -> Rows:
        """The paragraphs as rows; UserError if a file has changed since it was planned, or cannot be read."""
        parts, end = [as_rows(self.task, [])], 0
        for chunk in itertools.chain.from_iterable(file.chunks() for file in self.files):
            chosen, _ = self.selection.select(chunk)
            parts.append(as_rows(self.task, chosen[max(0, self.start - end) : max(0, self.stop - end)]))
            end += len(chosen)
        return concat(parts)

    def parts(self, size: int) -> Iterator[ParagraphsInFiles]:
        """The paragraphs in parts of this size, except the last."""
        for start in range(0, len(self), size):
            yield self.slice(start, min(start + size, len(self)))


def plan_files(files: TextFiles, root: Path, title: str) -> list[ParagraphFile] | None:
    """The files of paragraphs, of which only the footers are read.

    None if they are not all parquet files, cannot be read, or are small enough to be kept in memory.
    """
    if any(path.suffix != ".parquet" for path in files.paths):
        return None
    names = names_in_uids(files, root)
    planned = []
    try:
        for path in files.paths:
            titled = title if title in pq.read_schema(path).names else None
            place = FileRange.of_file(path)
            planned.append(ParagraphFile(place, names[path], path, files.column, titled, CHUNK))
    except (pa.ArrowException, OSError):
        return None
    planned = [file for file in planned if len(file.range)]
    return planned if sum(len(file.range) for file in planned) > rows.MAPPED_ROWS else None


def select_in_files(
    task: str, selection: ParagraphSelection, files: list[ParagraphFile], pool: WorkerPool, advance: Advance
) -> tuple[ParagraphsInFiles, Counts]:
    """Let other processes select the paragraphs of some files.

    Args:
        advance: called with the number of rows whose paragraphs have just been selected.

    Raises:
        UserError: a file has changed since it was planned, or cannot be read.
    """
    total_chunks = sum(file.n_chunks for file in files)
    step = min(max(1, total_chunks // (2 * pool.size)), _MAX_CHUNKS)
    parts = [
        file.slice(start, min(start + step, file.n_chunks))
        for file in files
        for start in range(0, file.n_chunks, step)
    ]
    counts, selected = Counts(), [np.zeros(0, np.int64)]
    results = pool.map(partial(_count_selected, selection), parts)
    for part, (of_part, of_chunks) in zip(parts, results, strict=True):
        counts += of_part
        selected.append(of_chunks)
        advance(len(part.range))
    numbers = np.concatenate(selected)
    paragraphs = ParagraphsInFiles(task, selection, tuple(files), numbers, 0, counts.kept)
    return paragraphs, counts


def add_digest(paragraphs: ParagraphsInFiles, pool: WorkerPool) -> ParagraphsInFiles:
    """The paragraphs with their digest, computed by other processes."""
    return replace(
        paragraphs, digest=digest_bytes(*pool.map(_digest_block, paragraphs.parts(loading.DIGEST_BLOCK)))
    )


def _count_selected(selection: ParagraphSelection, file: ParagraphFile) -> tuple[Counts, np.ndarray]:
    """The counts of the paragraphs of a part of a file, and how many are selected from each chunk."""
    total, selected = Counts(), list[int]()
    for chunk in file.chunks():
        chosen, counts = selection.select(chunk)
        total += counts
        selected.append(len(chosen))
    return total, np.array(selected, np.int64)


def _digest_block(paragraphs: ParagraphsInFiles) -> str:
    return digest_rows(paragraphs.read())
