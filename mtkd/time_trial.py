"""Trial runs: a command does a few batches of each kind of work, to estimate how long all of it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

STEPS = 8  # optimiser steps that are timed, after one that is not
BATCHES = 2  # batches that are timed where a model only reads rows


@dataclass
class Trial:
    """A trial run.

    Attributes:
        skipped: the estimated seconds of the work that was left out.
    """

    skipped: float = 0.0


_current: ContextVar[Trial | None] = ContextVar("trial", default=None)


def current_trial() -> Trial | None:
    """The trial run that is under way; None outside of one."""
    return _current.get()


@contextmanager
def trial_run() -> Iterator[Trial]:
    """Everything inside the `with` block is a trial run; what it trains is of no use."""
    trial = Trial()
    token = _current.set(trial)
    try:
        yield trial
    finally:
        _current.reset(token)
