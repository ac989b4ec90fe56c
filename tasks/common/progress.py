"""Progress of long jobs: a bar with an ETA on a terminal, otherwise a plain line every 15 seconds.

Of the processes that a launcher such as torchrun started, only the first one prints any.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tasks.common.errors import plain
from tasks.common.launcher import process_rank

Advance = Callable[..., None]

_quiet = False
_PLAIN_SECONDS = 15.0


def set_quiet(quiet: bool) -> None:
    """Turn all progress output off or on (`--quiet`)."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether progress output is off; it is if standard error is closed."""
    closed = sys.stderr is None or getattr(sys.stderr, "closed", False)
    return _quiet or process_rank().rank > 0 or closed


def _is_terminal() -> bool:
    """Whether standard error is a terminal; objects that only have `write`, such as logs, are not."""
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and bool(isatty())


def say(text: str) -> None:
    """Print a status line to standard error, unless quiet."""
    if not is_quiet():
        print(plain(text), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _plain(what: str, total: int | None, done: int, unit: str) -> Iterator[Advance]:
    started = last = time.monotonic()
    first = done

    def advance(count: int = 1, note: str = "") -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last < _PLAIN_SECONDS or (total is not None and done >= total):
            return
        last = now
        if total is None:
            print(f"{what}: {done} {unit} {note}".rstrip(), file=sys.stderr, flush=True)
            return
        remaining = (now - started) / max(done - first, 1) * (total - done)
        print(f"{what}: {done}/{total} {unit} {note} ETA {_clock(remaining)}", file=sys.stderr, flush=True)

    yield advance


def _bar(what: str, total: int | None, done: int, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done, note="")
        yield lambda count=1, note="": bar.update(task, advance=count, note=note)


@contextlib.contextmanager
def progress(
    what: str, total: int | None, *, done: int = 0, unit: str = "rows", show: bool = True
) -> Iterator[Advance]:
    """Show the progress of a job on standard error.

    Args:
        what: a word or two that describe the job.
        total: number of units in all; None = unknown.
        done: number of units that are already finished.
        show: False in processes that should print nothing.

    Yields:
        advance(count=1, note=""): a function to call after finishing `count` units.
    """
    if is_quiet() or not show:
        yield lambda count=1, note="": None
    elif _is_terminal():
        yield from _bar(what, total, done, unit)
    else:
        yield from _plain(what, total, done, unit)
