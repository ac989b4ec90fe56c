"""The command line as tests call it, and what is built once and shared by all test processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock


@dataclass(frozen=True)
class Answered:
    """What a command left: exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def mtkd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answered]:
    """Run a command line in this process."""
    from mtkd.cli.main import main

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
