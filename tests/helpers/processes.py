"""Run command lines in separate processes, which `tests/fork_server.py` forks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).parents[1] / "fork_server.py"


@dataclass(frozen=True)
class CommandResult:
    """The result of a command: its exit code and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class RunningCommand:
    """A running command: process id, and the files that it prints to."""

    process: int
    out: Path
    err: Path


class Processes:
    """Runs command lines in separate processes, which `fork_server.py` forks."""

    def __init__(self, server: subprocess.Popen[str], directory: Path):
        self._server, self._directory, self._count = server, directory, 0

    def ask(self, request: dict[str, object]) -> Any:
        """Send a request, and return the answer; see `fork_server.py`."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, *words: object, env: dict[str, str] | None = None, **more: Any) -> RunningCommand:
        """Start `mtkd WORDS`; `more`: further parts of the request."""
        self._count += 1
        out, err = (self._directory / f"{self._count}.{name}" for name in ("out", "err"))
        request = {"words": [str(word) for word in words], "env": env or {}, **more}
        return RunningCommand(self.ask({**request, "out": str(out), "err": str(err)}), out, err)

    def wait(self, *started: RunningCommand) -> CommandResult:
        """Wait for commands; return the first exit code that is not 0, and everything that they printed."""
        codes = self.ask({"wait": [one.process for one in started]})
        out, err = (
            "".join(file.read_text() for file in files)
            for files in zip(*((s.out, s.err) for s in started), strict=True)
        )
        return CommandResult(next(filter(None, codes), 0), out, err)

    def run(
        self,
        *words: object,
        kill_at: str | None = None,
        before: bool = False,
        count: int = 1,
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> CommandResult:
        """Run `mtkd WORDS` and wait for its end.

        Args:
            kill_at: the process kills itself (SIGKILL) right after it renamed a finished file or directory to
                a path that matches this pattern; `before`: right before.
            count: start this many processes, as `torchrun` does; the answer has the first code that is not 0.
            env: environment variables of all processes.
            more: further parts of the request, such as `call`; see `fork_server.py`.
        """
        environments = [env or {}]
        with contextlib.ExitStack() as meeting:
            if count > 1:
                shared = environments[0] | meeting.enter_context(process_group_store())
                shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
                environments = [{**shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(count)]
            kill = {"at": kill_at, "before": before} if kill_at else None
            return self.wait(*[self.start(*words, env=env, kill=kill, **more) for env in environments])


@contextlib.contextmanager
def process_group_store() -> Iterator[dict[str, str]]:
    """Run the store through which the processes of a group find each other; yields its variables.

    As with `torchrun`, it runs outside of the group. It opens a free port itself, so no other process can
    take the port before the group uses it.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    del store


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Processes]:
    """Start the server; `directory`: an existing directory for what the commands print."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH") or str(_SERVER.parents[1]),
    }
    environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"  # macOS refuses such forks otherwise
    with subprocess.Popen(
        [sys.executable, str(_SERVER)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield Processes(server, directory)
        finally:
            server.kill()
