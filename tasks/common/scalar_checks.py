"""Checks of single values: numbers, texts, paths; `tasks.common.argument_checks` combines them."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.common.argument_markers import IsDevice, IsPath, Range, find_marker
from tasks.common.errors import hint_for_quoted

Check = Callable[[Any], Any]  # returns the value to use; raises Unfit
_LONGEST_PART = 255  # bytes of a part of a path, on all usual file systems
_LARGEST = 2**63 - 1


class Unfit(Exception):
    """A value that does not fit its type hint.

    Attributes:
        value: the value, or the one inside it that does not fit.
        place: where this is, such as "[0]"; `is_key`: it is a key of the mapping there.
        expected: what is expected, where the type hint alone does not say it.
        choices: the texts that are allowed, if there are only some.
        hint: how to fix it.
    """

    def __init__(
        self, value: Any, *, expected: str | None = None, choices: Sequence[str] = (), hint: str | None = None
    ):
        super().__init__()
        self.value = value
        self.expected = expected
        self.choices = choices
        self.hint = hint
        self.place, self.is_key = "", False

    def inside(self, key: Any) -> Unfit:
        """The same, seen from the value that holds it under a key."""
        self.place = f"[{key!r}]{self.place}"
        return self


def _integer(metadata: Sequence[Any]) -> Check:
    limits = find_marker(Range, metadata) or Range(-_LARGEST, _LARGEST)

    def check(value: Any) -> Any:
        if not _is_number(value, numbers.Integral):
            raise Unfit(value, hint=_as_number(value))
        if not limits.low <= value <= limits.high:
            raise Unfit(value, expected=f"at most {limits.high:,}" if value > limits.high else None)
        return value if type(value) is int else int(value)

    return check


def _number(metadata: Sequence[Any]) -> Check:
    limits = find_marker(Range, metadata) or Range(-_LARGEST, _LARGEST)

    def check(value: Any) -> Any:
        if not _is_number(value, numbers.Real):
            raise Unfit(value, hint=_as_number(value))
        if not abs(value) <= _LARGEST:  # or it is not a number
            raise Unfit(value, expected="a finite number")
        if not limits.low <= value <= limits.high or (limits.above and value == limits.low):
            raise Unfit(value)
        return value if type(value) in (int, float) else float(value)

    return check


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _as_number(value: Any) -> str | None:
    """The hint for a number in quotes, or for a float with an integer value."""
    whole = isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < _LARGEST
    return f"write it without a fraction: {int(value)}" if whole else hint_for_quoted(value)


def _boolean(metadata: Sequence[Any]) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        if type(value).__module__ == "numpy" and type(value).__name__ == "bool":
            return bool(value)
        raise Unfit(value)

    return check


def _text(metadata: Sequence[Any]) -> Check:
    is_path = find_marker(IsPath, metadata) is not None
    problem = path_problem if is_path else _not_utf8
    is_device = find_marker(IsDevice, metadata) is not None

    def check(value: Any) -> Any:
        if is_device and type(value).__module__ == "torch" and type(value).__name__ == "device":
            value = str(value)
        if not isinstance(value, str):
            raise Unfit(value)
        if expected := problem(value):
            raise Unfit(value, expected=expected)
        return os.path.expanduser(value) if is_path else value

    return check


def _path(metadata: Sequence[Any]) -> Check:
    def check(value: Any) -> Any:
        text = os.fspath(value) if isinstance(value, os.PathLike) else None
        if not isinstance(text, str):
            raise Unfit(value)
        if expected := path_problem(text):
            raise Unfit(value, expected=expected)
        return value if isinstance(value, Path) and text[0] != "~" else Path(os.path.expanduser(text))

    return check


def _not_utf8(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text without lone surrogates, which UTF-8 cannot hold"
    return None


def path_problem(text: str) -> str | None:
    """What was expected, if a text cannot be a path or a comma-separated list of paths; None if it can."""
    try:
        longest = max(len(os.fsencode(part)) for part in re.split("[/,]", text))
    except UnicodeEncodeError:
        return "a path without lone surrogates, which no file name has"
    if not text:
        return "a name or a path that is not empty"
    if "\0" in text:
        return "a path without NUL characters"
    return None if longest <= _LONGEST_PART else f"a path whose parts have at most {_LONGEST_PART} bytes each"


# type -> function that builds the check from the markers of a type hint
SCALARS: dict[Any, Callable[[Sequence[Any]], Check]] = {
    **{int: _integer, float: _number, bool: _boolean},
    **{str: _text, Path: _path},
}
