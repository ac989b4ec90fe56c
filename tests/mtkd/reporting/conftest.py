"""A task with hostile labels and texts, and four runs on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import LABELS, ROWS, SCRIPT, predicted, write_run

from tasks.task import Task


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A task with hostile labels and texts, and the file of its validation rows."""
    file = tmp_path_factory.mktemp("data") / "validation.jsonl"
    rows = [{"text": f"{SCRIPT} row {n} & more", "label": LABELS[n % 2]} for n in range(ROWS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Task(
        "topics", "classify", ("text",), labels=LABELS, metrics=("accuracy",), files={"validation": str(file)}
    )


@pytest.fixture(scope="module")
def runs(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher, a student, a control and a fine-tuned student."""
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "teacher", task, predicted(task, 0.9, 1), "refine")
    write_run(place / "student", task, predicted(task, 0.85, 2))
    write_run(place / "labels", task, predicted(task, 0.7, 3), supervision="labels")
    write_run(place / "tuned" / "topics", task, predicted(task, 0.895, 1), "finetune")
    return place
