"""Filter a corpus of questions with a teacher, in resumable shards.

Each output file is made from consecutive rows of one input file, so several processes can write files in any
order. Only the search for repeated questions reads the whole corpus, in every process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq

from augment.corpus_directory import CORPUS_KIND, corpus_difference, corpus_digests
from augment.questions.filtering.filter_report import REPORT, Tally, filter_card
from augment.questions.filtering.filter_shard import FilteredShard, FilterSettings, filter_shard
from augment.questions.filtering.heuristics import Reason, Seen, is_question
from augment.questions.filtering.unanswerable import TRIES
from augment.questions.question_rows import question_table, questions_of
from mtkd.output_files.distributed import ALONE, ProcessGroup
from mtkd.output_files.output_directory import open_directory, remove_output
from mtkd.output_files.parquet_shards import KEY, ParquetFormat, footer_text
from mtkd.output_files.sharded_output import PlannedShard, ShardedOutput, ignore, total_size
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.errors import UserError
from tasks.common.files import write_text
from tasks.common.progress import Advance
from tasks.common.records import write_record
from tasks.common.sha256 import digest_bytes
from tasks.common.shards import ShardEntry
from tasks.data.corpus_reader import (
    CORPUS_FORMAT,
    MANIFEST,
    QUESTION_SCHEMA,
    CorpusManifest,
    CorpusTask,
    read_corpus,
    read_corpus_manifest,
    read_shard,
)
from tasks.scoring.answers import Answerer

_COUNTS = b"mtkd.filter"  # key in the parquet metadata
_ABOUT = (
    "A question was dropped if its text is not a question, if it was asked before, if it copies its context, "
    "if the teacher finds no answer, or if the teacher's answer differs from the one that the question was "
    "generated for (if that is unknown: from the teacher's answer given only the answer's sentence and its "
    "neighbours). Unanswerable rows are kept questions with another paragraph, or with the sentence of the "
    "answer removed; the teacher finds no answer to any of them."
)


@dataclass(frozen=True)
class FilterSpec:
    """The specification of a filter run.

    Attributes:
        corpus: the directory of the corpus to filter.
        settings: which questions are kept.
        version, command: the mtkd version and the command line, for the manifest and the card.
    """

    corpus: Path
    settings: FilterSettings
    version: str
    command: str


@dataclass(frozen=True)
class Filtered:
    """A filtered corpus: its manifest, the counts, and how many shards were newly made and how many kept.

    Attributes:
        requested: the requested share of unanswerable questions.
    """

    manifest: CorpusManifest
    tally: Tally
    made: int
    kept: int
    requested: float


@dataclass(frozen=True)
class _Checked:
    """The checks of the whole corpus: file -> verdict on each row, and the highest value of `copy`."""

    verdicts: Mapping[str, Sequence[Reason | None]]
    highest: int


def open_questions(directory: Path) -> CorpusManifest:
    """Read the manifest of a corpus of questions.

    Raises:
        UserError: as for `tasks.data.corpus_reader.read_corpus`; also if the corpus has no questions or
            another kind.
    """
    manifest = read_corpus(directory)
    if manifest.kind != "questions":
        raise UserError(
            f"{directory} is a corpus of {manifest.kind}, made by the method {manifest.method!r}",
            expected="a corpus of questions",
            hint="make one with `mtkd.augment.generate_questions`",
        )
    if not any(shard.rows for shard in manifest.shards):
        raise UserError(
            f"the corpus {directory} has no questions", hint="generate it again with `overwrite=True`"
        )
    return manifest


def filter_corpus(
    spec: FilterSpec,
    answerer: Answerer,
    out: Path,
    *,
    workers: Workers = THIS_PROCESS,
    load: Callable[[], Answerer] | None = None,
    overwrite: bool = False,
    group: ProcessGroup = ALONE,
    advance: Advance = ignore,
) -> Filtered:
    """Filter the corpus and write the result to `out`, making only the shards that are missing.

    Args:
        workers: what filters the shards; the output does not depend on it.
        load: loads the answerer in other processes.
        overwrite: first remove the corpus of another run from `out`.
        group: the processes that the shards are divided among; each makes this call.
        advance: called with the number of questions just decided (including those of finished shards) times
            the number of ranks, so that one rank can report progress for all.

    Raises:
        UserError: the input is not a corpus of questions, a shard was altered, `out` holds something else or
            is being written by another process, or no question was kept (`out` is then left empty).
    """
    manifest = open_questions(spec.corpus)
    checked = _check_texts(spec, manifest)
    key = _key(spec, manifest, answerer.digest)
    sources = _plan(spec, manifest)
    output = ShardedOutput(out, key, list(sources), _FilteredFormat(QUESTION_SCHEMA))

    opened = load if load and workers.in_other_processes else lambda: answerer

    def inputs(shard: PlannedShard) -> _Part:
        source, start = sources[shard], shard.rows[0]
        verdicts = checked.verdicts[source.file][start : start + shard.size]
        return spec.corpus.resolve(), source, start, verdicts

    difference = partial(corpus_difference, out)
    with open_directory(out, CORPUS_KIND, key, overwrite=overwrite, group=group, difference=difference):
        recorded = corpus_digests(out)
        missing = output.missing(recorded)
        advance(total_size(output.shards) - total_size(missing))
        output.write(
            missing,
            setup=partial(_filterer, opened, spec.settings, checked.highest),
            inputs=inputs,
            workers=workers,
            group=group,
            advance=advance,
        )
        tallies = {shard.file: _tally(out / shard.file) for shard in output.shards}
        tally = Tally.total(tallies.values())
        group.wait()
        if group.is_main:
            if tally.rows == 0:
                remove_output(out, CORPUS_KIND)
            elif missing or not (out / MANIFEST).is_file():
                _finish(spec, manifest, answerer, output, recorded, tallies)
        group.wait()
        if tally.rows == 0:
            raise _nothing_left(tally)
    kept, requested = len(output.shards) - len(missing), spec.settings.unanswerable
    return Filtered(read_corpus_manifest(out), tally, len(missing), kept, requested)


def _check_texts(spec: FilterSpec, manifest: CorpusManifest) -> _Checked:
    """Read all questions once to find those that are not questions and those that were asked before."""
    seen, highest = Seen(), 1
    verdicts: dict[str, list[Reason | None]] = {}
    for shard in manifest.shards:
        table = read_shard(spec.corpus, shard, ["text", "parent", "copy"], verify=True)
        of_shard: list[Reason | None] = []
        for text, parent in zip(table["text"].to_pylist(), table["parent"].to_pylist(), strict=True):
            asks = spec.settings.any_form or is_question(text)
            of_shard.append(seen.check(text, parent) if asks else Reason.NO_QUESTION)
        verdicts[shard.file] = of_shard
        highest = max([highest, *table["copy"].to_pylist()])
    return _Checked(verdicts, highest)


def _key(spec: FilterSpec, manifest: CorpusManifest, teacher: str) -> str:
    """A digest of everything that affects the content of the shards."""
    files = [[shard.file, shard.task, shard.sha256] for shard in manifest.shards]
    parts = [CORPUS_FORMAT, QUESTION_SCHEMA.names, spec.settings.to_json(), files, teacher]
    return digest_bytes(json.dumps(parts))


def _plan(spec: FilterSpec, manifest: CorpusManifest) -> dict[PlannedShard, ShardEntry]:
    """The planned shards, each with the shard of the corpus that its rows come from."""
    sources: dict[PlannedShard, ShardEntry] = {}
    numbers = dict.fromkeys((shard.task for shard in manifest.shards), 0)
    for source in manifest.shards:
        for start in range(0, source.rows, spec.settings.shard_rows):
            rows = range(start, min(start + spec.settings.shard_rows, source.rows))
            file = f"data/{source.task}-{numbers[source.task]:05d}.parquet"
            numbers[source.task] += 1
            sources[PlannedShard(file, source.task, rows)] = source
    return sources


_Part: TypeAlias = tuple[Path, ShardEntry, int, Sequence[Reason | None]]  # see `inputs` of `filter_corpus`


def _filterer(
    load: Callable[[], Answerer], settings: FilterSettings, highest: int
) -> Callable[[_Part, Advance], FilteredShard]:
    """Load the answerer; returns what filters the rows of one shard."""
    answerer = load()

    def make(part: _Part, advance: Advance) -> FilteredShard:
        corpus, source, start, verdicts = part
        table = read_shard(corpus, source, None, verify=False)
        questions = questions_of(table.slice(start, len(verdicts)))
        return filter_shard(questions, verdicts, settings, highest, answerer, advance)

    return make


class _FilteredFormat(ParquetFormat):
    """Parquet files of filtered questions, with the key and the counts in the schema's metadata."""

    def write(self, path: Path, content: FilteredShard, key: str) -> None:  # type: ignore[override]
        """Write the rows of one shard."""
        counts = footer_text(key, {"words": 0, "changed": 0, "unchanged": 0})
        marks = {KEY: counts, _COUNTS: json.dumps(content.tally.to_json())}
        table = question_table(content.rows).replace_schema_metadata(marks)
        pq.write_table(table, path, compression="zstd", compression_level=1)


def _tally(path: Path) -> Tally:
    """Read the counts of a finished shard."""
    return Tally.from_json(json.loads(pq.read_metadata(path).metadata[_COUNTS]))


def _finish(
    spec: FilterSpec,
    source: CorpusManifest,
    answerer: Answerer,
    output: ShardedOutput,
    recorded: Mapping[str, str],
    tallies: Mapping[str, Tally],
) -> None:
    """Write the card, the report and the manifest."""
    out, total = output.directory, Tally.total(tallies.values())
    by_task = {
        task.name: Tally.total(tallies[shard.file] for shard in output.shards if shard.task == task.name)
        for task in source.tasks
    }
    manifest = CorpusManifest(
        format=CORPUS_FORMAT,
        method="filter",
        settings={**spec.settings.to_json(), "teacher": answerer.digest, "corpus": source.key},
        version=spec.version,
        command=spec.command,
        data=source.data,
        key=output.key,
        tasks=tuple(_task(task, by_task[task.name]) for task in source.tasks),
        shards=output.entries(recorded),
        kind="questions",
    )
    write_text(out / "README.md", filter_card(manifest, total, _ABOUT, labels=spec.settings.labels))
    report = {"all": total.to_json(), "tasks": {name: part.to_json() for name, part in by_task.items()}}
    write_record(out / REPORT, report)
    write_record(out / MANIFEST, manifest.to_json())


def _task(task: CorpusTask, tally: Tally) -> CorpusTask:
    return CorpusTask(task.name, 2, 1 + TRIES, tally.read, tally.rows, task.source_digest, 0.0, 0.0)


def _nothing_left(tally: Tally) -> UserError:
    """The error for a corpus in which no question was kept."""
    counts = "\n".join(f"  {count:>9}  {outcome}" for outcome, count, _ in tally.lines() if count != "0")
    return UserError(
        f"no question was kept:\n{counts}",
        hint="inspect the questions; to keep more, try `any_form=True`, `round_trip=False`, a lower "
        "`min_overlap` or `min_confidence`, or another `teacher`",
    )
