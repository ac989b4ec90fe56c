"""Run the commands of a grid, each in a process of its own, and several at the same time."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from mtkd.jobs.grid.grid_jobs import Job
from mtkd.training.interrupts import INTERRUPTED_CODES, PARENT, sigterm_exits
from tasks.common.files import write_json


def run_jobs(jobs: Iterable[Job], parallel: int, say: Callable[[str], None]) -> dict[Path, str]:
    """Run the unfinished jobs, up to `parallel` at the same time, and each after the jobs that it needs.

    A job that fails stops only the jobs that need it. If several run at the same time, the CPU cores are
    divided among them. When this process is interrupted, so are the commands; they write a checkpoint, and
    the next call resumes them.

    Args:
        say: called with a line before each job starts, and when one has failed.

    Returns:
        Run directory -> error message, for jobs that failed and those that need them.

    Raises:
        KeyboardInterrupt: Ctrl-C, or a command was interrupted.
        Terminated: SIGTERM.
    """
    waiting = list(dict.fromkeys(jobs))
    number = len(waiting)
    done: set[Path] = set()
    errors: dict[Path, str] = {}
    runner = _CommandRunner(parallel)
    running: dict[Future[str | None], Job] = {}
    with contextlib.closing(runner), ThreadPoolExecutor(parallel) as pool, sigterm_exits():
        try:
            while waiting or running:
                for job in list(waiting):
                    if failed := next((need for need in job.needs if need.out in errors), None):
                        errors[job.out] = errors[failed.out]
                        waiting.remove(job)
                    elif all(need.out in done for need in job.needs):
                        if job.finished:
                            done.add(job.out)
                            waiting.remove(job)
                        elif len(running) < parallel:
                            position = number - len(waiting) + 1
                            say(f"[{position}/{number}] mtkd {shlex.join(job.command)}")
                            running[pool.submit(runner.run, job)] = job
                            waiting.remove(job)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    if (problem := future.result()) is None:
                        done.add(job.out)
                    else:
                        errors[job.out] = problem
                        say(f"failed: {problem} ({job.log})")
        except BaseException:
            runner.stop()
            raise
    return errors


class _CommandRunner:
    """Runs commands, and can stop those that are running."""

    def __init__(self, parallel: int):
        self._environment = os.environ | {PARENT: "1"}
        if parallel > 1:
            self._environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // parallel))
        # The standard input of all commands. They end when it closes, as it does if this process is killed.
        self._pipe = os.pipe()
        self._processes: set[Any] = set()
        self._lock, self._stopped = threading.Lock(), False

    def run(self, job: Job) -> str | None:
        """Run a command; returns its error message if it failed, else None."""
        command = job.command
        job.out.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "w", encoding="utf-8") as log:
            with self._lock:
                if self._stopped:
                    raise KeyboardInterrupt
                argv = [sys.executable, "-m", "mtkd.cli.main", *command]
                process = subprocess.Popen(
                    argv,
                    stdin=self._pipe[0],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                )
                self._processes.add(process)
            code = process.wait()
            with self._lock:
                self._processes.discard(process)
        if code == 0:
            write_json(job.command_file, command)
            return None
        if code in INTERRUPTED_CODES or self._stopped:
            raise KeyboardInterrupt
        if code == -signal.SIGKILL:
            return "it was killed (SIGKILL), perhaps because memory ran out"
        if code < 0:
            return f"it was killed ({signal.Signals(-code).name})"
        lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return next((line for line in lines if line.startswith("error: ")), (lines or ["no output"])[-1])

    def close(self) -> None:
        """Close the pipe; call it when no command is running."""
        for descriptor in self._pipe:
            os.close(descriptor)

    def stop(self) -> None:
        """Ask the running commands to write a checkpoint and end; no further command is started."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()
