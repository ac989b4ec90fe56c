"""Write a corpus of copies: sharded, resumable, byte-identical however often it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augment.augmenter import Augmenter
from augment.dataset_card import dataset_card
from mtkd.storage.distributed import ALONE, ProcessGroup
from mtkd.storage.output_directory import OutputKind, open_directory
from mtkd.storage.parquet_shards import ParquetFormat, TableChunk, read_parquet_footer
from mtkd.storage.sharded_output import PlannedShard, ShardedOutput, ignore, total_size
from tasks.corpus_reader import CORPUS_FORMAT, MANIFEST, CorpusManifest, CorpusTask, read_corpus_manifest
from tasks.errors import UserError, unknown
from tasks.files import digest_bytes, write_json, write_text
from tasks.progress import Advance
from tasks.rows import Rows
from tasks.shards import ShardEntry
from tasks.sources import digest_rows
from tasks.task import Task

_COUNTS = ("words", "changed", "unchanged")
_DICTIONARY = ("task", "parent", "method")


def _read_key(directory: Path) -> str | None:
    """The key of the corpus in a directory, from any whole shard or from the manifest."""
    for path in sorted(directory.glob("data/*.parquet")):
        if footer := read_parquet_footer(path):
            return footer.key
    try:
        return read_corpus_manifest(directory).key
    except UserError:
        return None


CORPUS_KIND = OutputKind(
    "corpus", MANIFEST, (MANIFEST, "README.md", "filter.json", r"data/.+-\d{5,}\.parquet"), _read_key
)


@dataclass(frozen=True)
class CorpusJob:
    """A corpus to be made.

    Attributes:
        method: how a copy is made.
        copies: task -> copies of each row, at least 1.
        data: name of the source data, for the manifest.
        version: the mtkd that makes it; `command`: the command line, for the manifest and the card.
        shard_copies: about how many copies make a file; all copies of a row are in one.
    """

    method: Augmenter
    copies: Mapping[str, int]
    data: str
    version: str
    command: str
    shard_copies: int = 250_000


@dataclass(frozen=True)
class WrittenCorpus:
    """A finished corpus: its manifest, and how many shards were made now and kept from before."""

    manifest: CorpusManifest
    made: int
    kept: int


def copies_of(tasks: Sequence[Task], spec: str | None = None) -> dict[str, int]:
    """Copies a row of each task: the task's own default, changed by `spec`.

    Args:
        spec: "rte=40,sst2=10"; a number alone ("20") is for every task.

    Raises:
        UserError: a task that is not among `tasks`, or something that is not a whole number above 0.
    """
    copies = {task.name: task.copies for task in tasks}
    for item in (spec or "").split(","):
        if not item.strip():
            continue
        name, separator, number = (part.strip() for part in item.rpartition("="))
        if separator and name not in copies:
            raise unknown("task", name, copies, hint="name in `copies` a task of `tasks`")
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise UserError(
                f"`copies={item.strip()!r}`", expected="task=number, such as rte=40, or one number above 0"
            )
        copies.update({name: int(number)} if separator else dict.fromkeys(copies, int(number)))
    return copies


def total_copies(job: CorpusJob, rows: Mapping[str, Rows]) -> int:
    """How many copies the job makes in all."""
    return sum(job.copies[task] * len(part) for task, part in rows.items())


def write_corpus(
    job: CorpusJob,
    rows: Mapping[str, Rows],
    out: Path,
    *,
    workers: int = 1,
    overwrite: bool = False,
    advance: Advance = ignore,
    ranks: ProcessGroup = ALONE,
) -> WrittenCorpus:
    """Make the corpus in `out`, or what is missing of it.

    Args:
        rows: task -> its source rows; the corpus keeps this order.
        workers: processes; the bytes do not depend on it.
        overwrite: remove another job's corpus from `out` first.
        advance: called with the number of copies just finished (kept ones included), times the number of
            ranks, so that one rank can report for all.
        ranks: the processes that share the work; each calls this with the same job.

    Raises:
        UserError: no rows, copies below 1, `out` holds something else or is being written by another
            process, or the disk is full (finished shards stay).
    """
    for task, part in rows.items():
        if len(part) == 0:
            raise UserError(f"task {task!r} has no rows to copy", hint="leave the task out, or raise `limit`")
        if job.copies[task] < 1:
            raise UserError(f"{job.copies[task]} copies of task {task!r}", expected="1 or more")
    if not rows or workers < 1:
        raise UserError(f"{len(rows)} tasks to copy with {workers} workers", expected="1 or more of each")
    digests = {task: digest_rows(part) for task, part in rows.items()}
    key = _key(job, digests)
    output = ShardedOutput(out, key, _plan(job, rows), ParquetFormat(job.method.schema, _COUNTS, _DICTIONARY))

    def inputs(shard: PlannedShard) -> tuple[Augmenter, Rows, int]:
        part = rows[shard.task].take(np.asarray(shard.rows))
        return (job.method.part(part) if workers > 1 else job.method), part, shard.per_row

    with open_directory(out, CORPUS_KIND, key, overwrite=overwrite, ranks=ranks):
        missing = output.missing(recorded_shards(out))
        advance(total_size(output.shards) - total_size(missing))
        output.write(missing, _make_copies, inputs=inputs, workers=workers, ranks=ranks, advance=advance)
        if ranks.first and (missing or not (out / MANIFEST).is_file()):
            manifest = _describe(job, rows, digests, output)
            write_text(out / "README.md", dataset_card(manifest, job.method.about))
            write_json(out / MANIFEST, manifest.to_json())
        ranks.wait()
    return WrittenCorpus(read_corpus_manifest(out), len(missing), len(output.shards) - len(missing))


def recorded_shards(out: Path) -> Sequence[ShardEntry]:
    """The shards in the manifest of an earlier, finished run; none if there is no manifest."""
    return read_corpus_manifest(out).shards if (out / MANIFEST).is_file() else ()


def _key(job: CorpusJob, digests: Mapping[str, str]) -> str:
    """The digest of everything that decides the content of the shards."""
    tasks = [[task, job.copies[task], digest] for task, digest in digests.items()]
    method = [job.method.name, job.method.schema.names, job.method.settings]
    return digest_bytes(json.dumps([CORPUS_FORMAT, method, tasks, job.shard_copies]))


def _plan(job: CorpusJob, rows: Mapping[str, Rows]) -> list[PlannedShard]:
    shards = []
    for task, part in rows.items():
        step = max(1, job.shard_copies // job.copies[task])
        for number, start in enumerate(range(0, len(part), step)):
            numbers = range(start, min(start + step, len(part)))
            shards.append(PlannedShard(f"data/{task}-{number:05d}.parquet", task, numbers, job.copies[task]))
    return shards


def _make_copies(inputs: tuple[Augmenter, Rows, int], advance: Advance) -> Iterator[TableChunk]:
    """The copies of a shard's rows."""
    method, rows, count = inputs
    for copies in method.make(rows, count):
        advance(copies.table.num_rows)
        yield TableChunk(copies.table, {name: getattr(copies, name) for name in _COUNTS})


def _describe(
    job: CorpusJob, rows: Mapping[str, Rows], digests: Mapping[str, str], output: ShardedOutput
) -> CorpusManifest:
    """The manifest of the finished shards, from their footers."""
    entries = output.entries()
    tasks = []
    for task, part in rows.items():
        files = [output.directory / entry.file for entry in entries if entry.task == task]
        footers = [footer for file in files if (footer := output.format.read_footer(file))]
        words, changed, unchanged = (sum(footer.counts[name] for footer in footers) for name in _COUNTS)
        count = sum(entry.rows for entry in entries if entry.task == task)
        entry = CorpusTask(
            name=task,
            texts=len(part.texts),
            copies=job.copies[task],
            source_rows=len(part),
            rows=count,
            source_digest=digests[task],
            words_changed=round(changed / max(words, 1), 6),
            unchanged=round(unchanged / max(count, 1), 6),
        )
        tasks.append(entry)
    return CorpusManifest(
        format=CORPUS_FORMAT,
        method=job.method.name,
        settings=job.method.settings,
        version=job.version,
        command=job.command,
        data=job.data,
        key=output.key,
        tasks=tuple(tasks),
        shards=entries,
        kind=job.method.kind,
    )
