"""The index of a store: the position of each row of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.output_files.sharded_output import PlannedShard
from tasks.common.digests import check_digests
from tasks.common.errors import UserError
from tasks.common.files import atomic_path
from tasks.common.mapped import mapped, release_pages
from tasks.data.rows import MAPPED_ROWS, Rows

ROWS = "rows/{task}.parquet"
_SCHEMA = pa.schema([("row", pa.int32()), ("uid", pa.string()), ("digest", pa.uint64())])
_SAMPLE = 20_000
_GROUP_ROWS = 1 << 20  # rows per row group, the default of pyarrow; the bytes of an index depend on it
_AGAIN = "build the store again with `overwrite=True`"


def row_digests(rows: Rows) -> np.ndarray:
    """(n,) uint64: a digest of each row's texts; those of many rows are in a temporary file."""

    def digests() -> Iterator[np.ndarray]:
        for part in rows.parts():
            columns = zip(*(column.to_pylist() for column in part.texts), strict=True)
            raw = (blake2b("\x00".join(texts).encode(), digest_size=8).digest() for texts in columns)
            yield np.frombuffer(b"".join(raw), np.uint64)

    if len(rows) > MAPPED_ROWS:
        return mapped(digests(), np.uint64)
    return np.concatenate([np.zeros(0, np.uint64), *digests()])


def write_rows(directory: Path, rows: Rows, shards: Sequence[PlannedShard]) -> None:
    """Write the index of a task's rows, in the order of its shards, holding one row group in memory."""
    digests = row_digests(rows)
    with (
        atomic_path(directory / ROWS.format(task=rows.task)) as temporary,
        pq.ParquetWriter(
            temporary, _table(rows, digests, np.zeros(0, int)).schema, compression="zstd"
        ) as file,
    ):
        for order in _row_groups(shards):
            file.write_table(_table(rows, digests, order), row_group_size=_GROUP_ROWS)
            release_pages()


def _row_groups(shards: Sequence[PlannedShard]) -> Iterator[np.ndarray]:
    """The row numbers of all shards, in parts of `_GROUP_ROWS`."""
    waiting: list[np.ndarray] = [np.zeros(0, int)]
    for shard in shards:
        waiting.append(np.asarray(shard.rows))
        while sum(map(len, waiting)) >= _GROUP_ROWS:
            order = np.concatenate(waiting)
            yield order[:_GROUP_ROWS]
            waiting = [order[_GROUP_ROWS:]]
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def table_bytes(rows: Rows) -> int:
    """Estimate the size of a task's index from a sample of its rows."""
    sample = np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]
    sink = pa.BufferOutputStream()
    sampled = rows.take(sample)
    pq.write_table(_table(sampled, row_digests(sampled), np.arange(len(sample))), sink, compression="zstd")
    return int(sink.tell() * len(rows) / max(1, len(sample)))


def read_rows(directory: Path, task: str, count: int) -> pa.Table:
    """Read the index of a task's rows.

    Raises:
        UserError: the file is missing or damaged, or does not have each of `count` rows once.
    """
    path = directory / ROWS.format(task=task)
    check_digests(path.parent, [path.name])
    try:
        table = pq.read_table(path, schema=_SCHEMA, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    nulls = any(column.null_count for column in table.columns)
    if nulls or not np.array_equal(np.sort(table["row"].to_numpy()), np.arange(count)):
        raise UserError(f"{path} does not list each of the {count} rows once", hint=_AGAIN)
    return table


def _table(rows: Rows, digests: np.ndarray, order: np.ndarray) -> pa.Table:
    uids = rows.uids.take(pa.array(order))
    return pa.table({"row": order.astype(np.int32), "uid": uids, "digest": digests[order]})
