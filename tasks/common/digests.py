"""Digests of the files that mtkd writes, to notice damage when they are read.

They detect damage, not forgery: whoever changes a file can change its digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError
from tasks.common.files import is_plain_path
from tasks.common.records import read_record, write_record

DIGESTS = "digests.json"
_WITHOUT = (DIGESTS, "README.md")  # users may edit a card
_HINT = f"restore it from a copy; if you changed it on purpose, delete {DIGESTS} beside it"


def quick_digest(path: Path) -> str:
    """The XXH3 digest of a file's bytes, 128 bits; reading the file takes longer than computing it."""
    import xxhash

    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()


def write_digests(directory: Path, *patterns: str) -> None:
    """Write `digests.json`, with the digest of every file in a directory that users do not edit.

    Args:
        patterns: only of files that match one of them, such as "predictions/*/*.parquet".
    """
    matching = {file for pattern in patterns or ("**/*",) for file in directory.glob(pattern)}
    files = sorted(file for file in matching if file.is_file() and file.name not in _WITHOUT)
    record_digests(directory, {file.relative_to(directory).as_posix(): quick_digest(file) for file in files})


def record_digests(directory: Path, digests: Mapping[str, str]) -> None:
    """Write `digests.json` with the digest of each file, as `quick_digest` computes it."""
    write_record(directory / DIGESTS, {"algorithm": "xxh3_128", "files": dict(digests)})


def read_digests(directory: Path) -> Mapping[str, str]:
    """The recorded digest of each file; {} if none are recorded, or `digests.json` is damaged.

    Raises:
        UserError: the disk failed to read `digests.json`.
    """
    return {} if damaged_files(directory, ()) else _recorded(directory) or {}


def check_digests(directory: Path, names: Iterable[str] | None = None) -> None:
    """Compare files with their recorded digests; a directory without digests passes.

    Args:
        names: the files to check, where recorded; None = all.

    Raises:
        UserError: a file is missing or has changed, or the digests cannot be read.
    """
    if damaged := _changed_files(directory, _recorded(directory), names):
        raise UserError(f"{directory / damaged[0]} {damage_of(directory / damaged[0])}", hint=_HINT)


def damage_of(file: Path) -> str:
    """What is wrong with a file that does not have its recorded digest, to follow its name in a message."""
    return "is damaged: it has changed since it was written" if file.is_file() else "is missing"


def damaged_files(directory: Path, names: Iterable[str] | None = None) -> Sequence[str]:
    """The files that are missing or have changed; see `check_digests`.

    If `digests.json` is damaged, it alone is returned, since the others cannot be checked.

    Raises:
        UserError: the disk failed to read `digests.json`.
    """
    try:
        digests = _recorded(directory)
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return [DIGESTS]
    return _changed_files(directory, digests, names)


def _recorded(directory: Path) -> Mapping[str, Any] | None:
    """The digest of each file; {} if none are recorded, None if they have another form.

    Raises:
        UserError: the file cannot be read, is not JSON, or has changed since it was written.
    """
    if not os.path.lexists(directory / DIGESTS):
        return {}
    files = read_record(directory / DIGESTS, dict[str, Any]).get("files")
    if not isinstance(files, dict) or not all(map(is_plain_path, files)):
        return None
    return files if all(isinstance(digest, str) for digest in files.values()) else None


def _changed_files(
    directory: Path, digests: Mapping[str, Any] | None, names: Iterable[str] | None
) -> Sequence[str]:
    if digests is None:
        return [DIGESTS]
    requested = digests if names is None else [name for name in names if name in digests]
    return [
        name
        for name in requested
        if not (directory / name).is_file() or quick_digest(directory / name) != digests[name]
    ]
