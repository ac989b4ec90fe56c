"""An augmented corpus on disk, as it is read: a manifest, and shards of unlabelled copies.

    DIR/manifest.json              what it is and how it was made; written last
    DIR/data/<task>-00000.parquet  the copies (`SCHEMA`), each copy after its elder sisters
    DIR/README.md                  the same for people

`augment` writes corpora and `mtkd` reads them; this module is all that they share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.errors import UserError, unknown
from tasks.files import read_json, refuse_newer
from tasks.rows import ANSWERS, Rows, answered
from tasks.shards import ShardEntry

CORPUS_FORMAT = 1
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
        ("source", pa.string()),  # what the paragraph says of itself, such as its title
        ("answer", pa.string()),  # a teacher's answer; "" = none in the context; null = unlabelled
        ("answer_start", pa.int32()),  # its first character in the context; -1 = none; null = unlabelled
        ("asked_for", pa.string()),  # the answer that the question was written for; null = for none
    ]
)
_LONGEST = 2**31 - 1


@dataclass(frozen=True)
class CorpusTask:
    """What a corpus holds of one task.

    Attributes:
        name: the task.
        texts: text columns, 1 or 2.
        copies: copies made of each source row.
        source_rows: rows that were copied; `rows` = copies * source_rows (of questions: at most so many).
        source_digest: digest of those rows (`tasks.sources.digest_rows`).
        words_changed: share of the copies' words that were replaced.
        unchanged: share of the copies in which no word was replaced.
    """

    name: str
    texts: int
    copies: int
    source_rows: int
    rows: int
    source_digest: str
    words_changed: float
    unchanged: float


@dataclass(frozen=True)
class CorpusManifest:
    """All that is known of a corpus.

    Attributes:
        format: version of the layout.
        method: how the copies were made ("mask"); settings: that method's numbers and names.
        version: the mtkd that made it; `command`: the command line that did.
        data: name of the source data.
        key: digest of everything that decides the shards' content.
        tasks, shards: what it holds, in the order it was made.
        kind: "copies" of rows of the tasks, or "questions": new rows of a `span` task (`QUESTION_SCHEMA`).
    """

    format: int
    method: str
    settings: Mapping[str, Any]
    version: str
    command: str
    data: str
    key: str
    tasks: tuple[CorpusTask, ...]
    shards: tuple[ShardEntry, ...]
    kind: str = "copies"

    @property
    def rows(self) -> int:
        """Copies of all tasks."""
        return sum(task.rows for task in self.tasks)

    def task(self, name: str) -> CorpusTask:
        """The entry of one task; UserError if the corpus has no such task."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task of this corpus", name, (task.name for task in self.tasks))

    def to_json(self) -> dict[str, Any]:
        """The manifest as it stands in the file."""
        return {**dataclasses.asdict(self), "settings": dict(self.settings)}


def read_corpus(directory: Path) -> CorpusManifest:
    """Read a corpus's manifest and see that its shards are there, each of the size noted.

    Raises:
        UserError: not a corpus, unfinished, of a newer format, or a shard is missing or cut short.
    """
    manifest = read_corpus_manifest(directory)
    for shard in manifest.shards:
        _refuse_damage(directory, shard, digest=False)
    return manifest


def read_corpus_manifest(directory: Path) -> CorpusManifest:
    """Read the manifest alone, without looking at the shards; UserError as `read_corpus`."""
    path = directory / MANIFEST
    if not path.is_file():
        unfinished = any(directory.glob("data/*.parquet"))
        problem = f"{directory} is an unfinished corpus" if unfinished else f"{directory} is not a corpus"
        raise UserError(
            f"{problem}: it has no {MANIFEST}",
            expected="a directory written by `mtkd augment`",
            hint="run the `mtkd augment` command again to resume it"
            if unfinished
            else "make one with `mtkd augment mask --out DIR`",
        )
    raw = read_json(path)
    refuse_newer(raw, CORPUS_FORMAT, f"{directory} is a corpus")
    try:
        tasks = tuple(CorpusTask(**task) for task in raw["tasks"])
        shards = tuple(ShardEntry(**shard) for shard in raw["shards"])
        return CorpusManifest(**{**raw, "tasks": tasks, "shards": shards})
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not a corpus manifest: {error}", hint="make the corpus again with `overwrite=True`"
        ) from error


def corpus_tasks(directory: Path) -> list[str]:
    """The names of the tasks that a corpus holds."""
    return [task.name for task in read_corpus(directory).tasks]


def corpus_rows(directory: Path, task: str, *, verify: bool = True) -> Rows:
    """All rows of one task, unlabelled but for answered questions; a row's uid is "<parent>#<copy>".

    Args:
        verify: compare each shard's SHA-256 with the manifest's first.

    Raises:
        UserError: as `read_corpus`; the task is not in it; a shard was altered; over 2 GiB of text.
    """
    manifest = read_corpus(directory)
    entry = manifest.task(task)
    columns = ["parent", "copy", "text", "text_pair"][: 2 + entry.texts]
    asked = manifest.kind == "questions"
    columns += ["answer", "answer_start"] if asked else []
    parts = [
        read_shard(directory, shard, columns, verify=verify)
        for shard in manifest.shards
        if shard.task == task
    ]
    table = pa.concat_tables(parts)
    numbers = pc.cast(table["copy"], pa.string())
    uids = _one_array(pc.binary_join_element_wise(table["parent"], numbers, "#"), entry)
    texts = tuple(_one_array(table[name], entry) for name in columns[2 : 2 + entry.texts])
    answers = _answers(table) if asked else None
    labels = np.full(len(uids), np.nan) if answers is None else answered(answers)
    return Rows(task, "corpus", uids, texts, labels, answers=answers)


def _answers(table: pa.Table) -> pa.StructArray:
    """The answers as lists of one, or of none where there is no answer; null = unlabelled."""
    pairs = zip(table["answer"].to_pylist(), table["answer_start"].to_pylist(), strict=True)
    found = [
        None if text is None else {"text": [text] if text else [], "answer_start": [start] if text else []}
        for text, start in pairs
    ]
    return pa.array(found, ANSWERS)


def read_shard(directory: Path, shard: ShardEntry, columns: list[str] | None, *, verify: bool) -> pa.Table:
    """Some columns of one shard (None = all); UserError if it was altered (`verify`) or cannot be read."""
    path = directory / shard.file
    if verify:
        _refuse_damage(directory, shard, digest=True)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be read: {error}") from error
    if table.num_rows != shard.rows:
        raise _damaged(path, f"has {table.num_rows} rows, not {shard.rows}")
    return table


def _one_array(column: pa.ChunkedArray, entry: CorpusTask) -> pa.StringArray:
    size = pc.sum(pc.binary_length(column)).as_py() or 0
    if size > _LONGEST:
        raise UserError(
            f"the corpus holds {size} bytes of text of task {entry.name!r}, {entry.copies} copies a row",
            expected=f"up to {_LONGEST} bytes a text column and task",
            hint="make it with fewer copies (`copies`) or fewer rows (`limit`)",
        )
    return pa.concat_arrays([pa.array([], pa.string()), *column.chunks])


def _refuse_damage(directory: Path, shard: ShardEntry, *, digest: bool) -> None:
    if (state := shard.damage(directory, digest=digest)) is not None:
        raise _damaged(directory / shard.file, state)


def _damaged(path: Path, state: str) -> UserError:
    return UserError(
        f"corpus shard {path} {state}",
        hint="run the `mtkd augment` command that made the corpus again; it remakes what is damaged",
    )
