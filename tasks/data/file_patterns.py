"""The files that patterns match, and those with unlabelled rows that a task names."""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tasks.common.errors import UserError
from tasks.common.reading import real_path
from tasks.common.remote import with_local_paths
from tasks.data.missing_data import missing_unlabelled
from tasks.task import Task


def matching_files(patterns: Sequence[str], root: Path | None) -> list[Path]:
    """The files that some patterns match, in sorted order per pattern; relative patterns start at `root`.

    The name of a file stands for this file, even if it contains characters of a pattern: "rows [1].csv".
    """
    usable = [
        pattern
        for pattern in map(with_local_paths, patterns)
        if root is not None or Path(pattern).is_absolute()
    ]
    folder = root or Path()
    files: list[Path] = []
    for pattern in usable:
        named = os.path.exists(folder / pattern)  # no error for names that are too long
        matching = glob.glob(str(Path(glob.escape(str(folder))) / pattern))
        files += [folder / pattern] if named else map(Path, sorted(matching))
    return files


def files_of_task(task: Task, root: Path | None) -> list[Path]:
    """The files with unlabelled rows that a task names; none if none of them exists.

    Args:
        root: the directory at which relative paths start.

    Raises:
        UserError: some of them exist and others do not, or one is named twice.
    """
    matching = {pattern: matching_files([pattern], root) for pattern in task.unlabelled}
    paths = list(itertools.chain(*matching.values()))
    if paths and (missing := [pattern for pattern, found in matching.items() if not found]):
        raise missing_unlabelled(task, missing, root)
    refuse_repeated(paths, task)
    return paths


def refuse_repeated(paths: Sequence[Path], task: Task) -> None:
    """Raise UserError if a file of unlabelled rows would be read twice."""
    counts = Counter(real_path(path) for path in paths)
    if twice := [path for path in paths if counts[real_path(path)] > 1]:
        raise UserError(
            f"the file {twice[0]} is named twice for the unlabelled rows of task {task.name!r}",
            hint="name each file once; a pattern may match files that are named as well",
        )
