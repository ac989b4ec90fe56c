"""Processes that make shards: on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, Literal, Protocol

from tasks.errors import UserError

Engine = Literal["processes", "ray"]
_RETRIES = 3  # of a shard whose Ray worker died


@dataclass(frozen=True)
class Workers:
    """What makes the shards.

    Attributes:
        count: how many at the same time; None = one, or with Ray as many as the cluster has CPUs.
        engine: "processes" on this machine, or "ray".
        address: of the Ray cluster; "auto" = the one that runs on this machine; None = start one, unless
            RAY_ADDRESS names one.
    """

    count: int | None = None
    engine: Engine = "processes"
    address: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise UserError(f"`workers={self.count}`", expected="1 or more")
        if self.address and self.engine != "ray":
            raise UserError(f"`address={self.address}` is that of a Ray cluster", hint="add `engine=ray`")

    @property
    def apart(self) -> bool:
        """True if shards are made in other processes than this one."""
        return self.engine == "ray" or (self.count or 1) > 1

    def open(self) -> WorkerPool:
        """Start the processes, or connect to the cluster."""
        return RayPool(self.count, self.address) if self.engine == "ray" else LocalPool(self.count or 1)


class WorkerPool(AbstractContextManager["WorkerPool"], Protocol):
    """Runs functions elsewhere; leaving the `with` block drops what has not started.

    Attributes:
        size: how many functions run at the same time.
    """

    size: int

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a function; returns a handle."""

    def finished(self, running: Collection[Any]) -> list[Any]:
        """Wait until at least one of some handles is finished, and return those that are."""

    def result(self, handle: Any) -> Any:
        """What a finished function returned, or its exception; UserError if its process died."""


class LocalPool(WorkerPool):
    """Processes on this machine."""

    def __init__(self, size: int):
        self.size = size
        self._pool = ProcessPoolExecutor(size, mp_context=get_context("spawn"), initializer=_start_worker)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            return self._pool.submit(function, *arguments)
        except BrokenProcessPool as error:
            raise _died() from error

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(wait(running, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Future[Any]) -> Any:
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise _died() from error

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)


class RayPool(WorkerPool):
    """Tasks of a Ray cluster, whose machines have mtkd installed and see the output at the same path.

    A task whose worker dies is run again.
    """

    def __init__(self, size: int | None, address: str | None):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UserError("`engine=ray` needs the package ray", hint="pip install 'mtkd[ray]'") from error
        self._ray, self._own = ray, not ray.is_initialized()
        try:
            if self._own:
                ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as error:
            raise UserError(
                f"there is no Ray cluster at {address!r}: {str(error).splitlines()[0]}",
                hint="start one with `ray start --head`, or leave `address` out",
            ) from error
        self.size = size or int(ray.cluster_resources().get("CPU", 1))
        self._remote: dict[Callable[..., Any], Any] = {}  # a function is sent to the cluster once

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function not in self._remote:
            self._remote[function] = self._ray.remote(max_retries=_RETRIES)(function)
        return self._remote[function].remote(*arguments)

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(self._ray.wait(list(running))[0])

    def result(self, handle: Any) -> Any:
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.WorkerCrashedError as error:
            raise _died() from error

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._ray.shutdown()


def _died() -> UserError:
    return UserError(
        "a worker process was killed, perhaps because memory ran out",
        hint="run the same command again with fewer `workers`; finished shards are kept",
    )


def _start_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent has exited or was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
