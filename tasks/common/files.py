"""Atomic writes of files and directories, and the paths that a manifest may name."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.common.errors import UserError
from tasks.common.reading import is_link_to_itself, not_regular, real_path
from tasks.common.urls import as_url, url_of

_UNUSABLE = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENOENT),
    *(errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
)


class DiskFullError(UserError):
    """There is no space left for a file, or it has reached the limit of its size."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn "disk full" and "not allowed" into a UserError that names the path."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        # safetensors reports a full disk only in its message
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or re.search("os error 2[78]", str(error)):
            limited = number == errno.EFBIG or "os error 27" in str(error)
            reason = "a file has reached the limit of its size" if limited else "the disk is full"
            remedy = "raise the limit (ulimit -f)" if limited else "free some disk space"
            raise DiskFullError(
                f"{reason}: could not write {path}", hint=f"{remedy} and run the same command again"
            ) from error
        if number in _UNUSABLE:
            raise UserError(
                f"cannot write {path}: {os.strerror(number)}", hint="choose another path"
            ) from error
        raise


os.umask(_umask := os.umask(0))  # only reading it at import is safe with threads
NEW_FILE_MODE = 0o666 & ~_umask  # the permissions that this process gives to new files


def _finish(file: Path) -> None:
    """Give a file the permissions of any other new file (safetensors writes 0600), and flush it to disk."""
    handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        os.fchmod(handle, NEW_FILE_MODE)
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary(path: Path, suffix: str = "tmp") -> Path:
    """A path beside `path` that cannot be guessed, and that `is_temporary` recognises."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{suffix}")


def is_temporary(path: Path) -> bool:
    """True for a leftover of an atomic write whose process was killed."""
    return re.fullmatch(r"\..+\.[0-9a-f]{16}\.(tmp|old)", path.name) is not None


@contextlib.contextmanager
def atomic_path(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it to `path` if the block succeeds.

    Even if the process is killed, readers see either the old file or the complete new one.

    Args:
        alone: True if the directory is not locked, so that no other code removes the leftovers of killed
            processes. The temporary file itself is then locked, and older ones for `path` that no process has
            locked are removed.

    Raises:
        UserError: the disk is full or the path cannot be written.
    """
    check_output_file(path)
    path = real_path(path)  # replace the target of a link, not the link
    with disk_errors(path):
        make_directory(path.parent)
        if alone:
            _remove_unheld(path)
        temporary, handle = _temporary(path), None
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            _hold(handle)
            yield temporary
            _finish(temporary)
            os.replace(temporary, path)
        except BaseException as error:
            # A signal may come as soon as the file is there. A file that could not be opened is not ours.
            if handle is not None or not isinstance(error, OSError):
                temporary.unlink(missing_ok=True)
            raise
        finally:
            if handle is not None:
                os.close(handle)


@contextlib.contextmanager
def directory_for(path: Path) -> Iterator[Path]:
    """Yield a path in a temporary directory; the file written there replaces `path` if the block succeeds.

    This is for libraries that write to a hidden file of their own beside the output, as safetensors does. If
    the process is killed, `remove_leftovers` removes the directory with that file.

    Args:
        path: what `atomic_path` yields.
    """
    folder = _temporary(path)
    folder.mkdir()
    try:
        yield folder / "file"
        os.replace(folder / "file", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_output_file(path: Path) -> None:
    """Check that a file could be created or replaced.

    Raises:
        UserError: the path is that of a URL, or of anything but a regular file, such as a directory.
    """
    _refuse_url(path)
    with disk_errors(path):
        if (path.exists() or is_link_to_itself(path)) and (problem := not_regular(path)):
            raise UserError(f"{path} {problem} and cannot be replaced", hint="name a file")


def _hold(handle: int) -> bool:
    """Lock an open file until it is closed, or until the process is killed; False if another one holds it."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # without such locks nothing counts as left over
        return False
    return True


def _remove_unheld(path: Path) -> None:
    """Remove the temporary files for a path that no process holds."""
    for leftover in filter(is_temporary, path.parent.glob(f".{glob.escape(path.name)}.*")):
        with contextlib.suppress(OSError), open(leftover, "rb") as file:
            if _hold(file.fileno()):
                leftover.unlink()


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path`, which replaces `path` as a whole if the block succeeds.

    Use this only for directories that nothing but mtkd writes, such as checkpoints; otherwise see
    `staged_directory`.

    Raises:
        UserError: the disk is full or the path cannot be written.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, old = _temporary(path), _temporary(path, "old")
        temporary.mkdir()
        try:
            yield temporary
            _finish_all(temporary)
            if path.exists():
                os.replace(path, old)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def staged_directory(path: Path, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary directory inside `path`, whose files are moved to `path` if the block succeeds.

    Files of other names stay, and `path` may be a link or a mount point.

    Args:
        marker: the file by which readers recognise a complete directory; it is moved last.

    Raises:
        UserError: the disk is full or the path cannot be written.
    """
    with disk_errors(path):
        make_directory(path)
        temporary = _temporary(path / "files")
        temporary.mkdir()
        try:
            yield temporary
            _finish_all(temporary)
            if marker is not None:
                (path / marker).unlink(missing_ok=True)
            move_files(temporary, path, marker)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def move_files(source: Path, target: Path, last: str | None = None) -> None:
    """Move a file, or all files of a directory (`last` at the end), to `target`; removes the directory."""
    inside = source.is_dir()  # an earlier call may have moved all files, and been killed
    files = [file for file in sorted(source.rglob("*")) if not file.is_dir()] if inside else [source]
    for file in sorted(files, key=lambda file: file == source / (last or "")):
        destination = target / file.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, destination)
    if inside:
        shutil.rmtree(source)


def _finish_all(directory: Path) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            _finish(file)


def _refuse_url(path: Path) -> None:
    if not path.is_absolute() and (url := url_of(path)):
        raise UserError(f"cannot write to {url} here", expected="a local path")


def make_directory(path: Path) -> None:
    """Create a directory, with its parents, unless it is there.

    Raises:
        UserError: the path is that of a URL or of a file.
    """
    _refuse_url(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{path} is a file", expected="a directory", hint="choose another `out`") from error


def remove_directory(path: Path) -> None:
    """Remove a directory that only mtkd writes; if the process is killed, no part of it stays at `path`.

    What is left then has the name of a temporary directory, and is removed like one.
    """
    old = _temporary(path, "old")
    os.replace(path, old)
    shutil.rmtree(old)


def is_plain_path(name: str) -> bool:
    """Whether a path that a manifest names is relative and stays inside the directory."""
    parts = PurePosixPath(name).parts
    return (
        bool(parts) and name == "/".join(parts) and ".." not in parts and name[0] != "/" and "\\" not in name
    )


def plain_path(name: str) -> str:
    """The relative path of a file inside a directory, as a manifest may name it.

    Raises:
        ValueError: the path is absolute, or leads out of the directory.
    """
    if not is_plain_path(name):
        raise ValueError(f"{name!r} is not the path of a file inside the directory")
    return name


def write_text(path: Path, text: str, *, alone: bool = False) -> None:
    """Write a text file atomically (UTF-8), with URLs in place of the paths of local copies.

    Args:
        alone: see `atomic_path`.
    """
    with atomic_path(path, alone=alone) as temporary:
        temporary.write_text(as_url(text), encoding="utf-8")


def write_json(path: Path, value: Any, *, alone: bool = False) -> None:
    """Write a JSON file atomically; for `alone`, see `atomic_path`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", alone=alone)
