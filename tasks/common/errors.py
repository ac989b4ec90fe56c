"""The error type for invalid usage or invalid data, and helpers for its messages."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.common.urls import as_url

_MAX_NAMES = 8
_MIN_SIMILARITY = 0.6  # of two names of files, from 0 to 1


class UserError(Exception):
    """Invalid usage or invalid data.

    The command line prints it without a traceback and exits with code 2.

    Args:
        problem: what is wrong, with the offending value.
        expected: what is accepted.
        hint: how to fix it.
    """

    def __init__(self, problem: str, *, expected: str | None = None, hint: str | None = None):
        self.problem = problem
        self.expected = expected
        self.hint = hint
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """The error as lines to print: problem, then what was expected, then the hint."""
        lines = [self.problem]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return [plain(line) for line in lines]


class MtkdWarning(UserWarning):
    """Something about data, teacher or settings that the user should know before trusting a result."""


def plain(text: str) -> str:
    """Prepare a text for a message: replace the paths of local copies by URLs, and escape control characters.

    Control characters could send commands to a terminal.
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", as_url(text))


def warn_caller(text: str) -> None:
    """Warn as if from the line that called mtkd."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in ("mtkd", "tasks", "augment"):
        level, frame = level + 1, frame.f_back
    warnings.warn(as_url(text), MtkdWarning, stacklevel=level)


def unknown(what: str, value: str, known: Iterable[str], *, hint: str | None = None) -> UserError:
    """The error for an unknown name; it suggests the most similar known one.

    Args:
        what: the kind of name, such as "task" or "recipe".
        value: the name that was given.
        known: the accepted names.
    """
    names = sorted(known)
    problem = f"unknown {what} {value!r}{did_you_mean(value, names)}"
    shown = [repr(name) if re.search(r"[\s,]", name) else name for name in names]
    return UserError(problem, expected=shorten(shown, value), hint=hint)


def did_you_mean(value: str, names: Sequence[str]) -> str:
    """`(did you mean 'NAME'?)` with the most similar name, or two if equally similar; "" if there is none."""
    ends = [name for name in names if name.endswith(f".{value}")]  # `lr` is the end of `train.lr`
    same = [name for name in names if name.strip().casefold() == value.strip().casefold()]
    near = ends or same or difflib.get_close_matches(value, names, n=2, cutoff=_cutoff(value))
    ratios = [difflib.SequenceMatcher(None, name, value).ratio() for name in near]
    equal = [name for name, ratio in zip(near, ratios, strict=True) if ratio == max(ratios)]
    return f" (did you mean {' or '.join(repr(name) for name in equal[:2])}?)" if equal else ""


def _cutoff(value: str) -> float:
    """The lowest similarity that counts: one of two letters may be wrong, but not half of a longer name."""
    return 0.5 if len(value) < 5 else 0.55


def did_you_mean_path(path: Path) -> str:
    """`did_you_mean` for a path that does not exist, among the entries of its directory."""
    try:
        beside = [entry.name for entry in itertools.islice(path.parent.iterdir(), 1000)]
    except OSError:  # no such directory, or one that cannot be read
        return ""
    similar = [name for name in beside if name != path.name and _similar_stems(name, path)]
    near = difflib.get_close_matches(path.name, similar, n=1)
    return f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""


def _similar_stems(name: str, path: Path) -> bool:
    """Whether two names are similar without their suffixes, as equal suffixes say nothing about the names."""
    return difflib.SequenceMatcher(None, Path(name).stem, path.stem).ratio() >= _MIN_SIMILARITY


def reason_of(error: Exception) -> str:
    """The reason that an error gives, in one line; many errors of other packages give hardly any."""
    first, *more = str(error).strip().split("\n")
    text = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    if isinstance(error, KeyError):
        return f"{text} is missing or unknown"
    if isinstance(error, TypeError | AttributeError):
        return f"a value is of the wrong type ({text})"
    if isinstance(error, MemoryError):
        return "there is not enough memory for its sizes"
    return text or f"it is damaged ({type(error).__name__})"


def a_type(value: object) -> str:
    """The type of a value with its article: "a list", "an int", "an ndarray"."""
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """The name of a type with its article."""
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def brief(value: object) -> str:
    """A value of any type as an error shows it: at most 100 characters."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, deep nesting
        return f"{a_type(value)} that is too long to show"
    return shown if len(shown) <= 100 else f"{shown[:90]}... ({len(shown):,} characters)"


def hint_for_quoted(value: object) -> str | None:
    """The hint for a number that is written as text; None for other values."""
    is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?(e[+-]?\d{1,3})?", value)
    return f"write it without quotes: {value}" if is_number else None


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 row", "1,200 rows"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def shorten(names: Iterable[str], value: str = "") -> str:
    """Up to 8 names for a message, those most similar to `value` first, and the number of the rest."""
    listed = list(names)
    near = difflib.get_close_matches(value, listed, cutoff=_cutoff(value))
    ordered = [*near, *(name for name in listed if name not in near)]
    remaining = len(ordered) - _MAX_NAMES
    return ", ".join(ordered[:_MAX_NAMES]) + (f" and {remaining} more" if remaining > 0 else "")
