"""The command line, as tests call it; packages with plugins."""

from __future__ import annotations

import itertools
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
