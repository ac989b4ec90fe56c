"""Write a corpus of copies: sharded, resumable, the same bytes however often it was interrupted.

The shards follow from the job alone. Each is written whole or not at all, and carries the job's key and
its own counts in the parquet footer, so a finished shard is known when the job is started again. The
manifest comes last: a directory with a manifest is a whole corpus.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from augment.augmenter import Augmenter
from augment.dataset_card import card
from augment.distributed import ALONE, ProcessGroup
from augment.shards import Advance, PlannedShard, finished, read_footer, write_shards
from tasks.corpus_reader import FORMAT, MANIFEST, CorpusManifest, CorpusShard, CorpusTask, read_manifest
from tasks.errors import UserError, unknown
from tasks.files import digest_bytes, digest_file, locked, write_json, write_text
from tasks.rows import Rows
from tasks.sources import digest_rows
from tasks.task import Task


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
class Written:
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
            raise unknown("task", name, copies, hint="name in --copies a task of --tasks")
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise UserError(
                f"--copies {item.strip()!r}", expected="task=number, such as rte=40, or one number above 0"
            )
        copies.update({name: int(number)} if separator else dict.fromkeys(copies, int(number)))
    return copies


def total_copies(job: CorpusJob, rows: Mapping[str, Rows]) -> int:
    """How many copies the job makes in all."""
    return sum(job.copies[task] * len(part) for task, part in rows.items())


def run(
    job: CorpusJob,
    rows: Mapping[str, Rows],
    out: Path,
    *,
    workers: int = 1,
    overwrite: bool = False,
    advance: Advance = lambda count: None,
    ranks: ProcessGroup = ALONE,
) -> Written:
    """Make the corpus in `out`, or what is missing of it.

    Args:
        rows: task -> its source rows; the corpus keeps this order.
        workers: processes; the bytes do not depend on it.
        overwrite: remove another job's corpus from `out` first.
        advance: called with the number of copies just finished (kept ones included); where several processes
            share the work, with its own times their number, so that one of them can speak for all.
        ranks: processes that share the shards out; each calls this with the same job.

    Raises:
        UserError: no rows, copies below 1, `out` holds something else or is being written by another
            process, or the disk is full (finished shards stay).
    """
    for task, part in rows.items():
        if len(part) == 0:
            raise UserError(f"task {task!r} has no rows to copy", hint="leave the task out, or raise --limit")
        if job.copies[task] < 1:
            raise UserError(f"{job.copies[task]} copies of task {task!r}", expected="1 or more")
    if not rows or workers < 1:
        raise UserError(f"{len(rows)} tasks to copy with {workers} workers", expected="1 or more of each")
    digests = {task: digest_rows(part) for task, part in rows.items()}
    shards = _plan(job, rows, digests)
    with locked(out) if ranks.first else contextlib.nullcontext():
        if ranks.first:
            make_room(out, shards, overwrite=overwrite)
        ranks.wait()
        noted = noted_shards(out)
        missing = [shard for shard in shards if not finished(out / shard.file, shard, noted.get(shard.file))]
        ranks.wait()  # all have looked before one writes
        advance(sum(shard.rows for shard in shards) - sum(shard.rows for shard in missing))
        own = missing[ranks.number :: ranks.count]
        write_shards(job.method, rows, out, own, workers, lambda count: advance(count * ranks.count))
        ranks.wait()
        manifest = _describe(job, rows, digests, out, shards)
        if ranks.first:
            write_text(out / "README.md", card(manifest, job.method.about))
            write_json(out / MANIFEST, manifest.to_json())
        ranks.wait()
    return Written(manifest, len(missing), len(shards) - len(missing))


def _plan(job: CorpusJob, rows: Mapping[str, Rows], digests: Mapping[str, str]) -> list[PlannedShard]:
    """The shards of the job, and its key: the digest of all that decides their content."""
    tasks = [[task, job.copies[task], digests[task]] for task in rows]
    method = [job.method.name, job.method.schema.names, job.method.settings]
    key = digest_bytes(json.dumps([FORMAT, method, tasks, job.shard_copies]))
    shards = []
    for task, part in rows.items():
        step = max(1, job.shard_copies // job.copies[task])
        for number, start in enumerate(range(0, len(part), step)):
            stop = min(start + step, len(part))
            file = f"data/{task}-{number:05d}.parquet"
            shards.append(PlannedShard(file, task, start, stop, job.copies[task], key))
    return shards


def make_room(
    out: Path, planned: Sequence[PlannedShard], *, overwrite: bool, reports: tuple[str, ...] = ("README.md",)
) -> None:
    """Refuse a directory that is not ours to write; clear away another job's corpus if told to.

    Args:
        reports: the files that a finished corpus has beside its manifest and shards.
    """
    patterns = [*(f".{name}.*.tmp" for name in (MANIFEST, *reports)), "data/.*.parquet.*.tmp"]
    leftovers = {path for pattern in patterns for path in out.glob(pattern)}  # of a killed process
    footers = {path: read_footer(path) for path in sorted(out.glob("data/*.parquet"))}
    manifest = read_manifest(out) if not overwrite and (out / MANIFEST).is_file() else None
    ours = {path for path, footer in footers.items() if footer} | {out / shard.file for shard in planned}
    ours |= {path for path in [out / "data"] if path.is_dir()}
    if manifest or any(footers.values()):
        ours |= {out / name for name in (MANIFEST, *reports)}
    strangers = sorted({*out.iterdir(), *out.glob("data/*")} - leftovers - ours)
    if strangers:
        raise UserError(
            f"{out} holds something that is no corpus: {strangers[0].relative_to(out)}",
            hint="name an empty or a new directory with --out",
        )
    for path in leftovers:
        path.unlink()
    if overwrite:
        for path in [out / MANIFEST, *(out / name for name in reports), *footers]:
            path.unlink(missing_ok=True)
        return
    keys = {footer.key for footer in footers.values() if footer}
    if (keys | ({manifest.key} if manifest else set())) - {planned[0].key}:
        raise UserError(
            f"{out} holds another corpus, made with other settings or from other rows",
            hint="start again with --overwrite, or name another directory with --out",
        )


def noted_shards(out: Path) -> dict[str, str]:
    """The SHA-256 by file of the shards that an earlier, finished run of the job noted."""
    manifest = read_manifest(out) if (out / MANIFEST).is_file() else None
    return {shard.file: shard.sha256 for shard in manifest.shards} if manifest else {}


def _describe(
    job: CorpusJob,
    rows: Mapping[str, Rows],
    digests: Mapping[str, str],
    out: Path,
    shards: list[PlannedShard],
) -> CorpusManifest:
    """The manifest of the finished shards, from what they say of themselves."""
    tasks = []
    for task, part in rows.items():
        paths = [out / shard.file for shard in shards if shard.task == task]
        footers = [footer for path in paths if (footer := read_footer(path))]
        count = sum(footer.rows for footer in footers)
        words = sum(footer.words for footer in footers)
        entry = CorpusTask(
            name=task,
            texts=len(part.texts),
            copies=job.copies[task],
            source_rows=len(part),
            rows=count,
            source_digest=digests[task],
            words_changed=round(sum(footer.changed for footer in footers) / max(words, 1), 6),
            unchanged=round(sum(footer.unchanged for footer in footers) / max(count, 1), 6),
        )
        tasks.append(entry)
    return CorpusManifest(
        format=FORMAT,
        method=job.method.name,
        settings=job.method.settings,
        version=job.version,
        command=job.command,
        data=job.data,
        key=shards[0].key,
        tasks=tuple(tasks),
        shards=tuple(_entry(out, shard) for shard in shards),
        kind=job.method.kind,
    )


def _entry(out: Path, shard: PlannedShard) -> CorpusShard:
    footer = read_footer(out / shard.file)
    return shard_entry(out, shard, footer.rows if footer else 0)


def shard_entry(out: Path, shard: PlannedShard, rows: int) -> CorpusShard:
    """The manifest's entry of a finished shard that holds so many rows."""
    path = out / shard.file
    return CorpusShard(shard.file, shard.task, rows, digest_file(path), path.stat().st_size)
