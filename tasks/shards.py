"""One file of a sharded output, as the output's manifest records it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.files import digest_file


@dataclass(frozen=True)
class ShardEntry:
    """One file: its path inside the output, task, rows, SHA-256 and size in bytes."""

    file: str
    task: str
    rows: int
    sha256: str
    bytes: int

    def damage(self, directory: Path, *, digest: bool) -> str | None:
        """What is wrong with the file, in words; None if nothing is.

        Args:
            digest: compare its SHA-256 too, which reads the whole file.
        """
        path = directory / self.file
        if not path.is_file():
            return "is missing"
        if (size := path.stat().st_size) != self.bytes:
            return f"has {size} bytes, not {self.bytes}"
        if digest and digest_file(path) != self.sha256:
            return "was altered: its SHA-256 is not the manifest's"
        return None
