"""Outputs that are written in shards, each atomically, by one process or several.

The shards are planned from the job alone, so their content does not depend on which process writes them or
when. Each file records the key of the job, a digest of everything that affects its content. After an
interruption, shards with the right key are kept and only the missing ones are written. The manifest comes
last and has the digest and size of every file, so that damaged files can be found and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np

from mtkd.output_files.distributed import ALONE, ProcessGroup
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.files import atomic_path
from tasks.common.locks import remove_leftovers
from tasks.common.progress import Advance
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry

Make: TypeAlias = "Callable[[Any, Advance], Any]"  # (inputs of a shard, advance) -> its content


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
        entry_of = {entry.file: entry for entry in recorded}

        def finished(shard: PlannedShard) -> bool:
            footer = self.format.read_footer(self.directory / shard.file)
            if footer is None or footer.key != self.key:
                return False
            entry = entry_of.get(shard.file)
            return entry is None or entry.damage(self.directory, digest=True) is None

        return [shard for shard in self.shards if not finished(shard)]

    def write(
        self,
        shards: Sequence[PlannedShard],
        make: Make | None = None,
        *,
        setup: Callable[[], Make] | None = None,
        inputs: Callable[[PlannedShard], Any] = lambda shard: shard,
        workers: Workers = THIS_PROCESS,
        ranks: ProcessGroup = ALONE,
        advance: Advance = ignore,
    ) -> dict[str, ShardEntry]:
        """Write some shards; every process of `ranks` calls this with the same shards.

        Args:
            make: (inputs of a shard, advance) -> its content, in the form that the format expects.
            setup: returns `make`, in place of it; each process that makes shards calls `setup` once.
            inputs: shard -> the inputs of `make`; with several workers they are sent to another process.
            workers: what makes the shards; in other processes, `make` or `setup` must be importable.
            advance: called with the number of items just made times the number of ranks, so that one rank
                can report progress for all.

        Returns:
            File -> manifest entry of the shards that other processes made.

        Raises:
            UserError: the disk is full (finished shards are kept), or a worker process died.
        """
        ranks.wait()  # all processes must have listed the missing shards before any of them writes
        local_shards = shards[ranks.number :: ranks.count]

        def advance_for_all(count: int) -> None:
            advance(count * ranks.count)

        written = {}
        if local_shards and workers.should_make(len(local_shards), loads=setup is not None):
            written = self._write_in_workers(local_shards, make, setup, inputs, workers, advance_for_all)
        elif local_shards:
            make = make or setup()  # type: ignore[misc]
            for shard in local_shards:
                self.write_shard(shard, make(inputs(shard), advance_for_all))
        ranks.wait()
        return written

    def write_shard(self, shard: PlannedShard, content: Any) -> None:
        """Write one shard atomically."""
        with atomic_path(self.directory / shard.file) as temporary:
            self.format.write(temporary, content, self.key)

    def entries(self, known: Mapping[str, ShardEntry] = MappingProxyType({})) -> tuple[ShardEntry, ...]:
        """The manifest entries of all shards, which must have been written.

        Args:
            known: entries of shards that need not be read again.
        """
        return tuple(known.get(shard.file) or self.entry(shard) for shard in self.shards)

    def entry(self, shard: PlannedShard) -> ShardEntry:
        """The manifest entry of a shard that has been written."""
        path = self.directory / shard.file
        footer = self.format.read_footer(path)
        rows = len(shard.rows) if footer is None or footer.rows is None else footer.rows
        return ShardEntry(shard.file, shard.task, rows, digest_file(path), path.stat().st_size)

    def _write_in_workers(
        self,
        shards: Sequence[PlannedShard],
        make: Make | None,
        setup: Callable[[], Make] | None,
        inputs: Callable[[PlannedShard], Any],
        workers: Workers,
        advance: Advance,
    ) -> dict[str, ShardEntry]:
        running: dict[Any, PlannedShard] = {}
        written: dict[str, ShardEntry] = {}
        output = replace(self, directory=self.directory.resolve(), shards=())  # workers may run elsewhere
        first_argument = () if setup else (make,)

        def collect() -> None:
            for handle in pool.finished(running):
                shard = running.pop(handle)
                written[shard.file] = pool.result(handle)
                advance(shard.size)

        with workers.open(setup) as pool:
            for shard in shards:
                if len(running) > pool.size:  # send the rows only when a worker is nearly free
                    collect()
                running[pool.submit(_make_shard, *first_argument, output, shard, inputs(shard))] = shard
            while running:
                collect()
        for folder in {(self.directory / shard.file).parent for shard in shards}:
            remove_leftovers(folder)  # of workers that were killed
        return written


def _make_shard(make: Make, output: ShardedOutput, shard: PlannedShard, inputs: Any) -> ShardEntry:
    """Make and write one shard in a worker process."""
    output.write_shard(shard, make(inputs, ignore))
    return output.entry(shard)
