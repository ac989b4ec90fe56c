"""Files that are either whole or absent: atomic writes and digests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import UserError


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn "disk full" and "not allowed" into a UserError that names the path."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        # safetensors tells of a full disk in words of its own
        if number in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):
            raise UserError(
                f"the disk is full: could not write {path}",
                hint="free some space and run the same command again; finished parts are kept",
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENOENT):
            raise UserError(
                f"cannot write {path}: {os.strerror(number)}", hint="choose another place"
            ) from error
        raise


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds.

    A reader, or a process killed at any moment, sees the old file or the whole new one.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no regular file, so it cannot be replaced", hint="name a file")
    path = path.resolve()  # a link stays a link
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            yield temporary
            with open(temporary, "rb+") as handle:
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; it takes the place of `path` if the block succeeds.

    Raises:
        UserError: the disk is full or the place cannot be written.
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
                    with open(file, "rb+") as handle:
                        os.fsync(handle.fileno())
            if path.exists():
                os.replace(path, old)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(out: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing the directory `out`; the lock goes with the process, however it ends.

    Args:
        wait: until it is free.

    Raises:
        UserError: another process holds it, or there can be no such directory.
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
                f"another process is writing {out}", hint="wait until it has ended, or name another `out`"
            ) from error
        yield
    finally:
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """True for what an atomic write leaves behind if the process is killed in the middle."""
    return path.name.startswith(".") and path.suffix in (".tmp", ".old")


def drop_directory(path: Path) -> None:
    """Remove a directory so that a reader sees all of it or nothing, and what killed processes left of it."""
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


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is not there or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def digest_bytes(*parts: bytes | str) -> str:
    """A SHA-256 over the parts, each prefixed by its length."""
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


def refuse_newer(raw: Any, known: int, what: str) -> None:
    """Refuse what a newer version wrote.

    Args:
        raw: a description read from JSON, its version under "format".
        known: the highest format that this version reads.
        what: how to name it: "DIR is a corpus".

    Raises:
        UserError: its format is higher.
    """
    found = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(found, int) and found > known:
        raise UserError(
            f"{what} of format {found}",
            expected=f"formats up to {known}",
            hint="upgrade mtkd, or make it again with this version",
        )
