"""SHA-256 digests of files, and of values that identify what was computed from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def digest_bytes(*parts: bytes | str) -> str:
    """A SHA-256 over the parts, each prefixed by its length."""
    return digest_parts(parts)


@dataclass(frozen=True)
class LongPart:
    """A part of `digest_parts` of `size` bytes that is produced in blocks."""

    size: int
    blocks: Iterable[bytes]


def digest_parts(parts: Iterable[bytes | str | LongPart]) -> str:
    """`digest_bytes` of parts that are produced one after the other."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        long = raw if isinstance(raw, LongPart) else LongPart(len(raw), [raw])
        state.update(long.size.to_bytes(8, "little"))
        for block in long.blocks:
            state.update(block)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
