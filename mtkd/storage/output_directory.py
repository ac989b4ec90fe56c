"""The policy for all directories that mtkd writes: which may be written to, and what may be removed.

- One process at a time holds the lock of the directory.
- A directory must be empty or hold an output of the same kind. If it holds other files, the error names them;
  they are never removed. Hidden files are ignored. Beside a run, other files are allowed, because the user's
  callbacks may write some.
- An output with the same identity is resumed. A different one is an error unless `overwrite` is set.
- Overwriting removes only the files that mtkd writes for this kind of output, the marker first.
  If it is interrupted, the next process removes the rest.
- Temporary files left by killed processes are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.storage.distributed import ALONE, ProcessGroup
from tasks.errors import UserError
from tasks.files import is_temporary, locked

_NAMED = 3  # maximum number of foreign files named in an error


@dataclass(frozen=True)
class OutputKind:
    """The files of one kind of output.

    Attributes:
        name: the name for messages, such as "corpus".
        marker: the file that identifies the output; when it is overwritten, it is removed first.
        files: regular expressions for the relative paths of all files that mtkd writes.
        read_identity: directory -> the identity of the output in it; None if there is no such output.
        tolerant: True if the directory of such an output may also hold other files.
    """

    name: str
    marker: str
    files: tuple[str, ...]
    read_identity: Callable[[Path], Any]
    tolerant: bool = False

    def owns(self, file: str) -> bool:
        """Whether mtkd writes a file with this relative path."""
        return any(re.fullmatch(pattern, file) for pattern in self.files)


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
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file", hint="name a directory with `out`")
    files = [file.relative_to(path).as_posix() for file in _visible_files(path)]
    existing = kind.read_identity(path) if files else None
    known = existing is not None or _removed_markers(path, kind)
    foreign = [file for file in files if not (known and (kind.tolerant or kind.owns(file)))]
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        article = "an" if kind.name[0] in "aeiou" else "a"
        raise UserError(
            f"{path} holds files that do not belong to {article} {kind.name}: "
            f"{', '.join(foreign[:_NAMED])}{more}",
            hint="choose an empty or new directory with `out`",
        )
    if existing is None or overwrite:
        return False
    if existing != identity:
        how = difference() if difference else "it was made with other settings or from other data"
        raise UserError(
            f"{path} holds another {kind.name}: {how}",
            hint="resume it with its own settings, replace it with `overwrite=True`, or choose another "
            "directory with `out`",
        )
    return True


@contextlib.contextmanager
def open_directory(
    path: Path,
    kind: OutputKind,
    identity: Any,
    *,
    overwrite: bool = False,
    ranks: ProcessGroup = ALONE,
    difference: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Check and lock a directory for writing; see `check_directory` for the other arguments.

    Inside the `with` block, the directory is empty or holds this output, complete or in part.

    Args:
        ranks: the processes that write the output together; rank 0 holds the lock for all of them.

    Raises:
        UserError: see `check_directory`; also if another process is writing there.
    """
    with locked(path) if ranks.first else contextlib.nullcontext():
        if ranks.first:
            check_directory(path, kind, identity, overwrite=overwrite, difference=difference)
            if overwrite or _removed_markers(path, kind):
                remove_output(path, kind)
            _remove_leftovers(path)
        ranks.wait()
        yield


def remove_output(path: Path, kind: OutputKind) -> None:
    """Remove the files of an output, the marker first, and then the folders that became empty."""
    with contextlib.suppress(FileNotFoundError):  # the hidden file shows that the other files are to go, too
        os.replace(path / kind.marker, path / f".{kind.marker}.{os.getpid()}.old")
    files = [file for file in _visible_files(path) if kind.owns(file.relative_to(path).as_posix())]
    for file in files:
        file.unlink()
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(path)} - {path}
    for folder in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
    for file in _removed_markers(path, kind):
        file.unlink()


def _removed_markers(path: Path, kind: OutputKind) -> list[Path]:
    """The hidden files that `remove_output` leaves until it has finished."""
    return list(path.glob(f".{kind.marker}.*.old"))


def _visible_files(path: Path) -> list[Path]:
    """All files in sorted order, except hidden files and the contents of hidden folders."""
    entries = sorted(path.rglob("*")) if path.is_dir() else []
    hidden = (any(part.startswith(".") for part in entry.relative_to(path).parts) for entry in entries)
    return [entry for entry, skip in zip(entries, hidden, strict=True) if not skip and not _is_folder(entry)]


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left, except in hidden folders."""
    for entry in [path, *path.rglob("*")]:
        inside = entry.relative_to(path).parts
        if not entry.is_dir() or any(part.startswith(".") for part in inside):
            continue
        for left in entry.iterdir():
            if is_temporary(left) and re.fullmatch(r"\..+\.\d+\.\w+", left.name):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
