"""Write an augmented corpus in resumable shards; after an interruption, the output is byte-identical."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from augment.augmenter import Augmenter
from augment.copy_shards import COPY_COUNTS, copier, make_copies, plain_strings
from augment.corpus_directory import CORPUS_KIND, corpus_difference, corpus_digests
from augment.dataset_card import dataset_card
from augment.source_rows import SourceRows, content_digests
from mtkd.output_files.distributed import ALONE, ProcessGroup
from mtkd.output_files.output_directory import check_directory, open_directory
from mtkd.output_files.parquet_shards import ParquetFormat
from mtkd.output_files.sharded_output import PlannedShard, ShardedOutput, ignore, total_size
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.errors import UserError, unknown
from tasks.common.files import write_text
from tasks.common.mapped import release_pages
from tasks.common.progress import Advance
from tasks.common.records import write_record
from tasks.common.sha256 import digest_bytes
from tasks.data.corpus_reader import CORPUS_FORMAT, MANIFEST, CorpusManifest, CorpusTask, read_corpus_manifest
from tasks.data.file_rows import RowsInFiles
from tasks.task import MAX_COPIES, Task

_DICTIONARY = ("task", "parent", "method")

# Settings that only name a model or file, whose digest is another setting.
_MODEL_DIGESTS = {"model": "model_digest", "vectors": "neighbours"}

_Digests: TypeAlias = Mapping[str, tuple[str, str]]  # see `_digests`


@dataclass(frozen=True)
class CorpusSpec:
    """The specification of a corpus to be made.

    Attributes:
        augmenter: makes the copies.
        copies: task -> number of copies per row, at least 1.
        data: name of the source data, for the manifest.
        version, command: the mtkd version and the command line, for the manifest and the card.
        shard_copies: approximate number of copies per file; all copies of a row are in the same file.
        unlabelled: task -> the number of unlabelled rows, which are the last ones of its source rows.
    """

    augmenter: Augmenter
    copies: Mapping[str, int]
    data: str
    version: str
    command: str
    shard_copies: int = 250_000
    unlabelled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenCorpus:
    """A finished corpus: its manifest, and how many shards were newly made and how many were kept."""

    manifest: CorpusManifest
    made: int
    kept: int


def copies_of(tasks: Sequence[Task], numbers: str | None = None) -> dict[str, int]:
    """Number of copies per row for each task: the task's default unless `numbers` changes it.

    Args:
        numbers: such as "rte=40,sst2=10"; a bare number ("20") applies to every task.

    Raises:
        UserError: a task is not among `tasks`, or a number is not a positive integer.
    """
    copies = {task.name: task.copies for task in tasks}
    for item in (numbers or "").split(","):
        if not item.strip():
            continue
        name, separator, number = (part.strip() for part in item.rpartition("="))
        if separator and name not in copies:
            raise unknown("task", name, copies, hint="name in `copies` a task of `tasks`")
        if not (re.fullmatch("[0-9]{1,9}", number) and 1 <= int(number) <= MAX_COPIES):
            raise UserError(
                f"`copies={item.strip()[:40]!r}` is not valid",
                expected=f"task=number, such as rte=40, or one number from 1 to {MAX_COPIES:,}",
            )
        copies.update({name: int(number)} if separator else dict.fromkeys(copies, int(number)))
    return copies


def total_copies(spec: CorpusSpec, rows: Mapping[str, SourceRows]) -> int:
    """Total number of copies in the corpus."""
    return sum(spec.copies[task] * len(part) for task, part in rows.items())


def check_corpus_output(
    spec: CorpusSpec, rows: Mapping[str, SourceRows], out: Path, *, overwrite: bool = False
) -> None:
    """Raise UserError if `write_corpus` could not write to `out`, before anything is made or written."""
    check_directory(out, CORPUS_KIND, _output(spec, rows, out).key, overwrite=overwrite)


def unfinished_rows(spec: CorpusSpec, rows: Mapping[str, SourceRows], out: Path) -> dict[str, np.ndarray]:
    """Task -> indices of the rows that `write_corpus` would make copies of now; all, if `out` is new."""
    missing = _output(spec, rows, out).missing(corpus_digests(out))
    parts = {task: [np.asarray(shard.rows) for shard in missing if shard.task == task] for task in rows}
    return {task: np.concatenate([np.zeros(0, int), *indices]) for task, indices in parts.items()}


def write_corpus(
    spec: CorpusSpec,
    rows: Mapping[str, SourceRows],
    out: Path,
    *,
    workers: Workers = THIS_PROCESS,
    overwrite: bool = False,
    advance: Advance = ignore,
    group: ProcessGroup = ALONE,
) -> WrittenCorpus:
    """Write the corpus to `out`, making only the shards that are missing.

    Args:
        rows: task -> its source rows; the corpus keeps their order.
        workers: what makes the shards; the output does not depend on it.
        overwrite: first remove the corpus of another run from `out`.
        advance: called with the number of copies just finished (including kept ones) times the number of
            ranks, so that one rank can report progress for all.
        group: the processes that the shards are divided among; each makes this call.

    Raises:
        UserError: there are no rows, a number of copies is below 1, `out` holds something else or is being
            written by another process, or the disk is full (finished shards are kept).
    """
    _check_copies(spec, rows)
    digests = _digests(spec, rows)
    output = _output(spec, rows, out, digests)
    load = spec.augmenter.loader if workers.in_other_processes else None

    def inputs(shard: PlannedShard) -> tuple[Augmenter | None, SourceRows, int]:
        source, augmenter = rows[shard.task], spec.augmenter
        part: Any
        if isinstance(source, RowsInFiles):
            part = source.slice(shard.rows[0], shard.rows[-1] + 1)
            takes_part = getattr(augmenter, "reads_files", False)
        else:
            part = plain_strings(source.take(np.asarray(shard.rows)))
            takes_part = workers.in_other_processes
            release_pages()
        if load:
            return None, part, shard.per_row
        return augmenter.for_rows(part) if takes_part else augmenter, part, shard.per_row

    difference = partial(corpus_difference, out)
    with open_directory(
        out, CORPUS_KIND, output.key, overwrite=overwrite, group=group, difference=difference
    ):
        recorded = corpus_digests(out)
        missing = output.missing(recorded)
        advance(total_size(output.shards) - total_size(missing))
        output.write(
            missing,
            None if load else make_copies,
            setup=partial(copier, load) if load else None,
            inputs=inputs,
            workers=workers,
            group=group,
            advance=advance,
        )
        if group.is_main and (missing or not (out / MANIFEST).is_file()):
            manifest = _describe(spec, rows, output, recorded, digests)
            write_text(out / "README.md", dataset_card(manifest, spec.augmenter.description))
            write_record(out / MANIFEST, manifest.to_json())
    return WrittenCorpus(read_corpus_manifest(out), len(missing), len(output.shards) - len(missing))


def _check_copies(spec: CorpusSpec, rows: Mapping[str, SourceRows]) -> None:
    """Refuse a corpus without rows, and numbers of copies out of range; raises UserError."""
    for task, part in rows.items():
        if len(part) == 0:
            raise UserError(f"task {task!r} has no rows to copy", hint="omit the task, or increase `limit`")
        if not 1 <= spec.copies[task] <= MAX_COPIES:
            raise UserError(
                f"{spec.copies[task]} copies of task {task!r} were asked for", expected=f"1 to {MAX_COPIES:,}"
            )
    if not rows:
        raise UserError("there is no task to copy", expected="1 or more")


def _digests(spec: CorpusSpec, rows: Mapping[str, SourceRows]) -> _Digests:
    """Task -> the digests of its training rows and of its unlabelled rows."""
    return {task: content_digests(part, spec.unlabelled.get(task, 0)) for task, part in rows.items()}


def _output(
    spec: CorpusSpec, rows: Mapping[str, SourceRows], out: Path, digests: _Digests | None = None
) -> ShardedOutput:
    """The planned shards. Their key is a digest of everything that affects the content."""
    digests = digests or _digests(spec, rows)
    settings = spec.augmenter.settings
    settings = {name: value for name, value in settings.items() if _MODEL_DIGESTS.get(name) not in settings}
    tasks = [[task, spec.copies[task], *digests[task]] for task in rows]
    augmenter_key = [spec.augmenter.name, spec.augmenter.schema.names, settings]
    key = digest_bytes(json.dumps([CORPUS_FORMAT, augmenter_key, tasks, spec.shard_copies]))
    counts = (*COPY_COUNTS, *spec.augmenter.count_names)
    return ShardedOutput(
        out, key, _plan(spec, rows), ParquetFormat(spec.augmenter.schema, counts, _DICTIONARY)
    )


def _plan(spec: CorpusSpec, rows: Mapping[str, SourceRows]) -> list[PlannedShard]:
    shards = []
    for task, part in rows.items():
        step = max(1, spec.shard_copies // spec.copies[task])
        for number, start in enumerate(range(0, len(part), step)):
            numbers = range(start, min(start + step, len(part)))
            shards.append(PlannedShard(f"data/{task}-{number:05d}.parquet", task, numbers, spec.copies[task]))
    return shards


def _describe(
    spec: CorpusSpec,
    rows: Mapping[str, SourceRows],
    output: ShardedOutput,
    recorded: Mapping[str, str],
    digests: _Digests,
) -> CorpusManifest:
    """Build the manifest of the finished shards from their footers."""
    entries = output.entries(recorded)
    tasks, counts = [], dict.fromkeys(spec.augmenter.count_names, 0)
    for task, part in rows.items():
        files = [output.directory / entry.file for entry in entries if entry.task == task]
        footers = [footer for file in files if (footer := output.format.read_footer(file))]
        words, changed, unchanged = (sum(footer.counts[name] for footer in footers) for name in COPY_COUNTS)
        counts = {name: sum((footer.counts[name] for footer in footers), n) for name, n in counts.items()}
        count = sum(entry.rows for entry in entries if entry.task == task)
        entry = CorpusTask(
            name=task,
            texts=part.n_texts if isinstance(part, RowsInFiles) else len(part.texts),
            copies=spec.copies[task],
            source_rows=len(part),
            rows=count,
            source_digest=digests[task][0],
            words_changed=round(changed / max(words, 1), 6),
            unchanged=round(unchanged / max(count, 1), 6),
            unlabelled=spec.unlabelled.get(task, 0),
            unlabelled_digest=digests[task][1],
        )
        tasks.append(entry)
    return CorpusManifest(
        format=CORPUS_FORMAT,
        method=spec.augmenter.name,
        settings=spec.augmenter.settings,
        version=spec.version,
        command=spec.command,
        data=spec.data,
        key=output.key,
        tasks=tuple(tasks),
        shards=entries,
        kind=spec.augmenter.kind,
        counts=counts,
    )
