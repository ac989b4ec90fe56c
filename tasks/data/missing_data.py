"""Error messages for rows that a data source does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.common.errors import UserError, did_you_mean
from tasks.common.reading import not_regular
from tasks.task import UNLABELLED, Task

_SPLIT_SYNONYMS = {"val": "validation", "dev": "validation", "eval": "validation", "training": "train"}


def similar_split(split: str, names: Iterable[str]) -> str | None:
    """The name among `names` that someone may have given to the split, such as "dev" for "validation"."""
    present = list(names)
    usual = [name for name in present if _SPLIT_SYNONYMS.get(name.lower()) == split]
    return next(iter(usual or difflib.get_close_matches(split, present, n=1)), None)


def similar_name(name: str, splits: Iterable[str]) -> str | None:
    """The split among `splits` that a name may stand for, such as "validation" for "dev"."""
    present = list(splits)
    usual = _SPLIT_SYNONYMS.get(name.lower())
    return usual if usual in present else next(iter(difflib.get_close_matches(name, present, n=1)), None)


def missing_file(task: Task, split: str, folders: Sequence[Path]) -> UserError:
    """The error for a file that a task names but that does not exist.

    Args:
        folders: the directories in which relative paths are looked up, besides that of the task file.
    """
    file = Path(task.files[split])
    beside = [Path(other).parent for other in task.files.values() if Path(other).is_absolute()]
    directories = dict.fromkeys((folder / file).parent for folder in (*folders, *beside))
    searched = dict.fromkeys([*directories, *beside])
    names = [entry.name for directory in searched if directory.is_dir() for entry in directory.iterdir()]
    found = [name for name in names if any((f / file.parent / name).exists() for f in (*folders, *beside))]
    near = difflib.get_close_matches(file.name, [name for name in found if name != file.name], n=1)
    problems = (not_regular(directory / file.name) for directory in directories)
    if problem := next(filter(None, problems), None):
        return UserError(
            f"the file {str(file)!r} of {task.name}/{split} {problem}",
            expected="a file of rows",
            hint="correct its name under [files] in the task file",
        )
    also = f" or under {' or '.join(map(str, folders))}" if folders else ""
    return UserError(
        f"the file {str(file)!r} of {task.name}/{split} does not exist"
        + (f" (did you mean {str(file.parent / near[0])!r}?)" if near else ""),
        expected=f"a path relative to the task file{also}" if not file.is_absolute() else None,
        hint="correct its name under [files] in the task file"
        + ("" if folders else ", or pass the directory that holds it as `data='DIR'`"),
    )


def missing_unlabelled(task: Task, patterns: Sequence[str], root: Path | None) -> UserError:
    """The error for files of unlabelled rows that do not exist.

    Args:
        patterns: files or patterns, of which none matches a file.
        root: the data directory, if there is one.
    """
    folder, splits = Path(patterns[0]).parent, [UNLABELLED, *task.splits]
    files = [str(folder / entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    near = "" if patterns[0] in splits else did_you_mean(patterns[0], [*splits, *files])
    return UserError(
        f"no file of unlabelled rows of task {task.name!r}: {', '.join(patterns)}{near}",
        expected="a file, a pattern such as 'more-*.parquet', or, alone, a split without labels, such as "
        + (task.test[0] if task.test else UNLABELLED),
        hint=f"relative paths of a task file start at its own directory or at {root or 'the data directory'}"
        if task.unlabelled
        else None,
    )
