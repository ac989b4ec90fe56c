"""Handling Ctrl-C and SIGTERM, so that a checkpoint is written or temporary files are removed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED_CODES = (130, 143)  # exit codes of a command after Ctrl-C and SIGTERM
_MAX_INTERRUPTS = 3  # a launcher such as torchrun passes Ctrl-C on, so one Ctrl-C can be two signals


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM. A checkpoint has been written, from which the same call resumes.

    Attributes:
        exit_code: the exit code for a command, 128 + the number of the signal.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Terminated(SystemExit):
    """Raised after SIGTERM inside `sigterm_exits`."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class SignalWatch:
    """Remembers whether Ctrl-C or SIGTERM was received.

    Attributes:
        number: number of the last signal; 0 if there was none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._interrupts = 0

    def _remember(self, number: int, frame: Any) -> None:
        self.number = number
        self._interrupts += number == signal.SIGINT
        if self._interrupts >= _MAX_INTERRUPTS:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Catch Ctrl-C and SIGTERM inside the block; does nothing outside the main thread.

        Raises:
            KeyboardInterrupt: the third Ctrl-C, at once, for code that does not return.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


PARENT = "MTKD_PARENT"  # environment variable: standard input is a pipe that the parent process holds open


def die_with_parent() -> None:
    """If `PARENT` is set, end this process as soon as its parent has ended, even if that was killed."""
    if not os.environ.pop(PARENT, None):
        return

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)  # as if killed with the parent, so that locks are free at once

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """Let SIGTERM raise Terminated inside the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    exit_error = Terminated()
    callers_alarm: list[Any] = []  # the caller's handler and timer of SIGALRM

    def leave(number: int, frame: Any) -> None:
        if not callers_alarm:
            callers_alarm.extend([signal.signal(signal.SIGALRM, leave), signal.getitimer(signal.ITIMER_REAL)])
        # Python ignores exceptions in callbacks of imports or garbage collection, so raise again in a second.
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        if not _is_handled(exit_error):
            raise exit_error

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if callers_alarm:
            handler, timer = callers_alarm
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)


def _is_handled(error: BaseException) -> bool:
    """True if this is called while `error` is handled: in `except`, `finally` or `__exit__`."""
    current = sys.exception()
    while current is not None and current is not error:
        current = current.__context__
    return current is not None
