"""Making the copies of one shard of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from augment.augmenter import Augmenter, Copies
from augment.source_rows import SourceRows
from mtkd.output_files.parquet_shards import TableChunk
from mtkd.output_files.sharded_output import Make
from tasks.common.progress import Advance
from tasks.data.file_rows import RowsInFiles
from tasks.data.row_checks import is_blank
from tasks.data.rows import Rows

COPY_COUNTS = ("words", "changed", "unchanged")


def plain_strings(rows: Rows) -> Rows:
    """Convert uids and texts to `pa.string()`, which augmenters expect; unlabelled rows are large strings."""
    texts = tuple(text.cast(pa.string()) for text in rows.texts)
    return replace(rows, uids=rows.uids.cast(pa.string()), texts=texts)


def make_copies(inputs: tuple[Augmenter, SourceRows, int], advance: Advance) -> Iterator[TableChunk]:
    """Yield the copies of a shard's rows, except of rows whose texts are all blank."""
    method, rows, count = inputs
    if isinstance(rows, RowsInFiles):
        rows = rows.read()
        rows = plain_strings(rows.take(np.arange(len(rows))))
    chunks = _reported(method.make_copies(rows, count), advance)
    if (together := getattr(method, "chunk_copies", None)) is not None:
        chunks = _joined(chunks, max(1, together // count) * count)
    if method.kind == "copies":
        chunks = _without_blank(chunks, rows, count)
    for copies in chunks:
        yield TableChunk(
            copies.table, {name: getattr(copies, name) for name in COPY_COUNTS} | {**copies.counts}
        )


def copier(load: Callable[[], Augmenter]) -> Make:
    """Like `make_copies`, with an augmenter that this process loads."""
    method = load()
    return lambda inputs, advance: make_copies((method, *inputs[1:]), advance)


def _reported(chunks: Iterator[Copies], advance: Advance) -> Iterator[Copies]:
    for copies in chunks:
        advance(copies.table.num_rows)
        yield copies


def _joined(chunks: Iterator[Copies], n_copies: int) -> Iterator[Copies]:
    """Chunks of at least this many copies, each in place of several smaller ones."""
    parts: list[Copies] = []
    for copies in chunks:
        parts.append(copies)
        if sum(part.table.num_rows for part in parts) >= n_copies:
            yield _one_chunk(parts)
            parts = []
    if parts:
        yield _one_chunk(parts)


def _one_chunk(parts: list[Copies]) -> Copies:
    totals: dict[str, int] = {name: sum(getattr(part, name) for part in parts) for name in COPY_COUNTS}
    counts = {key: sum(part.counts[key] for part in parts) for key in parts[0].counts}
    table = pa.concat_tables([part.table for part in parts]).combine_chunks()
    return Copies(table, **totals, counts=counts)


def _without_blank(chunks: Iterator[Copies], rows: Rows, count: int) -> Iterator[Copies]:
    """The chunks without the copies of rows whose texts are all blank, in which no word was changed."""
    blank: Any = reduce(pc.and_, map(is_blank, rows.texts))
    kept = np.repeat(~blank.to_numpy(zero_copy_only=False), count)
    end = 0
    for copies in chunks:
        start, end = end, end + copies.table.num_rows
        if (dropped := int((~kept[start:end]).sum())) == 0:
            yield copies
            continue
        table = copies.table.filter(pa.array(kept[start:end]))
        yield replace(copies, table=table, unchanged=max(0, copies.unchanged - dropped))
