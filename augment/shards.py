"""Write shards: each whole or not at all, in one process or several, the same bytes either way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from augment.augmenter import Augmenter
from tasks.errors import UserError
from tasks.files import atomic_path, digest_file
from tasks.rows import Rows

_GROUP_COPIES = 65_536  # copies in a row group: what a shard holds in memory while it is written
KEY = b"mtkd.corpus"  # of the parquet metadata

Advance = Callable[[int], None]


@dataclass(frozen=True)
class PlannedShard:
    """A planned shard: copies of the rows `start` to `stop` of a task; `key` is the job's."""

    file: str
    task: str
    start: int
    stop: int
    copies: int
    key: str

    @property
    def rows(self) -> int:
        """Copies in the shard, at most."""
        return (self.stop - self.start) * self.copies


@dataclass(frozen=True)
class Footer:
    """What a shard says of itself: its rows, the job's key, and counts as in `Copies`."""

    rows: int
    key: str
    words: int
    changed: int
    unchanged: int


def read_footer(path: Path) -> Footer | None:
    """The shard's own account, or None if the file is not there or not whole."""
    try:
        metadata = pq.read_metadata(path)
        return Footer(rows=metadata.num_rows, **json.loads(metadata.metadata[KEY]))
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return None


def finished(path: Path, shard: PlannedShard, sha256: str | None) -> bool:
    """True if the planned shard is there already; `sha256` is its digest where that is known."""
    footer = read_footer(path)
    if footer is None or footer.key != shard.key or footer.rows > shard.rows:
        return False
    return sha256 is None or digest_file(path) == sha256


def write_shards(
    method: Augmenter,
    rows: Mapping[str, Rows],
    out: Path,
    shards: list[PlannedShard],
    workers: int,
    advance: Advance,
) -> None:
    """Write `shards` into `out` with so many processes; UserError if the disk is full or a worker dies."""
    if workers == 1 or len(shards) < 2:
        for shard in shards:
            _write_shard(method, _slice(rows, shard), shard, out / shard.file, advance)
        return
    waiting: dict[Future[None], PlannedShard] = {}
    pool = ProcessPoolExecutor(
        min(workers, len(shards)), mp_context=get_context("spawn"), initializer=_start_worker
    )
    try:
        for shard in shards:
            if len(waiting) > workers:  # rows are sent when a worker is nearly free, not all at once
                _collect(waiting, wait(waiting, return_when=FIRST_COMPLETED).done, advance)
            part = _slice(rows, shard)
            waiting[pool.submit(_write_shard, method.part(part), part, shard, out / shard.file)] = shard
        while waiting:
            _collect(waiting, wait(waiting, return_when=FIRST_COMPLETED).done, advance)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for want of memory",
            hint="run the same command again with fewer --workers; finished shards are kept",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _collect(waiting: dict[Future[None], PlannedShard], done: set[Future[None]], advance: Advance) -> None:
    for future in done:
        shard = waiting.pop(future)
        future.result()
        advance(shard.rows)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and leave when the parent is gone (a killed one cannot say so)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _slice(rows: Mapping[str, Rows], shard: PlannedShard) -> Rows:
    return rows[shard.task].take(np.arange(shard.start, shard.stop))


def _write_shard(
    method: Augmenter, rows: Rows, shard: PlannedShard, path: Path, advance: Advance = lambda count: None
) -> None:
    """Write one shard atomically; memory is bounded by the row group, not by the shard."""
    words = changed = unchanged = 0
    group: list[pa.Table] = []
    with atomic_path(path) as temporary, _writer(temporary, method.schema) as writer:
        for copies in method.make(rows, shard.copies):
            words, changed = words + copies.words, changed + copies.changed
            unchanged += copies.unchanged
            group.append(copies.table)
            advance(copies.table.num_rows)
            if sum(table.num_rows for table in group) >= _GROUP_COPIES:
                writer.write_table(pa.concat_tables(group))
                group = []
        if group:
            writer.write_table(pa.concat_tables(group))
        account = {"key": shard.key, "words": words, "changed": changed, "unchanged": unchanged}
        writer.add_key_value_metadata({KEY.decode(): json.dumps(account)})


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # Few copies of a text are alike, so a dictionary of texts would only cost time; zstd finds what is alike.
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=["task", "parent", "method"]
    )
