"""Reading an augmented corpus: a manifest and shards of unlabelled copies.

    DIR/manifest.json              describes the corpus and how it was made; written last
    DIR/data/<task>-00000.parquet  the copies (`SCHEMA`), each after the earlier copies of its row
    DIR/README.md                  the dataset card

`augment` writes corpora and `mtkd` reads them; this module is all they share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from tasks.common.errors import UserError, did_you_mean_path
from tasks.common.records import Count, Name, Record, Share, Size, read_record
from tasks.common.shards import ShardEntry, check_row_counts, find_task
from tasks.data.rows import ANSWERS, Rows, answered

CORPUS_FORMAT = 2  # format 1 digests rows with digest_rows, format 2 with digest_blocks
MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    [
        ("task", pa.dictionary(pa.int32(), pa.string())),
        ("parent", pa.string()),
        ("copy", pa.int32()),
        ("text", pa.string()),
        ("text_pair", pa.string()),
        ("label", pa.float64()),
        ("method", pa.dictionary(pa.int32(), pa.string())),
    ]
)
# Rows of a `questions` corpus: `text` is the question, `text_pair` its context, `parent` the paragraph's uid.
QUESTION_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("source", pa.string()),  # where the paragraph comes from, such as a title
        ("answer", pa.string()),  # a teacher's answer; "" = the context has none; null = unlabelled
        ("answer_start", pa.int32()),  # offset of its first character; -1 = no answer; null = unlabelled
        ("asked_for", pa.string()),  # the answer that the question was generated for; null = none
    ]
)
_LONGEST = 2**31 - 1
_NEVER_NULL = ("task", "parent", "copy", "text", "text_pair")


@dataclass(frozen=True)
class CorpusTask(Record):
    """One task of a corpus.

    Attributes:
        name: the task.
        texts: number of text columns, 1 or 2.
        copies: copies per source row.
        source_rows: number of source rows; `rows` is copies * source_rows, or less, since rows without text
            are not copied (for questions: at most that).
        source_digest: digest of the source rows of the training split (`tasks.data.loading.digest_blocks`).
        words_changed: share of the copies' words that were replaced.
        unchanged: share of the copies in which no word was replaced.
        unlabelled: number of unlabelled rows of the task, which are the last ones of the source rows.
        unlabelled_digest: digest of these; "" if there are none.
    """

    name: Name
    texts: Annotated[int, Field(ge=1, le=2)]
    copies: Size
    source_rows: Count
    rows: Count
    source_digest: str
    words_changed: Share
    unchanged: Share
    unlabelled: Count = 0
    unlabelled_digest: str = ""


@dataclass(frozen=True)
class CorpusManifest(Record):
    """The manifest of a corpus.

    Attributes:
        format: version of the layout.
        method: how the copies were made, such as "mask".
        settings: the settings of that method.
        version, command: the version of mtkd and the command line that made the corpus.
        data: name of the source data.
        key: digest of everything that determines the content of the shards.
        tasks, shards: the content, in the order in which it was made.
        kind: "copies" of task rows, or "questions", which are new rows of a `span` task (`QUESTION_SCHEMA`).
        counts: what the method counted, such as tokens that were paid for.
    """

    format: Count
    method: str
    settings: Mapping[str, Any]
    version: str
    command: str
    data: str
    key: str
    tasks: tuple[CorpusTask, ...]
    shards: tuple[ShardEntry, ...]
    kind: Annotated[str, Field(pattern=r"^(copies|questions)\z")] = "copies"
    counts: Mapping[str, Count] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_row_counts(self.tasks, self.shards)

    @property
    def rows(self) -> int:
        """Number of rows of all tasks."""
        return sum(task.rows for task in self.tasks)

    def task(self, name: str) -> CorpusTask:
        """The entry of one task; raises UserError if the corpus lacks it."""
        return find_task(self.tasks, name, "corpus")

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {**dataclasses.asdict(self), "settings": dict(self.settings), "counts": dict(self.counts)}


def read_corpus(directory: Path) -> CorpusManifest:
    """Read the manifest of a corpus and check that every shard exists and has the recorded size.

    Raises:
        UserError: not a corpus, unfinished, of a newer format, or a shard is missing or truncated.
    """
    manifest = read_corpus_manifest(directory)
    for shard in manifest.shards:
        _refuse_damage(directory, shard, digest=False)
    return manifest


def read_corpus_manifest(directory: Path) -> CorpusManifest:
    """Read the manifest without looking at the shards; raises UserError like `read_corpus`."""
    path = directory / MANIFEST
    if not path.is_file():
        unfinished = any(directory.glob("data/*.parquet"))
        state = "an unfinished" if unfinished else "not a"
        problem = f"{directory} is {state} corpus: it has no {MANIFEST}"
        if not directory.exists():
            problem = f"there is no corpus {directory}{did_you_mean_path(directory)}"
        raise UserError(
            problem,
            expected="a directory written by `mtkd.augment`",
            hint="make the same call of `mtkd.augment` again to resume it"
            if unfinished
            else "make one with `mtkd.augment.mask(out='DIR', ...)`",
        )
    if manifest_kind(path) == "knowledge store":
        raise UserError(
            f"{directory} is a knowledge store, not a corpus",
            expected="a directory written by `mtkd.augment`",
            hint="`mtkd.distill` takes it as `store`",
        )
    hint = "make the corpus again with `overwrite=True`"
    return read_record(path, CorpusManifest, newest=CORPUS_FORMAT, hint=hint)


def manifest_kind(path: Path) -> str | None:
    """What a manifest.json describes: a "corpus" or a "knowledge store"; None for anything else."""
    values = None
    with contextlib.suppress(OSError, ValueError, RecursionError):  # `read_record` raises the errors
        values = json.loads(path.read_bytes())
    keys = values.keys() if isinstance(values, dict) else ()
    return (
        "corpus" if "method" in keys else "knowledge store" if {"teacher", "contents"} <= set(keys) else None
    )


def corpus_rows(directory: Path, task: str) -> Rows:
    """All rows of one task. Only answered questions are labelled; uids are "<parent>#<copy>".

    The SHA-256 of each shard is first compared with the manifest.

    Raises:
        UserError: as for `read_corpus`; the corpus lacks the task; a shard was altered; more than 2 GiB of
            text.
    """
    manifest = read_corpus(directory)
    entry = manifest.task(task)
    columns = ["parent", "copy", "text", "text_pair"][: 2 + entry.texts]
    has_answers = manifest.kind == "questions"
    columns += ["answer", "answer_start"] if has_answers else []
    parts = [
        read_shard(directory, shard, columns, verify=True) for shard in manifest.shards if shard.task == task
    ]
    table = pa.concat_tables(parts)
    numbers = pc.cast(table["copy"], pa.string())
    uids = _one_array(pc.binary_join_element_wise(table["parent"], numbers, "#"), entry)
    texts = tuple(_one_array(table[name], entry) for name in columns[2 : 2 + entry.texts])
    answers = _answers(table) if has_answers else None
    labels = np.full(len(uids), np.nan) if answers is None else answered(answers)
    return Rows(task, "corpus", uids, texts, labels, answers=answers)


def _answers(table: pa.Table) -> pa.StructArray:
    """Answers in SQuAD's form: lists of one answer, or empty lists for no answer; null = unlabelled."""
    pairs = zip(table["answer"].to_pylist(), table["answer_start"].to_pylist(), strict=True)
    answers = [
        None if text is None else {"text": [text] if text else [], "answer_start": [start] if text else []}
        for text, start in pairs
    ]
    return pa.array(answers, ANSWERS)


def read_shard(directory: Path, shard: ShardEntry, columns: list[str] | None, *, verify: bool) -> pa.Table:
    """Read columns of one shard (None = all); raises UserError if it was altered or cannot be read."""
    path = directory / shard.file
    if verify:
        _refuse_damage(directory, shard, digest=True)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be read: {error}") from error
    _check_columns(path, table, columns)
    if table.num_rows != shard.rows:
        raise _damaged(path, f"has {table.num_rows} rows, not {shard.rows}")
    return table


def _check_columns(path: Path, table: pa.Table, columns: list[str] | None) -> None:
    """Check that a shard has its columns, their types, and that only some of them may be null."""
    for name in columns or dict.fromkeys([*_NEVER_NULL, "method", *table.column_names]):
        index = QUESTION_SCHEMA.get_field_index(name)
        if index < 0:
            continue
        if (
            name not in table.column_names
            or table.schema.field(name).type != QUESTION_SCHEMA.field(index).type
        ):
            raise _damaged(path, f"has no column {name!r} of {QUESTION_SCHEMA.field(index).type}")
        if name in _NEVER_NULL and table[name].null_count:
            raise _damaged(path, f"has rows without {name!r}")


def _one_array(column: pa.ChunkedArray, entry: CorpusTask) -> pa.StringArray:
    size = pc.sum(pc.binary_length(column)).as_py() or 0
    if size > _LONGEST:
        raise UserError(
            f"the corpus holds {size} bytes of text of task {entry.name!r} ({entry.copies} copies per row)",
            expected=f"up to {_LONGEST} bytes per text column and task",
            hint="make the corpus with fewer copies (`copies`) or fewer rows (`limit`)",
        )
    return pa.concat_arrays([pa.array([], pa.string()), *column.chunks])


def _refuse_damage(directory: Path, shard: ShardEntry, *, digest: bool) -> None:
    if (state := shard.damage(directory, digest=digest)) is not None:
        raise _damaged(directory / shard.file, state)


def _damaged(path: Path, state: str) -> UserError:
    return UserError(
        f"corpus shard {path} {state}",
        hint="run the `mtkd.augment` call that made the corpus again; it rebuilds the damaged shards",
    )
