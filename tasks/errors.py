"""The one error type for mistakes that the user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend.

    The command line prints it without a traceback and leaves with exit code 2.

    Args:
        problem: what is wrong, with the offending value.
        allowed: what would have been accepted.
        mend: what to do about it.
    """

    def __init__(self, problem: str, *, allowed: str | None = None, mend: str | None = None):
        self.problem, self.allowed, self.mend = problem, allowed, mend
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """The error as lines to print: problem, then what is allowed, then the mend."""
        lines = [self.problem]
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.mend:
            lines.append(f"  to mend: {self.mend}")
        return lines


def unknown(what: str, value: str, known: Iterable[str], *, mend: str | None = None) -> UserError:
    """The error for a name that is not known, offering the nearest one that is.

    Args:
        what: the kind of name, such as "task" or "recipe".
        value: the name that was given.
        known: the names that would have been accepted.
    """
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UserError(f"unknown {what} {value!r}{hint}", allowed=", ".join(names), mend=mend)
