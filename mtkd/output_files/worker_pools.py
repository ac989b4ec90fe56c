"""Pools of processes that make shards, on this machine or on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Literal, Protocol

from mtkd.output_files.distributed import join_process_group
from mtkd.output_files.ray_cluster import connected
from mtkd.output_files.spawn import CleanSpawn, ignore_interrupt
from tasks.common.errors import UserError

Engine = Literal["processes", "ray"]
Setup = Callable[[], Any]
_RETRIES = 3  # of a shard whose Ray worker died
_KILL_TIMEOUT = 30.0  # seconds to wait until a killed process has ended


@dataclass(frozen=True)
class Workers:
    """The number and kind of processes that make shards.

    Attributes:
        count: the number of processes; None = one, or with Ray as many as the cluster has CPUs (GPUs, if they
            run a model and there are any).
        engine: "processes" = on this machine, "ray" = on a Ray cluster.
        address: the address of the Ray cluster; "auto" = the one on this machine; None = start one, unless
            RAY_ADDRESS names one.
    """

    count: int | None = None
    engine: Engine = "processes"
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address and self.engine != "ray":
            raise UserError("`address` applies only to `engine='ray'`", hint="add `engine='ray'`")
        if self.engine == "ray" and join_process_group().count > 1:
            raise UserError(
                "Ray starts its own processes", hint="leave out `accelerate launch`, or `engine='ray'`"
            )

    @property
    def in_other_processes(self) -> bool:
        """True if shards are made in other processes than this one."""
        return self.engine == "ray" or (self.count or 1) > 1

    def should_start(self, shards: int, *, loads: bool) -> bool:
        """Whether to start other processes for this number of shards; a single shard is not worth a process.

        Args:
            loads: True if each process loads a model first, which the caller has not loaded.
        """
        return self.engine == "ray" or (self.in_other_processes and (loads or shards > 1))

    def open(self, setup: Setup | None = None) -> WorkerPool:
        """Start the processes, or connect to the cluster.

        Args:
            setup: what each process calls once, such as to load a model; functions get the result as their
                first argument. With Ray such a process is an actor, with a GPU if the cluster has any.
        """
        if self.engine == "ray":
            return RayPool(self.count, self.address, setup)
        return LocalPool(self.count or 1, setup)


THIS_PROCESS = Workers()


class WorkerPool(AbstractContextManager["WorkerPool"], Protocol):
    """Runs functions in other processes; leaving the `with` block cancels those that have not started.

    Attributes:
        size: the number of functions that run at the same time.
    """

    size: int

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a function; returns a handle."""

    def finished(self, running: Collection[Any]) -> list[Any]:
        """Wait until at least one of some handles is finished, and return those that are."""

    def result(self, handle: Any) -> Any:
        """The result of a function, or its exception, when it has finished; UserError if its process died."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Call a function for each item; yields the results in the order of the items."""
        running: deque[Any] = deque()
        for item in items:
            if len(running) > 2 * self.size:
                yield self.result(running.popleft())
            running.append(self.submit(function, item))
        while running:
            yield self.result(running.popleft())


class LocalPool(WorkerPool):
    """Processes on this machine."""

    def __init__(self, size: int, setup: Setup | None):
        self.size, self._with_setup = size, setup is not None
        self._pool = ProcessPoolExecutor(size, CleanSpawn(), _start_worker, (setup,))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            with _delayed_interrupt():  # the pool must know every process that it starts
                return self._pool.submit(*((_run,) if self._with_setup else ()), function, *arguments)
        except BrokenProcessPool as error:
            raise _died() from error

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(wait(running, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Future[Any]) -> Any:
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise _died() from error

    def __exit__(self, kind: object, *error: object) -> None:
        with _delayed_interrupt():  # a second Ctrl-C must not leave orphaned processes
            processes = list(self._pool._processes.values())
            if kind is not None:  # shards are written atomically
                for process in processes:
                    process.kill()
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            for process in processes:  # nothing may be written after this: the directory will be unlocked
                process.join(_KILL_TIMEOUT)


class RayPool(WorkerPool):
    """Tasks on a Ray cluster, whose machines have mtkd installed and the output directory at the same path.

    A task whose worker dies is run again. With a setup, actors are used instead, which are restarted.
    """

    def __init__(self, size: int | None, address: str | None, setup: Setup | None):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UserError("`engine='ray'` needs the package ray", hint="pip install ray") from error
        self._ray, self._connection = ray, contextlib.ExitStack()
        if not ray.is_initialized():
            self._connection.enter_context(connected(ray, address))
        cpus, gpus = (int(ray.cluster_resources().get(name, 0)) for name in ("CPU", "GPU"))
        self.size = size or max(1, cpus)
        self._remote: dict[Callable[..., Any], Any] = {}  # a function is sent to the cluster once
        self._actors: list[Any] = []
        self._actor_of: dict[Any, int] = {}  # handle -> index of its actor
        self._pending: set[Any] = set()  # handles whose results have not been fetched
        if setup is not None:
            slots = max(1, gpus or cpus)
            self.size = min(size or slots, slots)  # more would wait for a slot
            resources = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": 1}
            actor = ray.remote(**resources, max_restarts=-1, max_task_retries=_RETRIES)(Worker)
            self._actors = [actor.remote(setup) for _ in range(self.size)]

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._actors:
            busy = list(self._actor_of.values())
            number = min(range(self.size), key=busy.count)
            handle = self._actors[number].run.remote(function, *arguments)
            self._actor_of[handle] = number
        else:
            if function not in self._remote:
                self._remote[function] = self._ray.remote(max_retries=_RETRIES)(function)
            handle = self._remote[function].remote(*arguments)
        self._pending.add(handle)
        return handle

    def finished(self, running: Collection[Any]) -> list[Any]:
        return list(self._ray.wait(list(running))[0])

    def result(self, handle: Any) -> Any:
        self._actor_of.pop(handle, None)
        self._pending.discard(handle)
        failures = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except failures.RayTaskError as error:
            raise error.cause from error
        except (failures.WorkerCrashedError, failures.RayActorError, failures.OutOfMemoryError) as error:
            if getattr(error, "actor_init_failed", False):
                reason = str(error).strip().splitlines()[-1]
                raise UserError(
                    f"a worker process of Ray cannot start: {reason}",
                    expected="the same mtkd on all machines",
                ) from error
            raise _died() from error

    def __exit__(self, *error: object) -> None:
        for handle in self._pending - self._actor_of.keys():
            self._ray.cancel(handle)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._pending:  # nothing may be written after this: the directory will be unlocked
            self._ray.wait(list(self._pending), num_returns=len(self._pending))
        self._connection.close()


@contextlib.contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received and callable(before):
            before(*received[0])


def path_for_workers(name: str) -> str:
    """The name of a model, or its absolute path, which a process in another directory can open."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def other_model(name: str) -> UserError:
    """The error for a worker that finds another model than the process that started it."""
    return UserError(
        f"{name} is another model on {platform.node()} than where the command runs",
        expected="the same files at the same path on all machines",
    )


def _died() -> UserError:
    """The error for a worker process that was killed."""
    return UserError(
        "a worker process was killed, perhaps because memory ran out",
        hint="run the same command again with fewer `workers`; finished shards are kept",
    )


class Worker:
    """Runs functions in its process, with the result of a setup as their first argument."""

    def __init__(self, setup: Setup):
        self._setup = setup

    @cached_property
    def _setup_result(self) -> Any:
        return self._setup()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function; before the first one, call the setup."""
        return function(self._setup_result, *arguments)


_worker: Worker  # set in the processes of a `LocalPool` with a setup


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function with the setup's result in a process of a `LocalPool`."""
    return _worker.run(function, *arguments)


def _start_worker(setup: Setup | None) -> None:
    """Prepare a process of a `LocalPool`: ignore Ctrl-C, and exit when the parent process has ended."""
    global _worker
    if setup is not None:
        _worker = Worker(setup)
    ignore_interrupt()
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
