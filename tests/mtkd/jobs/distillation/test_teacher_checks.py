"""Checks of a teacher on validation rows before training: the order of its outputs, and recorded scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator

import mtkd
from mtkd.jobs.distillation import teacher_checks
from mtkd.jobs.distillation.prepare import LoadedTeacher
from mtkd.jobs.distillation.teacher_checks import check_teacher
from mtkd.jobs.training_data import EncodedRows, TaskData, TrainingData
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.train_settings import TrainSettings
from tasks.common.errors import MtkdWarning, UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve

SST2 = resolve("sst2")[0]
Check = Callable[[int, int, float], list[str]]

SMALL_RUN: dict[str, Any] = {
    "data": "pocket",
    "tasks": "rte",
    "limit": 24,
    "settings": {"student.max_length": 24, "student.transformer.layers": 1},
}


@pytest.fixture
def check(save_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Check:
    """A function that checks a teacher whose outputs are swapped in a fraction of the rows."""

    def logits(model: Any, task: Any, rows: Any, *_: Any) -> np.ndarray:
        swapped = np.random.default_rng(0).permutation(len(rows)) < share * len(rows)
        return np.eye(2)[np.where(swapped, 1 - rows.labels, rows.labels).astype(int)]

    ref = CheckpointRef.of("teacher", save_checkpoint("Bert"), SST2)
    loaded = LoadedTeacher(ref, ref.load(24), ("sst2",))
    monkeypatch.setattr(teacher_checks, "validation_logits", logits)
    share = 0.0

    def run(n_validation: int, n_train: int, swapped: float) -> list[str]:
        nonlocal share
        share = swapped
        train, validation = (load_rows(open_data("pocket"), SST2, name) for name in ("train", "validation"))
        train = train.take(np.arange(n_train))
        part = TaskData(SST2, train, {"validation": validation.take(np.arange(n_validation))})
        rows = EncodedRows(TrainingData([part]))
        accelerator = Accelerator(cpu=True)
        return check_teacher(loaded, {"sst2": SST2}, rows, accelerator, TrainSettings())

    return run


def test_with_few_rows_the_warning_names_the_likely_order_and_does_not_advise_training(check: Check) -> None:
    assumed, remark = check(12, 0, 0.75)
    assert "LABEL_0, LABEL_1" in assumed
    assert "scores 25.0 on sst2/validation; its outputs may be in another order: as negative" in remark
    assert "they agree with 3 of 12 labels" in remark
    assert "`teacher_labels={'sst2': ['positive', 'negative']}`" in remark
    assert "Train it longer" not in remark


def test_training_rows_decide_if_validation_rows_cannot(check: Check) -> None:
    with pytest.raises(UserError, match="agree with 28 of 112 labels") as refused:
        check(12, 100, 0.75)
    assert refused.value.hint is not None and "{'sst2': ['positive', 'negative']}" in refused.value.hint


def test_a_weak_teacher_with_the_right_order_gets_the_advice_to_refine_it(check: Check) -> None:
    _, weak = check(60, 100, 0.5)
    assert "Train it longer" in weak and "another order" not in weak
    assert len(check(60, 100, 0.1)) == 1  # only the message that the order was assumed


def test_a_teacher_with_another_output_range_causes_a_warning() -> None:
    labels = np.linspace(0, 5, 40)
    noise = np.random.default_rng(0).normal(0, 0.3, (40, 1))
    assert teacher_checks._other_scale(labels[:, None] + noise, labels) is None
    remark = teacher_checks._other_scale((labels[:, None] + noise) / 5, labels)
    assert remark is not None and "the labels from 0 to 5" in remark
    assert teacher_checks._other_scale(noise, labels) is None, "a teacher that knows nothing has no scale"
    assert teacher_checks._other_scale((labels[:, None] + noise) / 5, np.full(40, np.nan)) is None


def test_a_teacher_is_not_scored_again_on_the_same_rows(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []

    def counting(model: Any, task: Any, *given: Any) -> Any:
        scored.append(task.name)
        return original(model, task, *given)

    original = teacher_checks.validation_logits
    monkeypatch.setattr(teacher_checks, "validation_logits", counting)
    teacher = mtkd.refine(
        tiny_encoder, data="pocket", tasks="rte,sst2", limit=24, eval_limit=20, steps=2, out=tmp_path / "t"
    )
    weak = teacher.scores["rte"].primary <= teacher.scores["rte"].majority
    for rows, times in ((20, 0), (19, 1)):
        with pytest.warns(MtkdWarning) as warned:
            mtkd.distill(
                "mkd-transformer",
                teacher=tmp_path / "t",
                steps=2,
                eval_limit=rows,
                out=tmp_path / f"{rows}",
                **SMALL_RUN,
            )
        assert len(scored) == times
        if not times:
            found = any("the teacher is not better than the best constant" in str(w.message) for w in warned)
            assert found == weak
    (tmp_path / "t" / "run.json").write_text("{}")
    mtkd.distill(
        "mkd-transformer", teacher=tmp_path / "t", steps=2, eval_limit=20, out=tmp_path / "x", **SMALL_RUN
    )
    assert len(scored) == 2
