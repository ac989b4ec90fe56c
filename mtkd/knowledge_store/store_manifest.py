"""The manifest of a store."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.knowledge_store.contents import Contents, Per
from mtkd.knowledge_store.row_index import ROWS
from mtkd.models.saved_model import MODEL_FILES
from mtkd.output_files.output_directory import OutputKind, has_claim
from mtkd.output_files.sharded_output import DIGEST
from tasks.common.digests import DIGESTS, damage_of, damaged_files
from tasks.common.errors import UserError, counted
from tasks.common.records import Count, Name, Record, Width, read_record, write_record
from tasks.common.shards import ShardEntry, check_row_counts, find_task
from tasks.common.text_format import size_text
from tasks.data.corpus_reader import manifest_kind

STORE_FORMAT = 4
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoreTask(Record):
    """The entry of one task in a store.

    Attributes:
        rows: number of training rows, including the copies from a corpus.
        digest: digest of these rows (`tasks.data.loading.digest_rows`).
        n_outputs: number of logits per row or token.
        per: "row" or "token".
    """

    name: Name
    rows: Count
    digest: str
    n_outputs: Width
    per: Per = "row"


@dataclass(frozen=True)
class StoreTeacher(Record):
    """The teacher that a store was built with.

    Attributes:
        name: its name or directory, as given by the user.
        digest: SHA-256 of its weights; None for an encoder from the hub.
        tokeniser: digest of its tokeniser.
        precision: the precision in which it ran.
    """

    name: str
    digest: str | None
    tokeniser: str
    precision: str


@dataclass(frozen=True, repr=False)
class StoreManifest(Record):
    """The manifest of a store.

    Attributes:
        format: version of the layout and of what it holds; before 4, the tokens of two texts that a
            bi-encoder reads side by side were ranked together.
        version, command: the mtkd version and the command line that built the store.
        options: the options of that command, which are used again for repairs.
        teacher: the teacher that the store was built with.
        contents: the outputs that are kept of each row.
        corpus: the key of the corpus whose rows are included, or a digest of the keys of several; None if
            there is none.
        key: digest of everything that affects the content of the shards.
        tasks: the entries of the tasks.
        shards: the entries of the shards, with their files, rows and digests.
    """

    format: Count
    version: str
    command: str
    options: Mapping[str, Any]
    teacher: StoreTeacher
    contents: Contents
    corpus: str | None
    key: str
    tasks: tuple[StoreTask, ...]
    shards: tuple[ShardEntry, ...]

    def __post_init__(self) -> None:
        check_row_counts(self.tasks, self.shards)

    def task(self, name: str) -> StoreTask:
        """The entry of one task; UserError if the store has no such task."""
        return find_task(self.tasks, name, "store")

    def shards_of(self, task: str) -> list[ShardEntry]:
        """The shards of a task, in order."""
        return [shard for shard in self.shards if shard.task == task]

    def __str__(self) -> str:
        tasks = ", ".join(f"{task.name} ({counted(task.rows, 'row')})" for task in self.tasks)
        shards = counted(len(self.shards), "shard")
        return "\n".join(
            [
                f"<StoreManifest {tasks}; {shards}, {size_text(self.bytes)}",
                *(f"  {line}" for line in self.contents.describe()),
                f"  teacher {self.teacher.name}, run in {self.teacher.precision}>",
            ]
        )

    __repr__ = __str__

    @property
    def bytes(self) -> int:
        """Total size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def write(self, directory: Path) -> None:
        """Write the manifest, which marks the store as complete."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values |= {"teacher": vars(self.teacher), "contents": self.contents.to_json()}
        values |= {"tasks": [vars(t) for t in self.tasks], "shards": [vars(s) for s in self.shards]}
        write_record(directory / MANIFEST, values | {"options": dict(self.options)})


def _read_key(directory: Path) -> str | None:
    """The key of the finished store in a directory; None for the manifest of anything else."""
    file = directory / MANIFEST
    raw = read_record(file, object) if file.is_file() else None
    is_store = isinstance(raw, dict) and {"format", "teacher", "contents", "shards"} <= raw.keys()
    return raw.get("key") if is_store else None  # type: ignore[attr-defined]


def _listed(directory: Path) -> set[str]:
    """The files of a finished store whose names depend on its tasks."""
    manifest = read_store_manifest(directory)
    indices = {ROWS.format(task=task.name) for task in manifest.tasks}
    return indices | {shard.file for shard in manifest.shards}


_SHARDS = r"shards/[^/]+-\d{5,}\.safetensors"
_WORK = _SHARDS + re.escape(DIGEST)
_VARIABLE = (r"rows/[^/]+\.parquet", _SHARDS)
STORE_KIND = OutputKind(
    "knowledge store",
    MANIFEST,
    (MANIFEST, rf"teacher/{MODEL_FILES}", rf"rows/{DIGESTS}", *_VARIABLE, _WORK),
    _read_key,
    work=(_WORK,),
    variable=_VARIABLE,
    listed=_listed,
)


def read_store_manifest(directory: Path) -> StoreManifest:
    """Read the manifest of a store without reading the shards.

    Raises:
        UserError: the directory is not a store, or the store is unfinished, damaged or of a newer format.
    """
    path = directory / MANIFEST
    if not path.is_file():
        unfinished = has_claim(directory)
        problem = "an unfinished knowledge store" if unfinished else "not a knowledge store"
        raise UserError(
            f"{directory} is {problem}: it has no {MANIFEST}",
            expected="a directory written by `mtkd.build_store`",
            hint="run its `mtkd.build_store` again; it resumes"
            if unfinished
            else "build one: `mtkd.build_store(recipe='R', data='D', tasks='T', teacher='DIR', out='DIR')`",
        )
    if manifest_kind(path) == "corpus":
        raise UserError(
            f"{directory} is a corpus, not a knowledge store",
            expected="a directory written by `mtkd.build_store`",
            hint="`mtkd.distill` takes it as `corpus`",
        )
    hint = "build the store again with `overwrite=True`"
    return read_record(path, StoreManifest, newest=STORE_FORMAT, hint=hint)


def is_store(directory: Path) -> bool:
    """Whether a directory holds a finished store, whose manifest may be damaged."""
    return manifest_kind(directory / MANIFEST) == "knowledge store"


def damaged_shards(directory: Path, manifest: StoreManifest) -> dict[str, str]:
    """Read all files of a store and return the damaged ones: file -> what is wrong with it."""
    states = {shard.file: shard.damage(directory, digest=True) for shard in manifest.shards}
    for part in ("rows", "teacher"):
        damaged = damaged_files(directory / part)
        states |= {f"{part}/{file}": damage_of(directory / part / file) for file in damaged}
    return {file: state for file, state in states.items() if state}


def damage_error(directory: Path, states: Mapping[str, str]) -> UserError:
    """The error that names damaged shards, at most three of them."""
    named = [f"shard {directory / file} {state}" for file, state in itertools.islice(states.items(), 3)]
    more = len(states) - len(named)
    return UserError(
        "; ".join(named) + (f"; and {more:,} more" if more else ""),
        hint=f"`mtkd.repair_store({str(directory)!r})` rebuilds only the damaged shards",
    )
