"""Ctrl-C and SIGTERM: a checkpoint is written before the run ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM. A checkpoint has been written, from which the same call resumes.

    Attributes:
        exit_code: what a command that ends for it should exit with, 128 + the signal's number.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class SignalWatch:
    """Remembers the signal that came.

    Attributes:
        number: of the signal; 0 = none so far.
    """

    def __init__(self) -> None:
        self.number = 0

    def _remember(self, number: int, frame: Any) -> None:
        self.number = number

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Watch for Ctrl-C and SIGTERM inside the block; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
