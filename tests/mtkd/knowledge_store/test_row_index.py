"""The index of a store's rows is written in parts, with the bytes that writing it at once gives."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtkd.knowledge_store import row_index
from mtkd.knowledge_store.shard_files import plan_shards
from tasks.data.rows import Rows
from tasks.tokens import batch_stream
from tasks.tokens.batch_stream import BLOCK, BLOCKS, random_of


@pytest.mark.parametrize("count", [1, 63, 64, 5000])
@pytest.mark.parametrize("is_large", [False, True])
def test_writing_in_parts_gives_the_same_bytes(
    count: int, is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "_GROUP_ROWS", 64)
    monkeypatch.setattr(row_index, "MAPPED_ROWS", 0 if is_large else 10_000)
    monkeypatch.setattr(batch_stream, "MAPPED_ROWS", 0 if is_large else 10_000)
    texts = tuple(pa.array([f"{name} où {n}" for n in range(count)]) for name in "ab")
    rows = Rows("rte", "train", pa.array([f"rte/{n}" for n in range(count)]), texts, np.zeros(count))
    shards = plan_shards("rte", count, None, 1e6)
    (tmp_path / "rows").mkdir()
    row_index.write_rows(tmp_path, rows, shards)
    order = np.concatenate([shard.rows for shard in shards])
    raw = (f"a où {n}\x00b où {n}".encode() for n in range(count))
    digests = np.array([int.from_bytes(blake2b(r, digest_size=8).digest(), "little") for r in raw], np.uint64)
    table = pa.table(
        {"row": order.astype(np.int32), "uid": rows.uids.take(pa.array(order)), "digest": digests[order]}
    )
    pq.write_table(table, tmp_path / "expected", compression="zstd", row_group_size=64)
    assert (tmp_path / "rows" / "rte.parquet").read_bytes() == (tmp_path / "expected").read_bytes()


def test_the_default_row_group_is_that_of_pyarrow(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": np.zeros(row_index._GROUP_ROWS + 1, np.int8)}), tmp_path / "table")
    assert pq.read_metadata(tmp_path / "table").row_group(0).num_rows == row_index._GROUP_ROWS


def test_the_order_of_many_rows_is_that_of_a_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_stream, "MAPPED_ROWS", 0)
    for count in (1, 4096, 70_001):
        order = random_of(0, "rte", BLOCKS, 0).permutation(count)
        blocks = batch_stream.blocks_of("rte", count)
        assert np.array_equal(np.concatenate(blocks), order)
        assert [len(block) for block in blocks[:-1]] == [BLOCK] * (len(blocks) - 1)
