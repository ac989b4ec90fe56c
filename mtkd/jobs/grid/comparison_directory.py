"""Which directories a comparison may be written to."""

from __future__ import annotations

import json
from pathlib import Path

from mtkd.output_files.output_directory import OutputKind, check_directory
from tasks.common.errors import UserError
from tasks.common.reading import read_small_file

TABLE_FILE = "compare.json"
# The first file that a comparison writes is the log of a run.
_LOGS = ("runs/*/*-[0-9]*.log.txt", "teacher/*.log.txt", "first/*.log.txt")
_IDENTITY = "comparison"  # of every comparison, because finished runs are compared one by one


def check_comparison_directory(out: Path) -> None:
    """Check that a directory is new or empty, or holds a comparison, finished or not; nothing is changed.

    Raises:
        UserError: it holds other files.
    """
    check_directory(out, _KIND, _IDENTITY)


def _read_identity(directory: Path) -> str | None:
    """`_IDENTITY` if the directory holds a comparison; None if it does not."""
    has_log = any(next(directory.glob(pattern), None) for pattern in _LOGS)
    return _IDENTITY if has_log or _is_table(directory / TABLE_FILE) else None


def _is_table(file: Path) -> bool:
    """Whether a file is the compare.json of a comparison, and not another file of this name."""
    try:
        values = json.loads(read_small_file(file))
    except (UserError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"rows", "commands"} <= values.keys()


# Its files are not listed, because a comparison is never overwritten.
_KIND = OutputKind("comparison", TABLE_FILE, (), _read_identity, tolerant=True)
