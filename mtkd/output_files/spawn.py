"""New processes that do not run the user's script again.

Python's "spawn" imports the main module in every new process. A script or notebook export without
`if __name__ == "__main__":` would so run once more in each of them. The functions that mtkd runs in other
processes are never in the main module, so these processes start without it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _without_main_module():
            return SpawnProcess._Popen(process_obj)  # type: ignore[attr-defined]


class CleanSpawn(SpawnContext):
    """As `multiprocessing.get_context("spawn")`, but processes start without the main module."""

    Process = _Process


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide where the main module came from, which is what Python passes to a new process."""
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
