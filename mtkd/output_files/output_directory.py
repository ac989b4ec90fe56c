"""The rules for all directories that mtkd writes: which may be written to, and what may be removed.

- One process at a time holds the lock of the directory.
- First, a claim is written: the hidden file `CLAIM`, which says which output is being written or removed. It
  stays until the output is finished, so that the work of a killed process can be resumed at any point.
- A directory must be empty, or hold an output of the same kind by its claim or its marker. If it holds other
  files, the error names them; they are never removed. Hidden files are ignored. Beside a run that is
  resumed, other files are allowed, because the user's callbacks may write some.
- An output with the same identity is resumed. A different one is an error unless `overwrite` is set.
- Overwriting removes only the files that mtkd writes for this kind of output. Where names are not fixed, a
  finished output lists its files. If the removal is interrupted, the next process removes the rest.
- Temporary files left by killed processes are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mtkd.output_files.distributed import ALONE, ProcessGroup
from tasks.common.errors import UserError
from tasks.common.files import DiskFullError
from tasks.common.locks import LOCK, locked, remove_leftovers
from tasks.common.records import read_record, write_record
from tasks.common.urls import with_urls

CLAIM = ".mtkd.json"
_FORMAT = 1  # of the claim
_MAX_NAMED = 3  # foreign files named in an error


@dataclass(frozen=True)
class OutputKind:
    """The files of one kind of output.

    Attributes:
        name: the name for messages, such as "corpus".
        marker: the file that identifies the output.
        files: regular expressions for the relative paths of all files that mtkd writes.
        read_identity: directory -> the identity of the output in it; None if there is no such output.
        work: regular expressions for work files, and for folders if empty, which are removed when the output
            is finished.
        is_finished: directory -> whether the output in it is complete; None = complete if the marker exists.
        tolerant: True if the directory of such an output may also hold other files.
        variable: regular expressions for those of `files` whose names depend on the data. As files of the
            user may have such names, only those in `listed` belong to a finished output.
        listed: directory -> the files that the finished output in it lists; None if it is not finished.
        records: regular expressions for files that are not worth keeping: an output that has only these can
            be replaced by another without `overwrite`; none by default.
    """

    name: str
    marker: str
    files: tuple[str, ...]
    read_identity: Callable[[Path], Any]
    work: tuple[str, ...] = ()
    is_finished: Callable[[Path], bool] | None = None
    tolerant: bool = False
    variable: tuple[str, ...] = ()
    listed: Callable[[Path], Collection[str] | None] = lambda path: None
    records: tuple[str, ...] = ()

    def ownership(self, path: Path) -> Callable[[str], bool]:
        """A function that tells whether mtkd wrote a file in a directory, by its relative path."""
        listed = None
        if not has_claim(path):  # else it is being written or removed
            with contextlib.suppress(UserError):  # the list is damaged
                listed = self.listed(path)
        return lambda file: (
            _matches(self.files, file)
            and (listed is None or file in listed or not _matches(self.variable, file))
        )

    def finished(self, path: Path) -> bool:
        """Whether the output in a directory is complete."""
        return self.is_finished(path) if self.is_finished else (path / self.marker).is_file()

    def has_only_records(self, path: Path) -> bool:
        """Whether the output in a directory ended before it had anything worth keeping."""
        return bool(self.records) and all(_matches(self.records, file) for file in _owned(path, self))


def check_directory(
    path: Path,
    kind: OutputKind,
    identity: Any,
    *,
    overwrite: bool = False,
    difference: Callable[[], str] | None = None,
) -> bool:
    """Check whether an output may be written to a directory, without changing anything.

    Args:
        identity: the identity of the output to be written, which covers everything that affects its content.
        overwrite: whether another output of this kind may be replaced.
        difference: describes how the existing output differs, for the error message.

    Returns:
        True if the directory holds this output or a part of it.

    Raises:
        UserError: the directory holds foreign files, or another output that may not be overwritten.
    """
    while True:
        stamps_before = _stamps(path, kind)
        try:
            return _check(path, kind, identity, overwrite, difference)
        except UserError:
            # Another process may have started or finished between two reads of the directory.
            if _stamps(path, kind) == stamps_before:
                raise


def _stamps(path: Path, kind: OutputKind) -> list[tuple[int, int] | None]:
    """Inodes and times of claim and marker, which change when an output is started, removed or finished."""
    found: list[tuple[int, int] | None] = []
    for file in (path / CLAIM, path / kind.marker):
        try:
            status = file.lstat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns))
    return found


def _check(
    path: Path, kind: OutputKind, identity: Any, overwrite: bool, difference: Callable[[], str] | None
) -> bool:
    """See `check_directory`."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file", expected="a directory", hint="choose another `out`")
    existing = existing_identity(path, kind)
    identity = with_urls(identity)  # as it is recorded
    has_output = existing is not None or _read_claim(path, kind) is not None
    others_allowed = has_output and kind.tolerant and not overwrite
    files = () if others_allowed else visible_files(path)
    owns = kind.ownership(path)
    # stop after a few files, since `path` may be a whole disk
    foreign = list(islice((file for file in files if not (has_output and owns(file))), _MAX_NAMED + 1))
    if foreign:
        and_more = ", ..." if len(foreign) > _MAX_NAMED else ""
        article = "an" if kind.name[0] in "aeiou" else "a"
        raise UserError(
            f"{path} holds files that do not belong to {article} {kind.name}: "
            f"{', '.join(foreign[:_MAX_NAMED])}{and_more}",
            hint="choose an empty or new directory with `out`",
        )
    if existing is None or overwrite:
        return False
    if existing != identity and kind.has_only_records(path):
        return False
    if existing != identity:
        reason = difference() if difference else "it was made with other settings or from other data"
        raise UserError(
            f"{path} holds another {kind.name}: {reason}",
            hint="resume it with its own settings, replace it with `overwrite=True`, or choose another "
            "directory with `out`",
        )
    return True


def existing_identity(path: Path, kind: OutputKind) -> Any:
    """The identity of the output in a directory, by its claim or its files; None if there is none."""
    claim = _read_claim(path, kind)
    return claim["identity"] if claim else kind.read_identity(path)


@contextlib.contextmanager
def open_directory(
    path: Path,
    kind: OutputKind,
    identity: Any,
    *,
    overwrite: bool = False,
    group: ProcessGroup = ALONE,
    difference: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Check and lock a directory for writing; see `check_directory` for the other arguments.

    Inside the `with` block, the directory is empty or holds this output, complete or in part.

    Args:
        group: the processes that write the output together; rank 0 holds the lock for all of them. They enter
            and leave the block together, so none of them reads the directory while rank 0 changes it.

    Raises:
        UserError: see `check_directory`; also if another process is writing there.
    """
    group.wait()  # every process has inspected the directory
    if not group.is_main:
        group.wait()
        yield
        group.wait()
        group.wait()
        return
    check_directory(path, kind, identity, overwrite=overwrite, difference=difference)  # before any change
    with locked(path):
        try:
            check_directory(path, kind, identity, overwrite=overwrite, difference=difference)
            _remove_leftovers(path)
            claim = _read_claim(path, kind)
            other = existing_identity(path, kind) not in (None, with_urls(identity))
            if overwrite or other or (claim and claim["identity"] is None):
                remove_output(path, kind)
            if not kind.finished(path):
                _write_claim(path, kind, identity)
            group.wait()
            yield
            group.wait()  # no process needs the work files any more
            if kind.finished(path):
                _remove_files(path, [file for file in _owned(path, kind) if _matches(kind.work, file)])
                folders = [entry for entry in path.rglob("*") if entry.is_dir()]
                _remove_folders(path, [f for f in folders if _matches(kind.work, str(f.relative_to(path)))])
                (path / CLAIM).unlink(missing_ok=True)
            group.wait()
        except BaseException as error:
            if path.is_dir() and {entry.name for entry in path.iterdir()} <= {CLAIM, LOCK}:
                (path / CLAIM).unlink(missing_ok=True)  # nothing has been written
            elif isinstance(error, DiskFullError) and not kind.has_only_records(path):
                raise DiskFullError(error.problem, hint=f"{error.hint}; finished parts are kept") from error
            raise


def remove_output(path: Path, kind: OutputKind) -> None:
    """Remove the files of an output, and then the folders that became empty."""
    files = _owned(path, kind)  # before the claim is written: only without one, the output lists its files
    _write_claim(path, kind, None)
    _remove_files(path, files)
    (path / CLAIM).unlink()


def has_claim(path: Path) -> bool:
    """True if the output in a directory is unfinished (or not cleaned up)."""
    return (path / CLAIM).is_file()


def _write_claim(path: Path, kind: OutputKind, identity: Any) -> None:
    """Record which output is being written; `identity`: None = it is being removed."""
    write_record(path / CLAIM, {"format": _FORMAT, "output": kind.name, "identity": identity})


def _read_claim(path: Path, kind: OutputKind) -> dict[str, Any] | None:
    """The claim of an output of this kind; None if there is none."""
    if not (path / CLAIM).is_file():
        return None
    claim = read_record(path / CLAIM, dict[str, Any], newest=_FORMAT)
    return claim if claim.get("output") == kind.name and "identity" in claim else None


def _matches(patterns: Iterable[str], file: str) -> bool:
    return any(re.fullmatch(pattern, file) for pattern in patterns)


def _owned(path: Path, kind: OutputKind) -> list[str]:
    """The relative paths of the files that mtkd wrote, the marker first."""
    return sorted(
        filter(kind.ownership(path), visible_files(path)), key=lambda file: (file != kind.marker, file)
    )


def _remove_files(path: Path, files: Iterable[str]) -> None:
    """Remove files by their relative paths, and then the folders that became empty."""
    paths = [path / file for file in files]
    for file_path in paths:
        file_path.unlink()
    _remove_folders(path, (folder for file_path in paths for folder in file_path.parents))


def _remove_folders(path: Path, folders: Iterable[Path]) -> None:
    """Remove those of the folders inside `path` that are empty except for a lock."""
    for folder in sorted({folder for folder in folders if path in folder.parents}, reverse=True):
        with contextlib.suppress(OSError):
            if [entry.name for entry in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            folder.rmdir()


def visible_files(path: Path) -> Iterator[str]:
    """The relative paths of all files, except hidden files and the contents of hidden folders."""
    for folder, folders, files in os.walk(path):
        directory = Path(folder)
        links = [name for name in folders if (directory / name).is_symlink()]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files + links):
            if not name.startswith("."):
                yield (directory / name).relative_to(path).as_posix()


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left, except in hidden folders and other outputs."""
    for folder, folders, files in os.walk(path):
        directory = Path(folder)
        if directory != path and LOCK in files:
            folders.clear()
            continue
        remove_leftovers(directory)
        folders[:] = [name for name in folders if not name.startswith(".")]
