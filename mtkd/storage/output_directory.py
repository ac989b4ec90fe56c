"""The one policy for directories that mtkd writes: who may write there, and what may be removed.

- One process at a time holds the directory's lock.
- A directory is empty, or it holds an output of the same kind. Anything else in it is refused by name, and
  never removed. Hidden files are ignored.
- An output with the same identity is resumed; another one is refused unless it is to be overwritten.
- Overwriting removes the files that mtkd writes for this kind of output, the marker first.
- Temporary files left by killed processes are removed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.storage.distributed import ALONE, ProcessGroup
from tasks.errors import UserError
from tasks.files import is_temporary, locked

_NAMED = 3  # foreign files that an error names


@dataclass(frozen=True)
class OutputKind:
    """What one kind of output looks like on disk.

    Attributes:
        name: for messages, such as "corpus".
        marker: the file that is written last; an output that has it is complete.
        files: regular expressions of all files that mtkd writes, by path inside the directory.
        read_identity: directory -> the identity of the output there; None if no such output was begun.
    """

    name: str
    marker: str
    files: tuple[str, ...]
    read_identity: Callable[[Path], Any]

    def owns(self, file: str) -> bool:
        """Whether mtkd writes a file of this path."""
        return any(re.fullmatch(pattern, file) for pattern in self.files)


def check_directory(
    path: Path,
    kind: OutputKind,
    identity: Any,
    *,
    overwrite: bool = False,
    difference: Callable[[], str] | None = None,
) -> bool:
    """See whether an output may be written to a directory; nothing is changed.

    Args:
        identity: of the output to be written: everything that decides its content.
        overwrite: another output of this kind may be replaced.
        difference: says how the output that is there differs, for the error.

    Returns:
        True if the directory holds this very output, or a part of it.

    Raises:
        UserError: foreign files, or another output that is not to be overwritten.
    """
    files = [file.relative_to(path).as_posix() for file in _visible_files(path)]
    found = kind.read_identity(path) if files else None
    foreign = [file for file in files if found is None or not kind.owns(file)]
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        raise UserError(
            f"{path} holds files that do not belong to a {kind.name}: {', '.join(foreign[:_NAMED])}{more}",
            hint="name an empty or a new directory with `out`",
        )
    if found is None or overwrite:
        return False
    if found != identity:
        how = difference() if difference else "it was made with other settings or from other data"
        raise UserError(
            f"{path} holds another {kind.name}: {how}",
            hint="replace it with `overwrite=True`, or name another directory with `out`",
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
    """Hold a directory for writing an output; see `check_directory` for the arguments.

    Inside the block the directory is empty, or it holds a part or all of this very output.

    Args:
        ranks: the processes that write it together; the first holds the lock for all.

    Raises:
        UserError: as `check_directory`; another process is writing there.
    """
    with locked(path) if ranks.first else contextlib.nullcontext():
        if ranks.first:
            check_directory(path, kind, identity, overwrite=overwrite, difference=difference)
            _remove_leftovers(path)
            if overwrite:
                remove_output(path, kind)
        ranks.wait()
        yield


def remove_output(path: Path, kind: OutputKind) -> None:
    """Remove the files of an output, its marker first, and the folders that are empty then."""
    (path / kind.marker).unlink(missing_ok=True)
    files = [file for file in _visible_files(path) if kind.owns(file.relative_to(path).as_posix())]
    for file in files:
        file.unlink()
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(path)} - {path}
    for folder in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # it holds something else
            folder.rmdir()


def _visible_files(path: Path) -> list[Path]:
    """All files in order, without hidden ones and the contents of hidden folders."""
    entries = sorted(path.rglob("*")) if path.is_dir() else []
    hidden = (any(part.startswith(".") for part in entry.relative_to(path).parts) for entry in entries)
    return [entry for entry, skip in zip(entries, hidden, strict=True) if not skip and not _is_folder(entry)]


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _remove_leftovers(path: Path) -> None:
    """Remove what atomic writes of killed processes left, outside of hidden folders."""
    for entry in [path, *path.rglob("*")]:
        inside = entry.relative_to(path).parts
        if not entry.is_dir() or any(part.startswith(".") for part in inside):
            continue
        for left in entry.iterdir():
            if is_temporary(left) and re.fullmatch(r"\..+\.\d+\.\w+", left.name):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
