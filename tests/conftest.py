"""Fixtures for all tests: the command line, plugin packages, and resources that test processes share."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from in_process_workers import InProcessPool
from processes import CommandResult, Processes, serve

from mtkd.output_files.worker_pools import Workers

os.environ["HF_HUB_OFFLINE"] = "1"  # no test depends on the content of the hub
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests import onnxruntime before mtkd does
# Tests expect the exact results of a CPU. On a machine with a GPU, only the processes of test_gpu.py see it.
os.environ.setdefault("MTKD_TEST_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Files that determine what a tokeniser does; the configuration of a model names its class.
_TOKENISER_FILE = re.compile(r"^config\.json$|token|vocab|merges|\.model$")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of slow tests first, and before these the files that use `processes`.

    One xdist worker gets all of the latter, so that only one fork server is started. No worker has a slow
    test left when the others have finished.
    """
    forking, slow = set(), set()
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            forking.add(item.path)
        if item.get_closest_marker("slow"):
            slow.add(item.path)
    items.sort(key=lambda item: (item.path not in forking, item.path not in slow))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed the random numbers, so that no test depends on the tests before it."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster for all tests of a module; they are skipped if Ray is not installed."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture
def in_process_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Workers that run in this process, and therefore start instantly."""
    monkeypatch.setattr(Workers, "open", lambda self, setup=None: InProcessPool(tmp_path, setup))
    return Workers(2)


@pytest.fixture
def mtkd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run a command line in this process."""
    from mtkd.cli.main import main

    monkeypatch.setattr(
        "tasks.common.progress._quiet", False
    )  # restored after the test, whatever --quiet sets

    def run(*words: object) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["mtkd", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        printed = capsys.readouterr()
        return CommandResult(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session", autouse=True)
def load_each_tokeniser_once() -> Iterator[None]:
    """`Tokeniser.load` returns the same object for directories with the same tokeniser files.

    Tests load tokenisers of 30,000 tokens thousands of times, which would be a fifth of their time.
    """
    from tasks.tokens.tokeniser import Tokeniser

    load, loaded = Tokeniser.load, {}

    def load_once(name_or_dir: str) -> Tokeniser:
        files = sorted(path for path in Path(name_or_dir).glob("*") if _TOKENISER_FILE.search(path.name))
        if not any(path.name == "tokenizer.json" for path in files):
            return load(name_or_dir)
        key = tuple((path.name, path.read_bytes()) for path in files)
        if key not in loaded:
            loaded[key] = load(name_or_dir)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokeniser, "load", load_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what mtkd caches out of the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def fork_worker_processes() -> Iterator[None]:
    """Workers are forked from a process that has imported torch, instead of importing it themselves.

    How they start without that is tested in tests/mtkd/output_files/test_spawn.py.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spacy", "transformers", "mtkd.teachers.teacher_ref", "augment.tagging"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtkd.output_files.worker_pools.CleanSpawn", lambda: context)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Do not wait until files are on the disk, which only matters if the power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


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


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Runs commands in separate processes: killed at a given point, or several together."""
    with serve(tmp_path_factory.mktemp("processes")) as found:
        yield found


@pytest.fixture(scope="session")
def save_random_bert() -> Callable[..., None]:
    """A function that saves a random BERT of 3 layers with the real vocabulary and tokeniser."""
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
    """A random BERT of 3 layers and width 16 with the real vocabulary, saved by transformers."""
    return build_once("encoder", lambda place: save_random_bert(place, heads=2, hidden_size=16))
