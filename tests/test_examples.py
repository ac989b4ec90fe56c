"""The examples run and give the documented results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow(reason="trains two teachers and two students")
def test_the_tour_of_the_python_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python_tour.py", str(tmp_path)])
    code = (EXAMPLES / "python_tour.py").read_text()
    assert '"limit": 200,' in code
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code.replace('"limit": 200,', '"limit": 100,'), "python_tour.py", "exec"), names)
    assert names["follow"].losses[-1] < 0.8 * names["follow"].losses[0]
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "{'accuracy': 1.0}"
    scores = names["teacher"].scores.values()
    assert sum(score.primary - score.majority for score in scores) > 0.1 * len(scores)
