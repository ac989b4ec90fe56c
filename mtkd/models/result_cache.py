"""Results that the runs of one process share, such as those of the steps of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")
_last: ContextVar[dict[str, Any] | None] = ContextVar("last result", default=None)


@contextmanager
def cache_last_result() -> Iterator[None]:
    """Within this context, `cached_result` keeps the last result in memory."""
    token = _last.set({})
    try:
        yield
    finally:
        _last.reset(token)


def cached_result(key: Callable[[], str], compute: Callable[[], Result]) -> Result:
    """Return the last result if it has the same key; otherwise, or outside `cache_last_result`, compute one.

    Args:
        key: returns a digest of everything that determines the result; called only if results are shared.
        compute: returns the result, which callers must not modify.
    """
    last = _last.get()
    if last is None:
        return compute()
    name = key()
    if name not in last:
        result = compute()
        last.clear()
        last[name] = result
    found: Result = last[name]
    return found
