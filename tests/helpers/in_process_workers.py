"""Workers for tests: a pool that starts no processes, and a teacher that kills a worker."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import signal
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from mtkd.output_files.worker_pools import Worker, WorkerPool


class InProcessPool(WorkerPool):
    """Runs functions in this process, but after pickling, and in another directory."""

    def __init__(self, directory: Path, setup: Callable[[], Any] | None):
        self.size, self._directory = 1, directory
        self._worker = pickle.loads(pickle.dumps(setup and Worker(setup)))

    def submit(self, *function_and_arguments: Any) -> Future[Any]:
        function, *arguments = pickle.loads(pickle.dumps(function_and_arguments))
        done: Future[Any] = Future()
        with contextlib.chdir(self._directory):
            done.set_result(self._worker.run(function, *arguments) if self._worker else function(*arguments))
        return done

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(running)

    def result(self, handle: Any) -> Any:
        return handle.result()

    def __exit__(self, *error: object) -> None:
        pass


def kill_a_worker(monkeypatch: pytest.MonkeyPatch, killed: Path) -> None:
    """Kill the first worker that computes a teacher's third batch, after it created the file `killed`."""
    from mtkd.teachers.teacher_ref import TeacherRef

    loader = TeacherRef.loader
    monkeypatch.setattr(
        TeacherRef, "loader", lambda *arguments: functools.partial(_load_and_die, loader(*arguments), killed)
    )


def _load_and_die(load: Callable[[], Any], killed: Path) -> Any:
    teacher, batches = load(), itertools.count()

    def maybe_die(*_: Any) -> None:
        if next(batches) == 2 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    teacher.encoder.register_forward_pre_hook(maybe_die)
    return teacher
