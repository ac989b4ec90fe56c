"""A process that imports mtkd once and forks for every command that a test runs in a process of its own.

Importing torch takes seconds, and tests of killed, resumed and parallel processes start many. The fixture
`processes` in `conftest.py` talks to it in lines of JSON, one answer per request:

    {"words": [...], "env": {...}, "out": FILE, "err": FILE, "kill": null}   -> process id; `mtkd *words` runs
    {"wait": process id}                                                     -> exit code, or -signal
    {"import": [...]}                                                        -> 0; modules for the next forks

`"kill": {"at": PATTERN, "before": BOOL}` makes the process kill itself (SIGKILL) right before or after it
renames a finished file or directory to a name that matches. So a test kills it at the same place every time,
however busy the machine is. `"fault"` has the arguments of `install` in `faults/child.py`.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn


def preload() -> None:
    """Import all commands and jobs, and what they import late."""
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


def serve() -> None:
    """Answer requests until standard input ends."""
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        if "import" in request:
            answer = 0
            for name in request["import"]:
                importlib.import_module(name)
        elif "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                run(request)
        print(answer, flush=True)


if __name__ == "__main__":
    serve()
