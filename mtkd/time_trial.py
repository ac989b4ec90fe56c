"""Trial runs: a command processes a few batches of each kind, to estimate how long the whole work takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

STEPS = 8  # timed optimiser steps, after one that is not timed
BATCHES = 2  # timed batches where a model only runs forward passes


@dataclass
class Trial:
    """A trial run.

    Attributes:
        skipped: the estimated seconds of the work that was left out.
    """

    skipped: float = 0.0


_current: ContextVar[Trial | None] = ContextVar("trial", default=None)


def current_trial() -> Trial | None:
    """The current trial run; None outside of one."""
    return _current.get()


@contextmanager
def trial_run() -> Iterator[Trial]:
    """Run the `with` block as a trial run; models trained in it are not usable."""
    trial = Trial()
    token = _current.set(trial)
    try:
        yield trial
    finally:
        _current.reset(token)
