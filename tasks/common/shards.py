"""The entries of shards in the manifest of a sharded output, and checks of the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from pydantic import Field

from tasks.common.errors import unknown
from tasks.common.files import plain_path
from tasks.common.records import Count, Record, Text
from tasks.common.sha256 import digest_file


@dataclass(frozen=True)
class ShardEntry(Record):
    """One shard: its path inside the output, its task, number of rows, SHA-256 and size in bytes.

    Raises:
        ValueError: the path leads out of the output.
    """

    file: Annotated[str, Field(min_length=1, max_length=255)]
    task: Text
    rows: Count
    sha256: str
    bytes: Count

    def __post_init__(self) -> None:
        plain_path(self.file)

    def damage(self, directory: Path, *, digest: bool) -> str | None:
        """Describe what is wrong with the file; None if it is intact.

        Args:
            digest: also check the SHA-256, which reads the whole file.
        """
        path = directory / self.file
        if not path.is_file():
            return "is missing"
        if (size := path.stat().st_size) != self.bytes:
            return f"has {size} bytes, not {self.bytes}"
        if digest and digest_file(path) != self.sha256:
            return "was altered: its SHA-256 differs from the manifest"
        return None


class _TaskEntry(Protocol):
    """The entry of a task in a manifest."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int: ...


Entry = TypeVar("Entry", bound=_TaskEntry)


def find_task(tasks: Sequence[Entry], name: str, what: str) -> Entry:
    """The entry of one task of a manifest; raises UserError if there is none.

    Args:
        what: what the manifest describes, such as "store".
    """
    for task in tasks:
        if task.name == name:
            return task
    raise unknown(f"task of this {what}", name, (task.name for task in tasks))


def check_row_counts(tasks: Sequence[_TaskEntry], shards: Sequence[ShardEntry]) -> None:
    """Raise ValueError if the shards of a task do not have as many rows as its entry says."""
    for task in tasks:
        if task.rows != sum(shard.rows for shard in shards if shard.task == task.name):
            raise ValueError(f"shards with the {task.rows} rows of {task.name}")
