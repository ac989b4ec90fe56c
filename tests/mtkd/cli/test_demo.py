"""`mtkd demo --tiny`, from the first command to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow(
    reason="seven commands with the real default teacher, and two processes that measure memory"
)
def test_the_tiny_demo_runs_from_end_to_end_and_resumes(tmp_path: Path, processes: Any) -> None:
    out = tmp_path / "demo"
    done = processes.run("demo", "--tiny", "--out", out)
    assert done.code == 0, done.err
    said = done.out + done.err
    commands = [line for line in said.splitlines() if line.startswith("$ mtkd ")]
    assert [line.split()[2] for line in commands] == [
        *("refine", "augment", "distill", "distill"),
        *("finetune", "finetune"),
    ]
    runs = ("teacher", "labels", "student", "finetuned/sst2", "finetuned/rte")
    records = {name: json.loads((out / name / "run.json").read_text()) for name in runs}
    assert {record["status"] for record in records.values()} == {"finished"}

    # The table holds the scores of the runs' records, and their means over the tasks.
    columns = {}
    for task in ("sst2", "rte"):
        key = f"{task}/validation"
        found = [records[name]["scores"][key]["primary"] for name in (*runs[:3], f"finetuned/{task}")]
        columns[task] = [records["teacher"]["scores"][key]["majority"], *found]
    columns["mean"] = [sum(pair) / 2 for pair in zip(columns["sst2"], columns["rte"], strict=True)]
    lines = {line.replace("│", " ").split()[0]: line for line in said.splitlines() if line.strip(" │┃")}
    for name, values in columns.items():
        assert [f"{value:.3f}" for value in values] == lines[name].replace("│", " ").split()[1:]
