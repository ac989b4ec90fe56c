"""Make a forked command fail: a signal before its n-th change of a directory, or a limit on file sizes."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import IO, Any

# Events of `sys.audit` -> the positions of their paths, each followed by a directory that it is relative to.
_CHANGES = {
    "os.mkdir": [(0, 2)],
    "os.rename": [(0, 2), (1, 3)],
    "os.remove": [(0, 1)],
    "os.rmdir": [(0, 1)],
    "os.link": [(1, 3)],
    "os.symlink": [(1, 2)],
    "os.truncate": [(0, None)],
    "os.chmod": [(0, 2)],
    "faults.write": [(0, None)],
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(
    under: str,
    at: int | None = None,
    number: int = signal.SIGKILL,
    log: str | None = None,
    size: int | None = None,
) -> None:
    """Arrange the failure of this process.

    Args:
        under: the directory whose changes are counted.
        at: send this process the signal `number` right before its change `at` (from 0).
        log: the file to which every change is written, one line each.
        size: the maximum size of a file in bytes (RLIMIT_FSIZE), as if the disk were full.
    """
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    root, count = os.path.realpath(under) + os.sep, 0
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if log else None

    def inside(value: Any, folder: Any) -> bool:
        if not isinstance(value, str | bytes | os.PathLike):
            return False
        path = os.fsdecode(value)
        if not os.path.isabs(path):
            base = os.readlink(f"/proc/self/fd/{folder}") if folder not in (None, -1) else os.getcwd()
            path = os.path.join(base, path)
        return (os.path.normpath(path) + os.sep).startswith(root)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            path, _, flags = args
            if not (isinstance(flags, int) and flags & _WRITES and inside(path, None)):
                return
        elif event not in _CHANGES or not any(
            inside(args[position], None if base is None else args[base]) for position, base in _CHANGES[event]
        ):
            return
        if file is not None:
            os.write(file, f"{event} {args[0]}\n".encode())
        count += 1
        if count - 1 == at:
            os.kill(os.getpid(), number)

    def disarm() -> None:
        nonlocal root
        root = "/nowhere/"

    sys.addaudithook(hook)
    os.register_at_fork(after_in_child=disarm)
    _announce_log_lines()
    _fork_runs_of_a_grid()


def _announce_log_lines() -> None:
    """Count lines that are added to a log as changes, too."""
    from mtkd.training.callbacks import JsonLinesLog

    write = JsonLinesLog.write

    def announced(self: Any, *args: Any) -> None:
        sys.audit("faults.write", str(self._path))
        write(self, *args)

    JsonLinesLog.write = announced  # type: ignore[method-assign]


def _fork_runs_of_a_grid() -> None:
    """Fork the commands that `mtkd compare` starts as well, and do not measure their memory."""
    from mtkd.evaluation import inference_bench
    from mtkd.jobs.grid import grid_scheduler

    inference_bench._peak_apart = lambda *arguments: 1  # type: ignore[assignment]
    grid_scheduler.subprocess.Popen = Forked  # type: ignore[assignment, misc]


class Forked:
    """A forked `mtkd` in place of `subprocess.Popen`."""

    def __init__(self, words: list[str], *, stdout: IO[str], env: dict[str, str], **streams: int):
        read, self._write = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self._write)
            for number, stream in enumerate((read, stdout.fileno(), stdout.fileno())):
                os.dup2(stream, number)
            os.environ.update(env)
            sys.argv = ["mtkd", *words[3:]]
            code = 1
            try:
                from mtkd.cli.main import main

                main()
                code = 0
            except SystemExit as left:
                code = int(left.code or 0)
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(read)

    def wait(self) -> int:
        """The exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self._process, signal.SIGTERM)
