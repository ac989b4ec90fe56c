"""The examples run, and end with what they promise."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow(reason="trains two teachers and two students")
def test_the_tour_of_the_python_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python_tour.py", str(tmp_path)])
    names = runpy.run_path(str(EXAMPLES / "python_tour.py"))
    assert names["follow"].losses[-1] < 0.8 * names["follow"].losses[0]
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "{'accuracy': 1.0}"
    for model in ("teacher", "student"):
        score = names[model].scores["sst2"]
        assert score.primary > score.majority + 0.1
