"""`mtkd demo --tiny`, from the first command to the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mtkd.cli.demo import _pareto_front, _report
from mtkd.evaluation.differences import Difference


@pytest.mark.parametrize(
    ("teacher", "message"),
    [(0.8, "keeps 75% of what the teacher gains"), (0.4, "The teacher is no better than")],
)
def test_no_share_of_the_gain_is_reported_if_the_teacher_gained_nothing(
    teacher: float, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mean = {"majority": 0.4, "teacher": teacher, "control": 0.75, "distilled": 0.7, "finetuned": 0.7}
    _report({"average": mean}, Difference(0.7, 0.75, -0.05, -0.1, 0.0), 2.0, 0.5)
    printed = capsys.readouterr().out
    assert message in printed and "changes the score by -5.0 points (95% interval -10.0 to +0.0)" in printed


@pytest.mark.parametrize(
    ("teacher", "speed", "front"),
    [
        (0.9, 2.0, "teacher 90.0 at 1.0x the speed, distilled 80.0 at 2.0x the speed"),
        (0.7, 2.0, "distilled 80.0 at 2.0x the speed"),
        (0.9, 0.5, "teacher 90.0 at 1.0x the speed"),
    ],
)
def test_the_pareto_front_excludes_dominated_models(teacher: float, speed: float, front: str) -> None:
    average = {"majority": 0.4, "teacher": teacher, "control": 0.75, "distilled": 0.8, "finetuned": 0.78}
    assert _pareto_front(average, speed) == front


@pytest.mark.slow(reason="trains a teacher and three students")
def test_the_tiny_demo_runs_end_to_end_and_resumes(
    tmp_path: Path, mtkd: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    out = tmp_path / "demo"
    done = mtkd("demo", "--tiny", "--out", out)
    assert done.code == 0, done.err
    printed = done.out + done.err
    commands = [line for line in printed.splitlines() if line.startswith("$ mtkd ")]
    expected = ["refine", *["distill"] * 2, *["finetune"] * 2, "report"]
    assert [line.split()[2] for line in commands] == expected
    assert "<html" in (out / "report.html").read_text()
    runs = ("teacher", "control", "distilled", "finetuned/sst2", "finetuned/mrpc")
    records = {name: json.loads((out / name / "run.json").read_text()) for name in runs}
    assert {record["status"] for record in records.values()} == {"finished"}
    steps = [records[name]["training"]["steps"] for name in ("control", "distilled")]
    assert steps[0] == steps[1], "the control has as many steps"
    assert records["distilled"]["rows"]["sst2"]["unlabelled"] == 32

    # The table and demo.json hold the scores of the runs' records, and their averages over the tasks.
    columns = {}
    for task in ("sst2", "mrpc"):
        key = f"{task}/validation"
        found = [records[name]["scores"][key]["primary"] for name in (*runs[:3], f"finetuned/{task}")]
        columns[task] = [records["teacher"]["scores"][key]["majority"], *found]
    columns["average"] = [sum(pair) / 2 for pair in zip(columns["sst2"], columns["mrpc"], strict=True)]
    lines = {line.replace("│", " ").split()[0]: line for line in printed.splitlines() if line.strip(" │┃")}
    for name, values in columns.items():
        assert [f"{100 * value:.1f}" for value in values] == lines[name].replace("│", " ").split()[1:]
    written = json.loads((out / "demo.json").read_text())
    assert list(written["mean"]) == ["majority", "teacher", "control", "distilled", "finetuned"]
    assert list(written["mean"].values()) == pytest.approx(columns["average"])
    gain = written["gain"]
    assert gain["difference"] == pytest.approx(written["mean"]["distilled"] - written["mean"]["control"])
    assert gain["low"] <= gain["difference"] <= gain["high"] and written["seconds"] > 0

    # The second time, only the tables and the benchmark are computed.
    again = mtkd("demo", "--tiny", "--out", out)
    assert again.code == 0, again.err
    assert {name: json.loads((out / name / "run.json").read_text()) for name in runs} == records
    assert all(line in again.out + again.err for line in lines.values() if line.split()[0] in columns)
