"""Reading parquet files of raw rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import UserError
from tasks.common.reading import require_file
from tasks.data.raw_table import CLASS_NAMES, RawTable, check_header, without_views


def read_parquet(paths: Sequence[Path], label: str) -> RawTable:
    """Read one or more parquet shards as one table with the path `label`.

    Raises:
        UserError: a file is not parquet, or the shards have different columns.
    """
    with parquet_errors(label):
        tables = [pq.read_table(require_file(path), partitioning=None) for path in paths]
        check_header(label, tables[0].column_names)
        return RawTable(_plain(pa.concat_tables(tables)), label)


@contextlib.contextmanager
def parquet_errors(label: Path | str) -> Iterator[None]:
    """Turn the errors of a file that is not parquet, or of a text that is not UTF-8, into a UserError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"cannot read {label} as parquet: {error}") from error


def _plain(table: pa.Table) -> pa.Table:
    """The table without views, and without metadata other than the names of classes."""
    metadata = table.schema.metadata or {}
    kept = {key: metadata[key] for key in (CLASS_NAMES,) if key in metadata}
    return without_views(table).replace_schema_metadata(kept or None)


def open_parquet(path: Path) -> pq.ParquetFile:
    """A parquet file for `iter_batches`; by default, pyarrow would keep all that it has read so far."""
    return pq.ParquetFile(require_file(path), pre_buffer=False, buffer_size=1 << 16)


def parquet_batches(path: Path, texts: Sequence[str], size: int | None) -> Iterator[RawTable]:
    """Read a parquet file, `size` rows at a time; `texts` is not used, as columns have types."""
    first = 0
    with parquet_errors(path), open_parquet(path) as file:
        check_header(path, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=size) if file.metadata.num_rows else []
        for table in map(pa.Table.from_batches, ([batch] for batch in batches)):
            yield RawTable(_plain(table), str(path), first=first)
            first += table.num_rows
        if not first:
            yield RawTable(file.schema_arrow.empty_table(), str(path))
