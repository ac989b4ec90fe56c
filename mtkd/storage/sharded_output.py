"""Outputs that are written in shards, each atomically, by one process or several.

The shards are planned from the job alone, so their content does not depend on which process writes them or
when. Each file records the key of the job, a digest of everything that affects its content. After an
interruption, shards with the right key are kept and only the missing ones are made. The manifest is written
last and has the digest and size of every file, so that damaged files can be found and made again.
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
    """A progress callback that does nothing."""


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """A shard to be written.

    Attributes:
        file: path of the file inside the output directory.
        task: name of the task; `rows`: indices of the task's rows in this shard.
        per_row: number of items made from each row, for reporting progress.
    """

    file: str
    task: str
    rows: Sequence[int] | np.ndarray
    per_row: int = 1

    @property
    def size(self) -> int:
        """Maximum number of items in the shard."""
        return len(self.rows) * self.per_row


def total_size(shards: Sequence[PlannedShard]) -> int:
    """Maximum number of items in some shards."""
    return sum(shard.size for shard in shards)


@dataclass(frozen=True)
class Footer:
    """The metadata in a shard's file: the job's key, the number of rows (None = not recorded) and counts."""

    key: str
    rows: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class ShardFormat(Protocol):
    """A file format for shards."""

    def write(self, path: Path, content: Any, key: str) -> None:
        """Write the content of a shard and the job's key."""

    def read_footer(self, path: Path) -> Footer | None:
        """Read the metadata of a file; None if it is missing or incomplete."""


@dataclass(frozen=True)
class ShardedOutput:
    """The planned shards of an output directory; `key` identifies the job that writes them."""

    directory: Path
    key: str
    shards: Sequence[PlannedShard]
    format: ShardFormat

    def missing(self, recorded: Sequence[ShardEntry] = ()) -> list[PlannedShard]:
        """The shards that are missing, damaged or from another job.

        Args:
            recorded: entries of an existing manifest, to compare the digests of those files as well.
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
        """Write some shards; every process of `ranks` calls this with the same shards.

        Args:
            make: (inputs of a shard, advance) -> its content, in the form that the format expects.
            inputs: shard -> the inputs of `make`; with several workers they are sent to another process.
            workers: number of processes to start; with more than one, `make` must be importable.
            advance: called with the number of items just made times the number of ranks, so that one rank
                can report progress for all.

        Raises:
            UserError: the disk is full (finished shards are kept), or a worker process died.
        """
        ranks.wait()  # all processes must have listed the missing shards before any of them writes
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
        """Write one shard atomically."""
        _write_file(self.format, self.directory / shard.file, content, self.key)

    def entries(self) -> tuple[ShardEntry, ...]:
        """The manifest entries of all shards, which must have been written."""
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
                if len(running) > workers:  # send the rows only when a worker is nearly free
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
    """Make and write one shard in a worker process."""
    _write_file(format, path, make(inputs, ignore), key)


def _start_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent has exited or was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
