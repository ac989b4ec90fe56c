"""Markers for the type hints of arguments, `Annotated[int, Range(1, 9)]`, and type hints in words."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from tasks.common.errors import with_article

HIGH_LIMIT = 10**9  # messages leave out upper limits from here on


@dataclass(frozen=True)
class Range:
    """The lowest and the highest number that is allowed.

    Attributes:
        above: True if the lowest number itself is not allowed.
    """

    low: float
    high: float
    above: bool = False

    def words(self) -> str:
        """The range as the end of "a number ..."."""
        if self.above:
            return f"above {self.low:,}" + (f", up to {self.high:,}" if self.high < HIGH_LIMIT else "")
        return f"from {self.low:,} to {self.high:,}" if self.high < HIGH_LIMIT else f"of {self.low:,} or more"


@dataclass(frozen=True)
class Expected:
    """Words that replace the description made from the type hint.

    Attributes:
        hint: how to fix a value that does not fit.
    """

    words: str
    hint: str | None = None


@dataclass(frozen=True)
class IsDevice:
    """Marks text that names a device; a `torch.device` is also accepted."""


@dataclass(frozen=True)
class IsPath:
    """Marks a text that may be a path; `str | Path` needs no marker."""


def find_marker(kind: type[Any], metadata: Sequence[Any]) -> Any:
    """The first item of this class in the metadata of a type hint; None if there is none."""
    return next((item for item in metadata if isinstance(item, kind)), None)


def described(hint: Any, metadata: Sequence[Any] = ()) -> str:
    """What a type hint expects, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return described(arguments[0], (*hint.__metadata__, *metadata))
    if words := find_marker(Expected, metadata):
        return str(words.words)
    if origin in (Union, types.UnionType):
        return _any_of(arguments, metadata)
    if origin is Literal:
        return _joined([str(choice) for choice in arguments])
    if origin is tuple and arguments[-1] is not ...:
        return f"a tuple ({', '.join(map(described, arguments))})"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping" + ("" if arguments[1] is Any else f" (each value: {described(arguments[1])})")
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list (each value: {described(arguments[0])})"
    return _of_class(origin or hint, metadata)


def _any_of(hints: Sequence[Any], metadata: Sequence[Any]) -> str:
    named = [hint for hint in hints if hint is not type(None) and not (hint is Path and str in hints)]
    parts = [described(hint, metadata) for hint in named]
    if Path in hints:
        parts = ["a name or a path" if part == "text" else part for part in parts]
    return _joined(list(dict.fromkeys(parts)))


def _joined(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _of_class(kind: Any, metadata: Sequence[Any]) -> str:
    limits = find_marker(Range, metadata)
    if kind in (int, float):
        number = "an integer" if kind is int else "a number"
        return f"{number} {limits.words()}" if limits else number
    words = {bool: "True or False", str: "text", Path: "a path", Any: "anything"}
    if kind in words:
        return words[kind]
    name = getattr(kind, "__name__", str(kind))
    if name == "Callable":
        return "a function"
    return with_article(name)
