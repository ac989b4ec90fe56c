"""The keys of a task file (`tasks.task_file` describes them), and how their values are read and checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError, brief, unknown
from tasks.data.missing_data import similar_name
from tasks.data.soft_labels import SOFT_LABEL_KINDS
from tasks.glue import TASKS
from tasks.task import MAX_ANSWER_TOKENS, MAX_COPIES, UNLABELLED
from tasks.task_types import is_task_type, task_type, task_type_names

_FARTHEST = 1e30  # end of a range


def parse_value(path: Path | str, key: str, value: Any) -> Any:
    """The value of a key in the form that `Task` takes.

    Raises:
        UserError: it is invalid; names the file and what was expected.
    """
    try:
        return KEYS[key][0](value)
    except (TypeError, ValueError, OverflowError) as error:
        if key == "files" and isinstance(value, dict) and value:
            raise _files_problem(path, value) from error
        if key == "kind" and isinstance(value, str):
            raise unknown(f"task type in {path}:", value, task_type_names()) from error
        shown = repr(value)[:100]
        raise UserError(f"{path}: {key} = {shown} is not valid", expected=expected_value(key)) from error


def expected_value(key: str) -> str:
    """The values that a key can have, in words."""
    return ", ".join(task_type_names()) if key == "kind" else KEYS[key][1]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def is_name(text: str) -> bool:
    """True if a task can have this name: `A_NAME`."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", text) is not None


def _name(value: Any) -> str:
    if not is_name(_text(value)):
        raise ValueError
    return value


def _kind(value: Any) -> str:
    if not isinstance(value, str) or not is_task_type(value) or not task_type(value).has_head:
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(set(map(_text, value))) < max(1, len(value)):
        raise ValueError
    return tuple(value)


def _languages(value: Any) -> tuple[str, ...]:
    if not all(re.fullmatch(r"[a-z]{2,3}", code) for code in _texts(value)):
        raise ValueError
    return tuple(value)


def _columns(value: Any) -> tuple[str, ...]:
    if len(_texts(value)) > 2:
        raise ValueError
    return tuple(value)


def _range(value: Any) -> tuple[float, float]:
    low, high = value
    if not {type(low), type(high)} <= {int, float} or not -_FARTHEST <= low < high <= _FARTHEST:
        raise ValueError
    if not low < low + (high - low) / 100 < high - (high - low) / 100 < high:  # too narrow for floats
        raise ValueError
    return float(low), float(high)


def _soft_kind(value: Any) -> str:
    if value not in SOFT_LABEL_KINDS:
        raise ValueError
    return str(value)


def _map(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise TypeError
    return {name: _text(label) for name, label in value.items()}


def _copies(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COPIES:
        raise ValueError
    return value


def _answer_tokens(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_ANSWER_TOKENS:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _files(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise TypeError
    for split, file in value.items():
        if split == UNLABELLED and isinstance(file, list):
            _texts(file)
            continue
        if not _is_split(split):
            raise ValueError
        _text(file)
    return dict(value)


def _is_split(name: str) -> bool:
    return name == UNLABELLED or re.fullmatch(r"train|(validation|test)(_\w+)?", name) is not None


def _files_problem(path: Path | str, files: dict[str, Any]) -> UserError:
    """The error for the first entry of `[files]` that is not a split, or names no file."""
    usual = ("train", "validation", "test", UNLABELLED)
    for split, file in files.items():
        if not _is_split(split):
            near = similar_name(split, usual) or ""
            also = f" (did you mean {near!r}?)" if near else ""
            return UserError(
                f"{path}: unknown split {split!r} under [files]{also}",
                expected="train, validation, test (or validation_x, test_x), unlabelled",
            )
        if not isinstance(file, str) or not file:
            break
    shown = "a file, or a list of files" if split == UNLABELLED else "the path of a file"
    return UserError(f"{path}: {split} = {brief(file)} under [files] is not valid", expected=shown)


_NAMES = "a list of distinct strings"
A_NAME = "up to 100 letters, digits, _ and -, starting with a letter"
KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "extends": (_text, f"a built-in task: {', '.join(TASKS)}"),
    "name": (_name, A_NAME),
    "kind": (_kind, "a task type"),
    "columns": (_columns, "a list of one or two different column names"),
    "label": (_text, "a column name"),
    "labels": (_texts, _NAMES),
    "range": (_range, "[lowest, highest]"),
    "head": (_name, "the name of a task"),
    "map": (_map, "a table: label of the head = label of this task"),
    "group": (_text, "a column name"),
    "soft_labels": (_text, "a column name"),
    "soft_labels_kind": (_soft_kind, " or ".join(SOFT_LABEL_KINDS)),
    "positive": (_text, "one of the labels"),
    "metrics": (_texts, _NAMES),
    "groups": (_texts, _NAMES),
    "copies": (_copies, f"0 to {MAX_COPIES:,}"),
    "unanswerable": (_flag, "true or false"),
    "max_answer_tokens": (_answer_tokens, f"1 to {MAX_ANSWER_TOKENS}"),
    "languages": (_languages, "a list of ISO 639-1 codes, such as en"),
    "files": (_files, "a table of train, validation, test (or validation_x, test_x), unlabelled = file"),
}
