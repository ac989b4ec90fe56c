"""Locks of directories: one process at a time writes to a directory; leftovers of killed ones are removed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.common.errors import UserError
from tasks.common.files import NEW_FILE_MODE, disk_errors, is_temporary, make_directory

LOCK = ".mtkd.lock"  # in every directory that a command writes


class LockedError(UserError):
    """Another process holds the lock of a directory."""


@contextlib.contextmanager
def locked(out: Path, *, wait: bool | float = False) -> Iterator[None]:
    """Lock the directory `out` against other processes, also those of other machines that share it.

    The lock is released however the process ends; the file `LOCK` stays. Temporary files that killed
    processes left in `out` are removed.

    Args:
        wait: wait until the lock is free instead of raising; a number = at most this many seconds.

    Raises:
        LockedError: another process holds the lock.
        UserError: the directory cannot be created.
    """
    import filelock

    created = not out.exists()
    with disk_errors(out):
        make_directory(out)
        lock = filelock.FileLock(out / LOCK, mode=NEW_FILE_MODE)
        try:
            lock.acquire(timeout=-1 if wait is True else float(wait))
        except filelock.Timeout as error:
            raise LockedError(
                f"another process is writing {out}",
                hint="wait until it has finished, or choose another `out`",
            ) from error
    try:
        remove_leftovers(out)
        yield
    except BaseException:
        if created and [entry.name for entry in out.iterdir()] == [LOCK]:  # nothing has been written
            (out / LOCK).unlink()
            out.rmdir()
        raise
    finally:
        lock.release()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and directories of killed processes from a locked directory."""
    for leftover in filter(is_temporary, folder.iterdir()):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
