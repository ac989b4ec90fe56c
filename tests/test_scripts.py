"""The benchmark scripts still run against the package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def test_bench_training_compares_the_loop_with_bare_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench_training.py", "--data", "pocket", "--rows", "4", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / words[0]), run_name="__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "16 rows" in printed
    assert printed.count("ratio: median") == 2
