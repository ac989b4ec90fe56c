"""The records of a store: its manifest, and what was asked for when it was built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.store.contents import Contents, Per
from tasks.errors import UserError, unknown
from tasks.files import digest_file, read_json, refuse_newer, write_json

FORMAT = 1
MANIFEST, BUILDING = "manifest.json", "building.json"


@dataclass(frozen=True)
class StoreShard:
    """One file: its path inside the store, task, rows, SHA-256 and size in bytes."""

    file: str
    task: str
    rows: int
    sha256: str
    bytes: int


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
    shards: tuple[StoreShard, ...]

    def task(self, name: str) -> StoreTask:
        """The entry of one task; UserError if the store has no such task."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task of this store", name, (task.name for task in self.tasks))

    def shards_of(self, task: str) -> list[StoreShard]:
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


def is_store(directory: Path) -> bool:
    """True if a store, finished or not, lies there."""
    return any((directory / name).is_file() for name in (MANIFEST, BUILDING))


def read_manifest(directory: Path) -> StoreManifest:
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
            hint="run its `mtkd store build` command again; it goes on where it stopped"
            if unfinished
            else "build one: mtkd store build --recipe R --data D --tasks T --teacher DIR --out DIR",
        )
    raw = read_json(path)
    refuse_newer(raw, FORMAT, f"{directory} is a knowledge store")
    try:
        return StoreManifest(
            **{
                **raw,
                "teacher": StoreTeacher(**raw["teacher"]),
                "contents": Contents.from_json(raw["contents"]),
                "tasks": tuple(StoreTask(**task) for task in raw["tasks"]),
                "shards": tuple(StoreShard(**shard) for shard in raw["shards"]),
            }
        )
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not a store's manifest: {error}", hint="build the store again with --overwrite"
        ) from error


def damage(directory: Path, shard: StoreShard, *, digest: bool) -> str | None:
    """What is wrong with a shard, in words; None if nothing is.

    Args:
        digest: compare its SHA-256 too, which reads all of it.
    """
    path = directory / shard.file
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != shard.bytes:
        return f"has {size} bytes, not {shard.bytes}"
    if digest and digest_file(path) != shard.sha256:
        return "was altered: its SHA-256 is not the manifest's"
    return None


def damaged(directory: Path, shard: StoreShard, state: str) -> UserError:
    """The error that names a damaged shard."""
    return UserError(
        f"shard {directory / shard.file} {state}",
        hint=f"mtkd store build --repair --out {directory} makes it anew, and nothing else",
    )


def verify(directory: Path, manifest: StoreManifest, *, digest: bool) -> list[tuple[StoreShard, str]]:
    """The damaged shards of a store, each with what is wrong."""
    states = [(shard, damage(directory, shard, digest=digest)) for shard in manifest.shards]
    return [(shard, state) for shard, state in states if state]
