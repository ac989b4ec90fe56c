"""Starting processes that do not run the user's script again.

Python's "spawn" imports the main module in every new process. A script or exported notebook without
`if __name__ == "__main__":` would therefore run again in each of them. The functions that mtkd runs in other
processes are never in the main module, so these processes start without it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _without_main_module(), _blocked_interrupt():
            return SpawnProcess._Popen(process_obj)  # type: ignore[attr-defined]


class CleanSpawn(SpawnContext):
    """Like `multiprocessing.get_context("spawn")`, but processes start without the main module.

    Ctrl-C is blocked in them until they call `ignore_interrupt`.
    """

    Process = _Process


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the path of the main module, which Python passes to a new process."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in hidden:
            del main.__file__
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


@contextlib.contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Block the signal of Ctrl-C in this thread, which processes that start inside the `with` block inherit.

    Otherwise, a process that is still importing would print its own traceback. A Ctrl-C that this process
    receives meanwhile takes effect after the `with` block.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # if Python started this process later, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupt() -> None:
    """Ignore Ctrl-C in this new process, since its parent handles it, and unblock its signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
