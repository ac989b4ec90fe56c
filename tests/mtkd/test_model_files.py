"""Errors in model.json name the file: invalid thresholds, and encoders that cannot be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mtkd.model_files import FORMAT, ModelInfo, read_model_file
from mtkd.models.saved_model import read_description
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.task import Task

TOPICS = Task(name="topics", kind="multilabel", columns=("text",), labels=("a", "b", "c"))
SCORES = {"split": "validation", "rows": 4, "metrics": {}, "primary": 0.5, "majority": 0.5, "loss": 1.0}


def written(directory: Path, task: Task, threshold: Any) -> Path:
    scores = {task.name: {"task": task.name, **SCORES, "threshold": threshold}}
    values = {"format": FORMAT, "encoder": {}, "tasks": [task.to_json()], "scores": scores}
    (directory / "model.json").write_text(json.dumps(values))
    return directory


@pytest.mark.parametrize(
    ("task", "threshold"),
    [(TOPICS, [0.5, 0, 1]), (TASKS["squad_v2"], -3.5), (TASKS["rte"], "unused"), (TOPICS, None)],
)
def test_valid_thresholds_are_accepted(task: Task, threshold: Any, tmp_path: Path) -> None:
    found = read_model_file(written(tmp_path, task, threshold)).scores
    assert found[task.name].get("threshold") == threshold


@pytest.mark.parametrize(
    ("task", "threshold"),
    [
        *((TOPICS, value) for value in ("x", [], ["x"], {}, [0.5], [0.5] * 4, [1, 2, 3], [True] * 3, 0.5)),
        *((TASKS["squad_v2"], value) for value in ("x", [], {}, [1], True, float("nan"))),
    ],
)
def test_invalid_thresholds_are_errors_that_name_the_file_and_key(
    task: Task, threshold: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"model.json: scores.{task.name}.threshold = .* is not valid"):
        read_model_file(written(tmp_path, task, threshold))


def test_a_model_without_its_scores_keeps_its_thresholds(tmp_path: Path) -> None:
    file = written(tmp_path, TOPICS, [0.5, 0, 1]) / "model.json"
    found = read_model_file(tmp_path)
    info = ModelInfo(
        scores={**found.scores, "topics/more": {**found.scores["topics"], "threshold": [0, 0, 1]}}
    )
    assert info.known_thresholds == {"topics": [0.5, 0, 1]}, "of the first split"
    without = info.without_scores()
    assert not without.scores and without.known_thresholds == info.known_thresholds
    values = json.loads(file.read_text()) | {"scores": {}, "thresholds": {"topics": [0.5]}}
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"model.json: thresholds.topics = \[0.5\] is not valid"):
        read_model_file(tmp_path)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({}, "encoder has no key 'kind'"),
        (
            {"kind": "foo"},
            r"unknown kind of student \(student.kind\) 'foo'(.|\n)*hint: install the package that provides "
            "the student 'foo'",
        ),
        ({"kind": "transformer", "hf": {"model_type": "evil"}}, "cannot be used: .* evil"),
    ],
)
def test_an_encoder_that_cannot_be_built_names_the_file(
    encoder: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = written(tmp_path, TASKS["rte"], "unused") / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder": encoder}))
    with pytest.raises(UserError, match=f"{file}.*{message}"):
        read_description(tmp_path).encoder()
