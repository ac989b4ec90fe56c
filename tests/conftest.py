"""The command line as tests call it, packages with plugins, and what all test processes share."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

os.environ["HF_HUB_OFFLINE"] = "1"  # no test depends on what the hub has


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files of long tests first, and before all those that use `processes`.

    One xdist worker gets them all, so that only one starts a fork server; and no worker has a long test left
    when the other has finished.
    """
    forking, slow = set(), set()
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            forking.add(item.path)
        if item.get_closest_marker("slow"):
            slow.add(item.path)
    items.sort(key=lambda item: (item.path not in forking, item.path not in slow))


@dataclass(frozen=True)
class Answered:
    """What a command left: exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random numbers that a test draws without a seed of its own do not depend on the tests before it."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


@pytest.fixture
def mtkd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answered]:
    """Run a command line in this process."""
    from mtkd.cli.main import main

    monkeypatch.setattr("tasks.progress._quiet", False)  # and back after the test, whatever --quiet sets

    def run(*words: object) -> Answered:
        monkeypatch.setattr("sys.argv", ["mtkd", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        printed = capsys.readouterr()
        return Answered(code, printed.out, printed.err)

    return run


_NUMBERS = itertools.count()


@pytest.fixture
def install_plugin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Install a package of one module; `{module}` in an entry point stands for the module's name."""

    def install(package: str, group: str, code: str, *entries: str) -> None:
        module = f"plugin_{next(_NUMBERS)}"
        site = tmp_path_factory.mktemp(module)
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (site / f"{module}.py").write_text(code, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        lines = [f"[{group}]", *(entry.format(module=module) for entry in entries), ""]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        monkeypatch.syspath_prepend(site)

    return install


@pytest.fixture(scope="session")
def build_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a directory once per test run, whichever xdist worker needs it first.

    `build_once(name, make)` calls `make(directory)` unless that was done before, and returns the directory.
    All tests share it, so they must not change it.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    root.mkdir(exist_ok=True)

    def build(name: str, make: Callable[[Path], object]) -> Path:
        place, finished = root / name, root / f"{name}.finished"
        with FileLock(root / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(place, ignore_errors=True)
                make(place)
                finished.touch()
        return place

    return build


class Processes:
    """Runs command lines in processes of their own, which `fork_server.py` forks."""

    def __init__(self, server: subprocess.Popen[str], place: Path):
        self._server, self._place, self._count = server, place, 0

    def _ask(self, request: dict[str, object]) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def run(
        self, *words: object, kill_at: str | None = None, before: bool = False, count: int = 1
    ) -> Answered:
        """Run `mtkd WORDS` and wait for its end.

        Args:
            kill_at: the process kills itself (SIGKILL) right after it renamed a finished file or directory to
                a path that matches this pattern; `before`: right before.
            count: start this many processes, as `torchrun` does; the answer has the first code that is not 0.
        """
        environments: list[dict[str, str]] = [{}]
        if count > 1:
            with socket.create_server(("127.0.0.1", 0)) as free:
                shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
            shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
            environments = [{**shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(count)]
        kill = {"at": kill_at, "before": before} if kill_at else None
        started = []
        for environment in environments:
            self._count += 1
            out, err = (self._place / f"{self._count}.{name}" for name in ("out", "err"))
            request = {"words": [str(word) for word in words], "env": environment, "kill": kill}
            started.append((self._ask({**request, "out": str(out), "err": str(err)}), out, err))
        codes = [self._ask({"wait": process}) for process, *_ in started]
        printed = (
            "".join(file.read_text() for file in files) for files in list(zip(*started, strict=True))[1:]
        )
        return Answered(next(filter(None, codes), 0), *printed)


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Commands in processes of their own: killed at a certain point, or several together."""
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"  # macOS refuses such forks otherwise
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield Processes(server, tmp_path_factory.mktemp("processes"))
        server.communicate()


@pytest.fixture(scope="session")
def save_random_bert() -> Callable[..., None]:
    """A function that saves a random BERT of 3 layers, with the real vocabulary and its tokeniser."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mtkd.models.encoders.pretrained_config import locate

    def save(place: Path, *, heads: int, hidden_size: int) -> None:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=30522,
            hidden_size=hidden_size,
            num_hidden_layers=3,
            num_attention_heads=heads,
            intermediate_size=32,
            max_position_embeddings=128,
        )
        BertModel(config).save_pretrained(place)
        AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(place)

    return save


@pytest.fixture(scope="session")
def tiny_encoder(build_once: Callable[..., Path], save_random_bert: Callable[..., None]) -> Path:
    """A directory as transformers saves it: a random BERT of 3 layers, 16 wide, with the real vocabulary."""
    return build_once("encoder", lambda place: save_random_bert(place, heads=2, hidden_size=16))
