"""Rows that stay in their parquet files until they are needed, so that each worker reads its own.

They are planned from the footers of the files alone. Workers validate and digest blocks of them
(`validate_and_digest`), and then read the rows of their shards (`FileRows.read`).
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import UserError
from tasks.data import loading, rows
from tasks.data.file_readers import BATCH_ROWS, suffix_of
from tasks.data.loading import digest_rows, parse_tables, require_no_errors
from tasks.data.parquet_files import open_parquet
from tasks.data.raw_table import RawTable, check_header
from tasks.data.row_checks import ProblemSummary
from tasks.data.rows import Rows, concat
from tasks.data.schema import fit_columns
from tasks.data.sources import DataSource
from tasks.task import Task

_MAX_BLOCKS = 16  # per part: 1,048,576 rows, the default row group of pyarrow


@dataclass(frozen=True)
class FileRange:
    """Consecutive rows of a parquet file.

    Attributes:
        path: the file, absolute.
        start, stop: its first row, counted from 0, and the one after the last.
        file_size, mtime_ns: size in bytes and modification time in nanoseconds, when the rows were planned;
            used to detect changes.
    """

    path: Path
    start: int
    stop: int
    file_size: int
    mtime_ns: int

    @staticmethod
    def of_file(path: Path) -> FileRange:
        """All rows of a file, by its footer; UserError if it names a column twice."""
        status = path.stat()
        footer = pq.read_metadata(path)
        check_header(path, footer.schema.to_arrow_schema().names)
        return FileRange(path.absolute(), 0, footer.num_rows, status.st_size, status.st_mtime_ns)

    def __len__(self) -> int:
        return self.stop - self.start

    def tables(self, columns: Sequence[str] | None = None, size: int | None = None) -> Iterator[pa.Table]:
        """The rows, in batches.

        Args:
            columns: the columns to read; None = all.
            size: the maximum number of rows of a table; None = `BATCH_ROWS`.

        Raises:
            UserError: the file has changed since it was planned, or cannot be read.
        """
        self._require_unchanged()
        try:
            with open_parquet(self.path) as file:
                footer = file.metadata
                sizes = np.array([footer.row_group(n).num_rows for n in range(footer.num_row_groups)])
                ends = np.cumsum(sizes)
                groups = np.flatnonzero((ends > self.start) & (ends - sizes < self.stop))
                row = int(ends[groups[0]] - sizes[groups[0]])
                for batch in file.iter_batches(
                    size or BATCH_ROWS, row_groups=groups.tolist(), columns=columns
                ):
                    first = min(max(self.start - row, 0), batch.num_rows)
                    part = batch.slice(first, self.stop - row - first)
                    row += batch.num_rows
                    if part.num_rows:
                        yield pa.Table.from_batches([part]).replace_schema_metadata(None)
                    if row >= self.stop:
                        break
        except (pa.ArrowException, OSError, IndexError) as error:
            self._require_unchanged()
            raise UserError(f"cannot read {self.path} as parquet: {error}") from error
        self._require_unchanged()

    def _require_unchanged(self) -> None:
        try:
            status = self.path.stat()
        except OSError as error:
            raise UserError(
                f"cannot read {self.path} on {platform.node()}: {error.strerror}",
                expected="the data at the same path on all machines",
            ) from error
        if (status.st_size, status.st_mtime_ns) != (self.file_size, self.mtime_ns):
            raise UserError(
                f"{self.path} has changed while the command was reading it",
                hint="run the command again when nothing else writes the file",
            )


class RowsInFiles(ABC):
    """Consecutive rows that stay in files; they are sent to other processes without their content.

    Attributes:
        digest: as `tasks.data.loading.digest_blocks` of the rows; "" = not yet computed.
    """

    digest: str

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @property
    @abstractmethod
    def n_texts(self) -> int:
        """The number of texts of each row."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> RowsInFiles:
        """The rows from `start` up to `stop`, at least one."""

    @abstractmethod
    def read(self) -> Rows:
        """The rows; UserError if a file has changed since it was planned, or cannot be read."""


@dataclass(frozen=True)
class FileRows(RowsInFiles):
    """Consecutive rows of a split, in parquet files.

    Attributes:
        task, split: what the rows belong to.
        display_path: the file or the pattern of files, as messages name it.
        ranges: where the rows are, in order.
        first: the number of rows of the split before these.
        rows_per_block: how many rows have one digest.
        digest: as `tasks.data.loading.digest_blocks` of the rows; "" = not yet computed.
    """

    task: Task
    split: str
    display_path: str
    ranges: tuple[FileRange, ...]
    first: int
    rows_per_block: int
    digest: str = ""

    @cached_property
    def _ends(self) -> np.ndarray:
        """(ranges,) int64, the number of rows up to the end of each range."""
        return np.cumsum([len(part) for part in self.ranges])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def n_texts(self) -> int:
        """The number of texts of each row."""
        return len(self.task.columns)

    def slice(self, start: int, stop: int) -> FileRows:
        """The rows from `start` up to `stop`, at least one."""
        chosen = []
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        for number in range(first, last + 1):
            part = self.ranges[number]
            # From row numbers of this object to those of the file.
            shift = part.stop - int(self._ends[number])
            begin, end = max(start + shift, part.start), min(stop + shift, part.stop)
            chosen.append(replace(part, start=begin, stop=end))
        return replace(self, ranges=tuple(chosen), first=self.first + start, digest="")

    def split_for_workers(self, count: int) -> list[FileRows]:
        """Split into parts of 1 to 16 whole blocks: about `count` parts, or more if there are many rows."""
        size = self.rows_per_block * min(max(1, len(self) // self.rows_per_block // count), _MAX_BLOCKS)
        return [self.slice(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def read(self) -> Rows:
        """The rows, validated, with the uids that `tasks.data.loading.load_rows` gives them.

        Raises:
            UserError: a file has changed since it was planned, or a row is invalid.
        """
        return concat(self.batches())

    def batches(self) -> Iterator[Rows]:
        """The rows of `read`, in batches, so that they need not fit into memory together."""
        parts = parse_tables(self.task, self.split, self.raw_tables(), self.first)
        return require_no_errors(parts, f"{self.task.name}/{self.split}")

    def raw_tables(self) -> Iterator[RawTable]:
        """The raw rows with the task's columns, in batches; no table crosses a block boundary."""
        row = self.first
        for part in self.ranges:
            for table in part.tables():
                while table.num_rows:
                    raw = RawTable(
                        table.slice(0, self.rows_per_block - row % self.rows_per_block),
                        self.display_path,
                        first=row,
                    )
                    yield replace(raw, table=fit_columns(self.task, self.split, raw))
                    row += raw.table.num_rows
                    table = table.slice(raw.table.num_rows)


def plan_file_rows(source: DataSource, task: Task, split: str) -> FileRows | None:
    """The rows of a split as ranges of its files, of which only the footers are read.

    None if the split is not in parquet files, is small enough to be kept in memory, or has rows whose meaning
    depends on others (groups, the kind of soft labels, unique ids of `span` tasks); also if a file has no
    rows or cannot be read, which `tasks.data.loading.load_rows` reports.

    Raises:
        UserError: a file names a column twice.
    """
    files = source.split_files(task, split)
    needs_whole_split = task.group is not None or task.soft_labels is not None or task.type.predicts_spans
    if files is None or needs_whole_split or any(suffix_of(path) != ".parquet" for path in files.paths):
        return None
    try:
        ranges = tuple(map(FileRange.of_file, files.paths))
    except (pa.ArrowException, OSError):
        return None
    planned = FileRows(task, split, files.display_path, ranges, 0, loading.DIGEST_BLOCK)
    return planned if all(map(len, ranges)) and len(planned) > rows.MAPPED_ROWS else None


def validate_and_digest(file_rows: FileRows) -> tuple[ProblemSummary, list[str] | None]:
    """Validate rows that start at a block boundary, and digest each block.

    Returns:
        the errors, and the digest of each block; None if there are errors.

    Raises:
        UserError: a file lacks a column, has changed since it was planned, or cannot be read.
    """
    all_errors = ProblemSummary()
    digests = list[str]()
    block_parts = list[Rows]()
    tables = file_rows.raw_tables()
    for errors, part in parse_tables(file_rows.task, file_rows.split, tables, file_rows.first):
        all_errors.merge(errors)
        if part is None or all_errors.total:
            continue
        block_parts.append(part)
        if sum(map(len, block_parts)) == file_rows.rows_per_block:
            digests.append(digest_rows(concat(block_parts)))
            block_parts = []
    if all_errors.total:
        return all_errors, None
    return all_errors, [*digests, *([digest_rows(concat(block_parts))] if block_parts else [])]
