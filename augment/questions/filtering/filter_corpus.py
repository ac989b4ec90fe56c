"""Filter a corpus of questions with a teacher: sharded, resumable, the same bytes however it was interrupted.

Each file of the result comes of a run of rows of one file of the corpus, so that files can be made by several
processes and in any order; only what is asked twice is found over the whole corpus, by every process.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from augment.corpus_writer import make_room, noted_shards, shard_entry
from augment.distributed import ALONE, ProcessGroup
from augment.questions.filtering.answerability import Answerer
from augment.questions.filtering.filter_report import REPORT, Tally, card, pack
from augment.questions.filtering.filter_shard import FilteredShard, FilterSettings, filter_shard
from augment.questions.filtering.heuristics import Reason, Seen, is_question
from augment.questions.filtering.unanswerable import TRIES
from augment.questions.question_rows import question_table, questions_of
from augment.shards import KEY, Advance, PlannedShard, finished
from tasks.corpus_reader import (
    FORMAT,
    MANIFEST,
    QUESTION_SCHEMA,
    CorpusManifest,
    CorpusShard,
    CorpusTask,
    read_corpus,
    read_shard,
)
from tasks.errors import UserError
from tasks.files import atomic_path, digest_bytes, locked, write_json, write_text

_COUNTS = b"mtkd.filter"  # of the parquet metadata
_ABOUT = (
    "Questions were dropped that are none, that were asked before, that copy their context, that the teacher "
    "finds no answer to, or whose answer is not the one that the question was made from (where that is not "
    "known: not what the teacher reads out of the answer's sentence and its neighbours alone). Rows without "
    "an answer are kept questions with another paragraph, or with the sentence of the answer taken out; the "
    "teacher finds no answer to any of them."
)


@dataclass(frozen=True)
class FilterJob:
    """A corpus to be filtered.

    Attributes:
        corpus: its directory; `settings`: what is kept.
        version: the mtkd that filters it; `command`: the command line, for the manifest and the card.
    """

    corpus: Path
    settings: FilterSettings
    version: str
    command: str


@dataclass(frozen=True)
class Filtered:
    """A filtered corpus: its manifest, the counts, and how many shards were made now and kept from before."""

    manifest: CorpusManifest
    tally: Tally
    made: int
    kept: int


@dataclass(frozen=True)
class _Piece:
    """A planned shard, and the shard of the corpus whose rows `start` to `stop` it comes of."""

    planned: PlannedShard
    source: CorpusShard


@dataclass(frozen=True)
class _Checked:
    """What was found over the whole corpus: file -> verdicts of its rows, and the highest `copy`."""

    verdicts: Mapping[str, Sequence[Reason | None]]
    highest: int


def open_questions(directory: Path) -> CorpusManifest:
    """The manifest of a corpus of questions.

    Raises:
        UserError: as `tasks.corpus_reader.read_corpus`, or it holds something else, or nothing.
    """
    manifest = read_corpus(directory)
    if manifest.kind != "questions":
        raise UserError(
            f"{directory} is a corpus of {manifest.kind}, made by the method {manifest.method!r}",
            expected="a corpus of questions",
            hint="make one with `mtkd augment questions generate`",
        )
    if not any(shard.rows for shard in manifest.shards):
        raise UserError(f"the corpus {directory} holds no questions", hint="make it again with --overwrite")
    return manifest


def run(
    job: FilterJob,
    answerer: Answerer,
    out: Path,
    *,
    overwrite: bool = False,
    ranks: ProcessGroup = ALONE,
    advance: Advance = lambda count: None,
) -> Filtered:
    """Filter the corpus into `out`, or what is missing of it.

    Args:
        overwrite: remove another job's corpus from `out` first.
        ranks: the processes that share the work; each calls this with the same job.
        advance: called with the number of questions just decided by this process (finished ones included).

    Raises:
        UserError: no corpus of questions, a shard was altered, `out` holds something else or is being written
            by another process, or no question was kept (nothing is left in `out` then).
    """
    manifest = open_questions(job.corpus)
    if out.resolve() == job.corpus.resolve():
        raise UserError(f"{out} is the corpus itself", hint="name another directory with --out")
    checked = _check_texts(job, manifest)
    pieces = _plan(job, manifest, answerer.digest)
    with locked(out) if ranks.first else contextlib.nullcontext():
        if ranks.first:
            planned = [piece.planned for piece in pieces]
            make_room(out, planned, overwrite=overwrite, reports=("README.md", REPORT))
        ranks.wait()
        missing = _missing(pieces, out)
        ranks.wait()
        done = [piece for piece in pieces if piece not in missing]
        advance(sum(_read(piece) for piece in done[ranks.number :: ranks.count]))
        for piece in missing[ranks.number :: ranks.count]:
            _write(job, piece, checked, answerer, out, advance)
        ranks.wait()
        result, tally = _finish(job, manifest, answerer, pieces, out, ranks)
        ranks.wait()
    return Filtered(result, tally, len(missing), len(pieces) - len(missing))


def _check_texts(job: FilterJob, manifest: CorpusManifest) -> _Checked:
    """Read all questions once: those that are none, and those asked before."""
    seen, highest = Seen(), 1
    verdicts: dict[str, list[Reason | None]] = {}
    for shard in manifest.shards:
        table = read_shard(job.corpus, shard, ["text", "parent", "copy"], verify=True)
        of_shard: list[Reason | None] = []
        for text, parent in zip(table["text"].to_pylist(), table["parent"].to_pylist(), strict=True):
            asks = job.settings.any_form or is_question(text)
            of_shard.append(seen.check(text, parent) if asks else Reason.NO_QUESTION)
        verdicts[shard.file] = of_shard
        highest = max([highest, *table["copy"].to_pylist()])
    return _Checked(verdicts, highest)


def _plan(job: FilterJob, manifest: CorpusManifest, teacher: str) -> list[_Piece]:
    """The shards of the job; their key is the digest of all that decides their content."""
    files = [[shard.file, shard.task, shard.sha256] for shard in manifest.shards]
    key = digest_bytes(json.dumps([FORMAT, QUESTION_SCHEMA.names, job.settings.to_json(), files, teacher]))
    pieces: list[_Piece] = []
    numbers = dict.fromkeys((shard.task for shard in manifest.shards), 0)
    for shard in manifest.shards:
        for start in range(0, shard.rows, job.settings.shard_rows):
            stop = min(start + job.settings.shard_rows, shard.rows)
            file = f"data/{shard.task}-{numbers[shard.task]:05d}.parquet"
            numbers[shard.task] += 1
            planned = PlannedShard(file, shard.task, start, stop, 1 + TRIES, key)
            pieces.append(_Piece(planned, shard))
    return pieces


def _missing(pieces: Sequence[_Piece], out: Path) -> list[_Piece]:
    """The pieces whose shard is not there yet, or not whole."""
    noted = noted_shards(out)
    shards = [(piece, piece.planned, noted.get(piece.planned.file)) for piece in pieces]
    return [piece for piece, shard, sha256 in shards if not finished(out / shard.file, shard, sha256)]


def _read(piece: _Piece) -> int:
    """Questions of the corpus that the piece comes of."""
    return piece.planned.stop - piece.planned.start


def _write(
    job: FilterJob, piece: _Piece, checked: _Checked, answerer: Answerer, out: Path, advance: Advance
) -> None:
    """Make one shard, whole or not at all."""
    part = slice(piece.planned.start, piece.planned.stop)
    table = read_shard(job.corpus, piece.source, None, verify=False)
    questions = questions_of(table.slice(part.start, _read(piece)))
    verdicts = checked.verdicts[piece.source.file][part]
    sifted = filter_shard(questions, verdicts, job.settings, checked.highest, answerer, advance)
    with atomic_path(out / piece.planned.file) as temporary:
        pq.write_table(_marked(sifted, piece.planned.key), temporary, compression="zstd", compression_level=1)


def _marked(sifted: FilteredShard, key: str) -> pa.Table:
    """The table, with the job's key and the counts for the footer."""
    account = {"key": key, "words": 0, "changed": 0, "unchanged": 0}
    marks = {KEY: json.dumps(account), _COUNTS: pack(sifted.tally)}
    return question_table(sifted.rows).replace_schema_metadata(marks)


def _tally(path: Path) -> Tally:
    """The counts of a finished shard."""
    return Tally.from_json(json.loads(pq.read_metadata(path).metadata[_COUNTS]))


def _finish(
    job: FilterJob,
    source: CorpusManifest,
    answerer: Answerer,
    pieces: Sequence[_Piece],
    out: Path,
    ranks: ProcessGroup,
) -> tuple[CorpusManifest, Tally]:
    """Write card, report and manifest of the finished shards; UserError if they hold no question."""
    tallies = {piece.planned.file: _tally(out / piece.planned.file) for piece in pieces}
    tally = Tally.total(tallies.values())
    if tally.rows == 0:
        ranks.wait()
        raise _nothing_left(tally, pieces, out, ranks)
    by_task = {
        task.name: Tally.total(tallies[p.planned.file] for p in pieces if p.planned.task == task.name)
        for task in source.tasks
    }
    manifest = CorpusManifest(
        format=FORMAT,
        method="filter",
        settings={**job.settings.to_json(), "teacher": answerer.digest, "corpus": source.key},
        version=job.version,
        command=job.command,
        data=source.data,
        key=pieces[0].planned.key,
        tasks=tuple(_task(task, by_task[task.name]) for task in source.tasks),
        shards=tuple(shard_entry(out, piece.planned, tallies[piece.planned.file].rows) for piece in pieces),
        kind="questions",
    )
    if ranks.first:
        write_text(out / "README.md", card(manifest, tally, _ABOUT, labels=job.settings.labels))
        report = {"all": tally.to_json(), "tasks": {name: part.to_json() for name, part in by_task.items()}}
        write_json(out / REPORT, report)
        write_json(out / MANIFEST, manifest.to_json())
    return manifest, tally


def _task(task: CorpusTask, tally: Tally) -> CorpusTask:
    return CorpusTask(task.name, 2, 1 + TRIES, tally.read, tally.rows, task.source_digest, 0.0, 0.0)


def _nothing_left(tally: Tally, pieces: Sequence[_Piece], out: Path, ranks: ProcessGroup) -> UserError:
    """The error for a corpus of which nothing is left; the empty shards go."""
    if ranks.first:
        for piece in pieces:
            (out / piece.planned.file).unlink()
        (out / "data").rmdir()
    counts = "\n".join(f"  {count:>9}  {what}" for what, count, _ in tally.lines() if count != "0")
    return UserError(
        f"no question was kept:\n{counts}",
        hint="look at the questions; --any-form, --no-round-trip, a lower --min-overlap or --min-confidence, "
        "or another --teacher keep more",
    )
