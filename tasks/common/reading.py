"""Reading small files as a whole, and the check that something is a regular file before it is opened.

Otherwise, opening a named pipe could block, and reading a device might never end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tasks.common.errors import UserError, did_you_mean_path

_LFS = b"version https://git-lfs"
MAX_BYTES = 1 << 28  # of a JSON or TOML file
_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a named pipe",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
}


def real_path(path: str | Path) -> Path:
    """The absolute path without symbolic links; unlike `Path.resolve`, also of a link to itself."""
    return Path(os.path.realpath(path))


def is_link_to_itself(path: Path) -> bool:
    """True for a symbolic link that leads back to itself, directly or over other links."""
    return path.is_symlink() and real_path(path).is_symlink()


def not_regular(path: Path) -> str | None:
    """What is at a path in place of a regular file, such as "is a directory"; None if nothing else is there.

    Raises:
        UserError: the path cannot be looked at.
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return f"is a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else None
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        if is_link_to_itself(path):
            return "is a link that leads back to itself"
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error


def require_file(path: Path, expected: str = "a file") -> Path:
    """The path of a regular file.

    Args:
        expected: what the file is for, for the error.

    Raises:
        UserError: there is no such file, or it is a directory, a named pipe, a device, or a link to itself.
    """
    if problem := not_regular(path):
        raise UserError(f"{path} {problem}", expected=expected)
    if not path.exists():
        raise UserError(f"no such file: {path}{did_you_mean_path(path)}", expected=expected)
    return path


def read_small_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All bytes of a regular file.

    Raises:
        UserError: as for `require_file`; or the file cannot be read, or has more than `max_bytes` bytes.
    """
    require_file(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > max_bytes:
        raise UserError(f"{path} has more than {max_bytes:,} bytes", expected="a smaller file")
    return raw


def is_lfs_pointer(path: Path) -> bool:
    """True for the small text that Git leaves in place of a file if Git LFS has not downloaded it."""
    with open(path, "rb") as file:
        return file.read(len(_LFS)) == _LFS
