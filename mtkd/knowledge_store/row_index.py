"""The index of a store: the position of each row of the data."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.output_files.sharded_output import PlannedShard
from tasks.common.digests import check_digests
from tasks.common.errors import UserError
from tasks.common.files import atomic_path
from tasks.data.rows import Rows

ROWS = "rows/{task}.parquet"
_SCHEMA = pa.schema([("row", pa.int32()), ("uid", pa.string()), ("digest", pa.uint64())])
_SAMPLE = 20_000
_AGAIN = "build the store again with `overwrite=True`"


def row_digests(rows: Rows) -> np.ndarray:
    """(n,) uint64: a digest of each row's texts."""
    digests = np.empty(len(rows), np.uint64)
    end = 0
    for part in rows.parts():
        columns = zip(*(column.to_pylist() for column in part.texts), strict=True)
        raw = (blake2b("\x00".join(texts).encode(), digest_size=8).digest() for texts in columns)
        digests[end : end + len(part)] = np.frombuffer(b"".join(raw), np.uint64)
        end += len(part)
    return digests


def write_rows(directory: Path, rows: Rows, shards: Sequence[PlannedShard]) -> None:
    """Write the index of a task's rows, in the order of its shards."""
    order = np.concatenate([shard.rows for shard in shards])
    with atomic_path(directory / ROWS.format(task=rows.task)) as temporary:
        pq.write_table(_table(rows, order), temporary, compression="zstd")


def table_bytes(rows: Rows) -> int:
    """Estimate the size of a task's index from a sample of its rows."""
    sample = np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]
    sink = pa.BufferOutputStream()
    pq.write_table(_table(rows.take(sample), np.arange(len(sample))), sink, compression="zstd")
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


def _table(rows: Rows, order: np.ndarray) -> pa.Table:
    uids = rows.uids.take(pa.array(order))
    return pa.table({"row": order.astype(np.int32), "uid": uids, "digest": row_digests(rows)[order]})
