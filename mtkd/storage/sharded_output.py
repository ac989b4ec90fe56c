"""Outputs in shards: planned first, each written whole or not at all, by one process or by several.

The plan follows from the job alone, so the bytes do not depend on who writes a shard or when. A shard's file
carries the job's key: a digest of everything that decides its content. After an interruption the shards with
the right key are kept, and only the missing ones are made. The manifest is written last, with a digest and a
size for each file; with it, damaged files are found and made again like missing ones.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mtkd.storage.distributed import ALONE, ProcessGroup
from tasks.errors import UserError
from tasks.files import atomic_path, digest_file
from tasks.progress import Advance
from tasks.shards import ShardEntry


def ignore(count: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """A shard to be written.

    Attributes:
        file: its path inside the output.
        task: whose rows it holds; `rows`: their numbers.
        per_row: items made of each row, for progress.
    """

    file: str
    task: str
    rows: Sequence[int] | np.ndarray
    per_row: int = 1

    @property
    def size(self) -> int:
        """Items in the shard, at most."""
        return len(self.rows) * self.per_row


def total_size(shards: Sequence[PlannedShard]) -> int:
    """Items of some shards, at most."""
    return sum(shard.size for shard in shards)


@dataclass(frozen=True)
class Footer:
    """What a shard's file says about itself: the job's key, its rows (None: not recorded), and counts."""

    key: str
    rows: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class ShardFormat(Protocol):
    """A file format for shards."""

    def write(self, path: Path, content: Any, key: str) -> None:
        """Write a shard's content with the job's key."""

    def read_footer(self, path: Path) -> Footer | None:
        """What the file says about itself; None if it is missing or not whole."""


@dataclass(frozen=True)
class ShardedOutput:
    """The shards of an output in a directory; `key` identifies the job that writes them."""

    directory: Path
    key: str
    shards: Sequence[PlannedShard]
    format: ShardFormat

    def missing(self, recorded: Sequence[ShardEntry] = ()) -> list[PlannedShard]:
        """The shards that are not there, belong to another job, or are damaged.

        Args:
            recorded: entries of an earlier manifest; the digests of these files are compared too.
        """
        known = {entry.file: entry for entry in recorded}

        def finished(shard: PlannedShard) -> bool:
            footer = self.format.read_footer(self.directory / shard.file)
            if footer is None or footer.key != self.key:
                return False
            entry = known.get(shard.file)
            return entry is None or entry.damage(self.directory, digest=True) is None

        return [shard for shard in self.shards if not finished(shard)]

    def write(
        self,
        shards: Sequence[PlannedShard],
        make: Callable[[Any, Advance], Any],
        *,
        inputs: Callable[[PlannedShard], Any] = lambda shard: shard,
        workers: int = 1,
        ranks: ProcessGroup = ALONE,
        advance: Advance = ignore,
    ) -> None:
        """Write some shards; every process of `ranks` calls this with the same ones.

        Args:
            make: (inputs of a shard, advance) -> its content, as the format takes it.
            inputs: what `make` needs for a shard; with several workers it is sent to another process.
            workers: processes that this one starts; `make` must be importable then.
            advance: called with the number of items just made, times the number of ranks, so that
                one rank can report for all.

        Raises:
            UserError: the disk is full (finished shards stay), or a worker process died.
        """
        ranks.wait()  # every process has looked at what is missing before one writes
        own = shards[ranks.number :: ranks.count]

        def advance_for_all(count: int) -> None:
            advance(count * ranks.count)

        if workers == 1 or len(own) < 2:
            for shard in own:
                self.write_shard(shard, make(inputs(shard), advance_for_all))
        else:
            self._write_in_processes(own, make, inputs, workers, advance_for_all)
        ranks.wait()

    def write_shard(self, shard: PlannedShard, content: Any) -> None:
        """Write one shard, whole or not at all."""
        _write_file(self.format, self.directory / shard.file, content, self.key)

    def entries(self) -> tuple[ShardEntry, ...]:
        """The entries of all shards for the manifest, once they are written."""
        return tuple(map(self._entry, self.shards))

    def _entry(self, shard: PlannedShard) -> ShardEntry:
        path = self.directory / shard.file
        footer = self.format.read_footer(path)
        rows = len(shard.rows) if footer is None or footer.rows is None else footer.rows
        return ShardEntry(shard.file, shard.task, rows, digest_file(path), path.stat().st_size)

    def _write_in_processes(
        self,
        shards: Sequence[PlannedShard],
        make: Callable[[Any, Advance], Any],
        inputs: Callable[[PlannedShard], Any],
        workers: int,
        advance: Advance,
    ) -> None:
        running: dict[Future[None], PlannedShard] = {}

        def collect() -> None:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                shard = running.pop(future)
                future.result()
                advance(shard.size)

        pool = ProcessPoolExecutor(
            min(workers, len(shards)), mp_context=get_context("spawn"), initializer=_start_worker
        )
        try:
            for shard in shards:
                if len(running) > workers:  # rows are sent when a worker is nearly free, not all at once
                    collect()
                path = self.directory / shard.file
                running[pool.submit(_make_file, self.format, path, make, inputs(shard), self.key)] = shard
            while running:
                collect()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, perhaps because memory ran out",
                hint="run the same command again with fewer `workers`; finished shards are kept",
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _write_file(format: ShardFormat, path: Path, content: Any, key: str) -> None:
    with atomic_path(path) as temporary:
        format.write(temporary, content, key)


def _make_file(
    format: ShardFormat, path: Path, make: Callable[[Any, Advance], Any], inputs: Any, key: str
) -> None:
    """What a worker process does for one shard."""
    _write_file(format, path, make(inputs, ignore), key)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end when the parent has ended (a killed one cannot say so)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
