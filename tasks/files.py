"""Atomic writes, locks and digests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.errors import UserError

_UNUSABLE = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENOENT),
    *(errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn "disk full" and "not allowed" into a UserError that names the path."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        # safetensors reports a full disk only in its message
        if number in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):
            raise UserError(
                f"the disk is full: could not write {path}",
                hint="free some disk space and run the same command again; finished parts are kept",
            ) from error
        if number in _UNUSABLE:
            raise UserError(
                f"cannot write {path}: {os.strerror(number)}", hint="choose another path"
            ) from error
        raise


os.umask(_UMASK := os.umask(0))  # only reading it at import is safe with threads


def _finish(file: Path) -> None:
    """Give a file the permissions of any other new file (safetensors writes 0600), and flush it to disk."""
    os.chmod(file, 0o666 & ~_UMASK)
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it to `path` if the block succeeds.

    Even if the process is killed, readers see either the old file or the complete new one.

    Raises:
        UserError: the disk is full or the path cannot be written.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file and cannot be replaced", hint="name a file")
    path = path.resolve()  # replace the target of a link, not the link
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            yield temporary
            _finish(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path` that replaces `path` if the block succeeds.

    Raises:
        UserError: the disk is full or the path cannot be written.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _finish(file)
            if path.exists():
                os.replace(path, old)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(out: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock the directory `out` against other processes. The lock is released however the process ends.

    Args:
        wait: wait until the lock is free instead of raising.

    Raises:
        UserError: another process holds the lock, or the directory cannot be created.
    """
    with disk_errors(out):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UserError(f"{out} is a file", hint="name a directory with `out`") from error
        handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another process is writing {out}",
                hint="wait until it has finished, or choose another `out`",
            ) from error
        yield
    finally:
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """True for a leftover of an atomic write whose process was killed."""
    return path.name.startswith(".") and path.suffix in (".tmp", ".old")


def drop_directory(path: Path) -> None:
    """Remove a directory atomically, together with leftovers of killed processes."""
    os.replace(path, path.with_name(f".{path.name}.{os.getpid()}.old"))
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        shutil.rmtree(left, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically (UTF-8)."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def digest_bytes(*parts: bytes | str) -> str:
    """A SHA-256 over the parts, each prefixed by its length."""
    return digest_parts(parts)


def digest_parts(parts: Iterable[bytes | str]) -> str:
    """`digest_bytes` of parts that are produced one after the other."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
