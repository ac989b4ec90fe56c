"""Outputs that are written in shards, each atomically, by one process or several.

The shards are planned from the job alone, so their content does not depend on which process writes them or
when. Each file records the key of the job, a digest of everything that affects its content. The digest of the
file itself is written to a work file beside it, just before the file gets its name. After an interruption,
shards with the right key and digest are kept, and only the others are written. The manifest comes last and
has the digest and size of every file, so that damaged files can be found and written again; the work files
are then removed.
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
from tasks.common.errors import UserError, shorten
from tasks.common.files import atomic_path, write_text
from tasks.common.locks import remove_leftovers
from tasks.common.progress import Advance, say
from tasks.common.reading import read_small_file
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry

DIGEST = ".digest"  # suffix of the work file with the digest of a shard

Make: TypeAlias = "Callable[[Any, Advance], Any]"  # (inputs of a shard, advance) -> its content
_NONE_RECORDED: Mapping[str, str] = MappingProxyType({})


def ignore(count: int) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """A shard to be written.

    Attributes:
        file: path of the file inside the output directory.
        task: name of the task.
        rows: indices of the task's rows in this shard.
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
    """The planned shards of an output directory.

    Attributes:
        key: identifies the job that writes them.
        digest: computes the digest of a file.
    """

    directory: Path
    key: str
    shards: Sequence[PlannedShard]
    format: ShardFormat
    digest: Callable[[Path], str] = digest_file

    def missing(self, recorded: Mapping[str, str] = _NONE_RECORDED) -> list[PlannedShard]:
        """The shards that are missing, damaged, without a digest or from another job.

        Args:
            recorded: file -> digest, from the record of a finished output.
        """

        def finished(shard: PlannedShard) -> bool:
            path = self.directory / shard.file
            footer = self.format.read_footer(path)
            if footer is None or footer.key != self.key:
                return False
            digest = recorded.get(shard.file) or self._written_digest(shard)
            return digest is not None and self.digest(path) == digest

        return [shard for shard in self.shards if not finished(shard)]

    def write(
        self,
        shards: Sequence[PlannedShard],
        make: Make | None = None,
        *,
        setup: Callable[[], Make] | None = None,
        inputs: Callable[[PlannedShard], Any] = lambda shard: shard,
        workers: Workers = THIS_PROCESS,
        group: ProcessGroup = ALONE,
        advance: Advance = ignore,
    ) -> None:
        """Write some shards; every process of `group` calls this with the same shards.

        Args:
            make: (inputs of a shard, advance) -> its content, in the form that the format expects.
            setup: returns `make`, in place of it; each process that makes shards calls `setup` once.
            inputs: shard -> the inputs of `make`; with several workers they are sent to another process.
            workers: where the shards are made; for other processes, `make` or `setup` must be importable.
            advance: called with the number of items just made times the number of ranks, so that one rank
                can report progress for all.

        Raises:
            UserError: the disk is full (finished shards are kept), or a worker process died.
        """
        if damaged := [shard.file for shard in shards if (self.directory / shard.file).exists()]:
            say(
                f"files in {self.directory} that are damaged or have no digest are rewritten: "
                f"{shorten(damaged)}"
            )
        group.wait()  # all processes must have listed the missing shards before any of them writes
        local_shards = shards[group.rank :: group.count]

        def advance_for_all(count: int) -> None:
            advance(count * group.count)

        if local_shards and workers.should_start(len(local_shards), loads=setup is not None):
            self._write_in_workers(local_shards, make, setup, inputs, workers, advance_for_all)
        elif local_shards:
            make = make or setup()  # type: ignore[misc]
            for shard in local_shards:
                self.write_shard(shard, make(inputs(shard), advance_for_all))
        group.wait()

    def write_shard(self, shard: PlannedShard, content: Any) -> None:
        """Write one shard atomically, after the work file with its digest."""
        with atomic_path(self.directory / shard.file) as temporary:
            self.format.write(temporary, content, self.key)
            write_text(self.directory / (shard.file + DIGEST), self.digest(temporary))

    def digests(self, recorded: Mapping[str, str] = _NONE_RECORDED) -> dict[str, str]:
        """File -> digest of all shards, which must have been written.

        The files are not read: they may have been damaged since they were written.

        Args:
            recorded: see `missing`.
        """
        return {
            shard.file: self._written_digest(shard) or recorded.get(shard.file, "") for shard in self.shards
        }

    def entries(self, recorded: Mapping[str, str] = _NONE_RECORDED) -> tuple[ShardEntry, ...]:
        """The manifest entries of all shards; see `digests`."""
        digests = self.digests(recorded)
        return tuple(self._entry(shard, digests[shard.file]) for shard in self.shards)

    def _entry(self, shard: PlannedShard, digest: str) -> ShardEntry:
        path = self.directory / shard.file
        footer = self.format.read_footer(path)
        rows = len(shard.rows) if footer is None or footer.rows is None else footer.rows
        return ShardEntry(shard.file, shard.task, rows, digest, path.stat().st_size)

    def _written_digest(self, shard: PlannedShard) -> str | None:
        """The digest in the work file of a shard; None if there is none."""
        try:
            return read_small_file(self.directory / (shard.file + DIGEST)).decode("ascii", "replace")
        except UserError:
            return None

    def _write_in_workers(
        self,
        shards: Sequence[PlannedShard],
        make: Make | None,
        setup: Callable[[], Make] | None,
        inputs: Callable[[PlannedShard], Any],
        workers: Workers,
        advance: Advance,
    ) -> None:
        running: dict[Any, PlannedShard] = {}
        output = replace(self, directory=self.directory.resolve(), shards=())  # workers may run elsewhere
        first_argument = () if setup else (make,)

        def collect() -> None:
            for handle in pool.finished(running):
                shard = running.pop(handle)
                pool.result(handle)
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


def _make_shard(make: Make, output: ShardedOutput, shard: PlannedShard, inputs: Any) -> None:
    """Make and write one shard in a worker process."""
    output.write_shard(shard, make(inputs, ignore))
