"""A process that imports mtkd once and forks for every command that a test runs in a separate process.

Importing torch takes seconds, and tests of killed, resumed and parallel processes start many. The fixture
`processes` in `conftest.py` talks to it in lines of JSON, one answer per request:

    {"words": [...], "env": {...}, "out": FILE, "err": FILE, "kill": null}   -> process id; `mtkd *words` runs
    {"wait": [process id, ...]}                             -> their exit codes, or -signal; they end together
    {"import": [...]}                                                        -> 0; modules for the next forks

`"kill": {"at": PATTERN, "before": BOOL}` makes the process kill itself (SIGKILL) right before or after it
renames a finished file or directory to a name that matches. So a test kills it at the same place every time,
however busy the machine is. `"fault"` has the arguments of `install` in `faults/child.py`. With `"call":
"MODULE:FUNCTION"`, the process calls a function of `tests/helpers` with the words instead of mtkd.
"""

from __future__ import annotations

import ctypes
import fnmatch
import importlib
import json
import os
import pkgutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 600.0  # seconds that a command may take
GRACE = 60.0  # seconds that the other processes of a command may take after one has failed


def preload() -> None:
    """Import all commands and jobs, and the modules that they import late."""
    import mtkd.cli
    import mtkd.jobs

    for package in (mtkd.cli, mtkd.jobs):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in (
        "torch.utils.tensorboard",
        "transformers.models.bert.modeling_bert",
        "torch.distributed",
        "sklearn.metrics",
        "scipy.stats",
        "tasks.pocket",
    ):
        importlib.import_module(name)


def kill_when_renaming(at: str, before: bool) -> None:
    """Kill this process when it renames something to a name that matches `at`."""
    replace = os.replace

    def replace_or_die(source: Any, target: Any) -> None:
        matches = fnmatch.fnmatch(os.fspath(target), at)
        if matches and before:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if matches and not before:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_or_die


def run(request: dict[str, Any]) -> NoReturn:
    """Run a command line in this forked process and leave with its exit code."""
    end_with_parent()
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.update(request["env"])
    sys.argv = ["mtkd", *request["words"]]
    if request.get("kill"):
        kill_when_renaming(**request["kill"])
    if request.get("fault"):
        sys.path.append(str(Path(__file__).parent / "faults"))
        importlib.import_module("child").install(**request["fault"])
    code = 1
    try:
        if request.get("call"):
            sys.path.append(str(Path(__file__).parent / "helpers"))
            module, _, function = request["call"].partition(":")
            getattr(importlib.import_module(module), function)(*request["words"])
        else:
            from mtkd.cli.main import main

            main()
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(processes: list[int]) -> list[int]:
    """Wait for all processes; kill those that hang or outlive a failed one, as a launcher would."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LONGEST
    while len(codes) < len(processes):
        for process in set(processes) - set(codes):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
                if codes[process]:
                    deadline = min(deadline, time.monotonic() + GRACE)
            elif time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[process] for process in processes]


def end_with_parent() -> None:
    """Kill this process when its parent ends, however that happens; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve() -> None:
    """Answer requests until standard input ends."""
    end_with_parent()
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        if "import" in request:
            answer = 0
            for name in request["import"]:
                importlib.import_module(name)
        elif "wait" in request:
            answer = wait(request["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                run(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
