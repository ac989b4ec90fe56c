"""The directory for temporary files, with an error if there is none that can be used."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.common.errors import UserError


def temporary_root() -> Path:
    """The directory for temporary files: `TMPDIR`, or the usual one of the system.

    Raises:
        UserError: none can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise no_temporary_root() from error


def no_temporary_root() -> UserError:
    """The error for `tempfile`'s "No usable temporary directory found"."""
    named = os.environ.get("TMPDIR")
    tried = f"neither TMPDIR={named} nor /tmp" if named else "not even /tmp"
    return UserError(
        f"there is no directory for temporary files: {tried} can be written",
        expected="a directory that exists and can be written, with free space",
        hint="set the environment variable TMPDIR to such a directory",
    )


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a temporary directory, which is removed afterwards; raises UserError as `temporary_root` does."""
    with tempfile.TemporaryDirectory(prefix="mtkd-", dir=temporary_root()) as directory:
        yield Path(directory)
