"""The table row of a teacher that is given to a grid, scored once on the rows of the cells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.grid import given_teacher
from mtkd.jobs.grid.given_teacher import TeacherScores, score_given_teacher, timed_directory
from mtkd.jobs.grid.grid_baselines import PredictionsByTask
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import read_saved
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from tasks.common.errors import UserError
from tasks.common.files import is_temporary
from tasks.task_names import resolve

TASKS = {task.name: task for task in resolve("rte,sst2")}
LABELS = {"rte": ["entailment", "not_entailment"], "sst2": ["positive", "negative"]}
Score = Callable[..., TeacherScores]


@pytest.fixture
def cell(tiny_teacher: Path) -> PredictionsByTask:
    """The predictions of a cell for 16 validation rows of each task."""
    scores = evaluate(tiny_teacher, "pocket", "rte,sst2", limit=16).scores
    return {score.task: {3: {score.split: score.predictions}} for score in scores if score.predictions}


@pytest.fixture
def score(cell: PredictionsByTask, tmp_path: Path) -> Score:
    """A function that scores the teacher of two students, one per task."""

    def run(teacher: object, printed: list[str] | None = None, **changes: Any) -> TeacherScores:
        inputs = GridInputs("pocket", str(teacher), tmp_path / "out", eval_limit=16)
        lines = [] if printed is None else printed
        return score_given_teacher(
            replace(inputs, **changes), TASKS, {name: name for name in TASKS}, {"a": cell}, lines.append
        )

    return run


def test_the_teacher_run_has_the_scores_of_mtkd_evaluate(
    score: Score, cell: PredictionsByTask, tiny_teacher: Path
) -> None:
    scored = score(tiny_teacher)
    assert scored.parameters > scored.parameters_without_embeddings > 0
    for name, seeds in cell.items():
        (predicted,) = seeds[3].values()
        (found,) = scored.predicted[name][0].values()
        assert (found.predictions == predicted.predictions).all()


def test_checkpoints_are_scored_once_in_the_given_order_of_their_labels(
    score: Score, save_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in TASKS:
        save_checkpoint("Bert", f"teach/{task}")
    printed: list[str] = []
    plain = score(tmp_path / "teach/{task}", printed)
    assert [line.split()[-1] for line in printed] == ["rte", "sst2"]
    other_order = score(tmp_path / "teach/{task}", printed, teacher_labels=LABELS)
    assert len(printed) == 3, "the order of sst2 is another one, that of rte is the same"
    (before,), (after,) = (found.predicted["sst2"][0].values() for found in (plain, other_order))
    assert (before.predictions == 1 - after.predictions).all()
    monkeypatch.setattr(given_teacher, "evaluate", None)
    again = score(tmp_path / "teach/{task}", printed, teacher_labels=LABELS)
    assert len(printed) == 3 and again.parameters == plain.parameters
    assert (again.predicted["sst2"][0]["validation"].predictions == after.predictions).all()


def test_the_teacher_of_the_first_task_is_timed(
    score: Score, save_checkpoint: Callable[..., Path], tiny_teacher: Path, tmp_path: Path
) -> None:
    assert score(tiny_teacher).first is not None
    first = score(f"rte={save_checkpoint('Bert', 'teach/rte')},sst2={tiny_teacher}").first
    assert isinstance(first, CheckpointRef) and first.task == TASKS["rte"]
    directory = timed_directory(first, tmp_path / "timed")
    saved = read_saved(directory)
    assert [task.name for task in saved.tasks] == ["rte"] and saved.config.spec == first.config.spec
    assert first.digest and "rte" in MultiTaskModel.load(directory).tasks
    second = score(tiny_teacher).first
    assert second and timed_directory(second, tmp_path / "unused") == tiny_teacher
    assert not (tmp_path / "unused").exists()


def test_damaged_scores_are_recomputed(score: Score, tiny_teacher: Path, tmp_path: Path) -> None:
    printed: list[str] = []
    score(tiny_teacher, printed)
    (tmp_path / "out/teacher-scores/rte/predictions/rte/validation.parquet").write_bytes(b"PAR1")
    (tmp_path / "out/teacher-scores/sst2/evaluation.json").write_text("{}")
    score(tiny_teacher, printed)
    assert len(printed) == 4


def _interrupt(directory: Path) -> None:
    raise KeyboardInterrupt


def test_interrupted_scoring_is_repeated_and_leaves_no_files(
    score: Score, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "out/teacher-scores"
    printed: list[str] = []
    score(tiny_teacher, printed)
    (kept / "rte/digests.json").unlink()
    (kept / ".rte.0123456789abcdef.tmp").mkdir()
    assert is_temporary(kept / ".rte.0123456789abcdef.tmp")
    score(tiny_teacher, printed)
    assert [line.split()[-1] for line in printed] == ["rte", "sst2", "rte"]
    assert (kept / "rte/digests.json").is_file() and {path.name for path in kept.iterdir()} == {"rte", "sst2"}
    shutil.rmtree(kept)
    monkeypatch.setattr(given_teacher, "write_digests", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        score(tiny_teacher)
    assert not list(kept.iterdir())


def test_the_error_of_a_teacher_that_cannot_be_scored_names_the_task(
    score: Score, tiny_teacher: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    second = shutil.copytree(tiny_teacher, tmp_path / "second")
    for teacher, changes, message in (
        (f"sst2={tiny_teacher}", {}, "on rte: no teacher is named for it"),
        (f"rte={tiny_teacher},rte={second},sst2={tiny_teacher}", {}, "on rte: only one teacher"),
        (tiny_encoder, {}, "on rte: .* has no head for a task"),
        (tiny_teacher, {"eval_limit": 8}, "on rte: the validation rows are not those"),
    ):
        with pytest.raises(UserError, match=f"it cannot be scored {message}"):
            score(teacher, **changes)
