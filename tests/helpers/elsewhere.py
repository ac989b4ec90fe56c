"""A pool of workers that costs no time."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mtkd.storage.worker_pools import Worker, WorkerPool


class Elsewhere(WorkerPool):
    """Runs functions in this process, but in another directory and with what pickle keeps of them."""

    def __init__(self, place: Path, setup: Callable[[], Any] | None):
        self.size, self._place = 1, place
        self._worker = pickle.loads(pickle.dumps(setup and Worker(setup)))

    def submit(self, *function_and_arguments: Any) -> Any:
        function, *arguments = pickle.loads(pickle.dumps(function_and_arguments))
        with contextlib.chdir(self._place):
            return self._worker.run(function, *arguments) if self._worker else function(*arguments)

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(running)

    def result(self, handle: Any) -> Any:
        return handle

    def __exit__(self, *error: object) -> None:
        pass
