"""The command line, as tests call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


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
