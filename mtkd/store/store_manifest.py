"""The records of a store: its manifest, and what was asked for when it was built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.storage.output_directory import OutputKind
from mtkd.store.contents import Contents, Per
from tasks.errors import UserError, unknown
from tasks.files import read_json, refuse_newer, write_json
from tasks.shards import ShardEntry

STORE_FORMAT = 1
MANIFEST, BUILDING = "manifest.json", "building.json"


@dataclass(frozen=True)
class StoreTask:
    """What a store holds of one task.

    Attributes:
        rows: training rows, with the copies of a corpus.
        digest: of these rows (`tasks.sources.digest_rows`).
        n_outputs: logits a row, or a token.
        per: "row" or "token".
    """

    name: str
    rows: int
    digest: str
    n_outputs: int
    per: Per = "row"


@dataclass(frozen=True)
class StoreTeacher:
    """Whose knowledge it is.

    Attributes:
        name: as it was given.
        digest: SHA-256 of its weights; None for an encoder of the hub.
        tokeniser: digest of its tokeniser.
        precision: it was run in.
    """

    name: str
    digest: str | None
    tokeniser: str
    precision: str


@dataclass(frozen=True)
class StoreManifest:
    """All that is known of a store.

    Attributes:
        format: version of the layout.
        version: the mtkd that built it; `command`: the command line that did.
        options: of that command, which a repair repeats.
        corpus: key of the augmented corpus whose copies are in it, or None.
        key: digest of all that decides the shards' content.
    """

    format: int
    version: str
    command: str
    options: Mapping[str, Any]
    teacher: StoreTeacher
    contents: Contents
    corpus: str | None
    key: str
    tasks: tuple[StoreTask, ...]
    shards: tuple[ShardEntry, ...]

    def task(self, name: str) -> StoreTask:
        """The entry of one task; UserError if the store has no such task."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task of this store", name, (task.name for task in self.tasks))

    def shards_of(self, task: str) -> list[ShardEntry]:
        """The shards of a task, in order."""
        return [shard for shard in self.shards if shard.task == task]

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def write(self, directory: Path) -> None:
        """Write it: from now on the store is whole."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values |= {"teacher": vars(self.teacher), "contents": self.contents.to_json()}
        values |= {"tasks": [vars(t) for t in self.tasks], "shards": [vars(s) for s in self.shards]}
        write_json(directory / MANIFEST, values | {"options": dict(self.options)})


def _read_key(directory: Path) -> str | None:
    for name in (MANIFEST, BUILDING):
        if (directory / name).is_file():
            raw = read_json(directory / name)
            return raw.get("key") if isinstance(raw, dict) else None
    return None


STORE_KIND = OutputKind(
    "knowledge store",
    MANIFEST,
    (MANIFEST, BUILDING, r"teacher/.+", r"rows/.+\.parquet", r"shards/.+-\d{5,}\.safetensors"),
    _read_key,
)


def is_store(directory: Path) -> bool:
    """True if a store, finished or not, lies there."""
    return any((directory / name).is_file() for name in (MANIFEST, BUILDING))


def read_store_manifest(directory: Path) -> StoreManifest:
    """Read a store's manifest, without looking at the shards.

    Raises:
        UserError: not a store, unfinished, damaged, or of a newer format.
    """
    path = directory / MANIFEST
    if not path.is_file():
        unfinished = (directory / BUILDING).is_file()
        what = "an unfinished knowledge store" if unfinished else "not a knowledge store"
        raise UserError(
            f"{directory} is {what}: it has no {MANIFEST}",
            expected="a directory written by `mtkd store build`",
            hint="run its `mtkd store build` command again; it resumes"
            if unfinished
            else "build one: mtkd store build --recipe R --data D --tasks T --teacher DIR --out DIR",
        )
    raw = read_json(path)
    refuse_newer(raw, STORE_FORMAT, f"{directory} is a knowledge store")
    try:
        return StoreManifest(
            **{
                **raw,
                "teacher": StoreTeacher(**raw["teacher"]),
                "contents": Contents.from_json(raw["contents"]),
                "tasks": tuple(StoreTask(**task) for task in raw["tasks"]),
                "shards": tuple(ShardEntry(**shard) for shard in raw["shards"]),
            }
        )
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not a store's manifest: {error}", hint="build the store again with `overwrite=True`"
        ) from error


def damaged_shards(directory: Path, manifest: StoreManifest) -> dict[str, str]:
    """The damaged shards of a store: file -> what is wrong with it. Every shard is read."""
    states = {shard.file: shard.damage(directory, digest=True) for shard in manifest.shards}
    return {file: state for file, state in states.items() if state}


def damage_error(directory: Path, states: Mapping[str, str]) -> UserError:
    """The error that names damaged shards."""
    return UserError(
        "; ".join(f"shard {directory / file} {state}" for file, state in states.items()),
        hint=f"mtkd store build --repair --out {directory} makes the damaged shards again, and nothing else",
    )
