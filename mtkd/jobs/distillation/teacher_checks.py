"""Checks of loaded teachers on validation rows, before a student is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator

from mtkd.evaluation.scoring import score_logits
from mtkd.jobs.distillation.prepare import LoadedTeacher
from mtkd.jobs.training_data import EncodedRows
from mtkd.jobs.validation_scores import scores_record, validation_logits
from mtkd.settings import TrainSettings
from mtkd.teachers.label_order import check_order
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.time_trial import current_trial
from tasks.task import Task


def check_teacher(
    teacher: LoadedTeacher,
    tasks: Mapping[str, Task],
    rows: EncodedRows,
    accelerator: Accelerator,
    train: TrainSettings,
) -> list[str]:
    """Run a teacher on the validation rows of its tasks, and return warnings about it.

    Raises:
        UserError: another order of a checkpoint's outputs agrees clearly better with the labels.
    """
    model, ref = teacher.model.to(accelerator.device), teacher.ref
    warnings = [ref.warning] if isinstance(ref, CheckpointRef) and ref.warning else []
    scores = []
    predictions: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (name, split), encoded in rows.validation(model.reader, only=teacher.tasks).items():
        task = tasks[name]
        logits = validation_logits(model, task, encoded, accelerator, train)
        scores.append(score_logits(task, split, encoded, logits, model.reader))
        predictions.setdefault(name, []).append((logits, encoded.labels))
    if isinstance(ref, CheckpointRef) and ref.order and not current_trial():  # which predicts few rows
        for name, pairs in predictions.items():
            logits, labels = (np.concatenate(values) for values in zip(*pairs, strict=True))
            check_order(f"the teacher {ref.name}", tasks[name], ref.order, logits, labels)
    described = f"the teacher {ref.name}" if isinstance(ref, CheckpointRef) else "the teacher"
    return warnings + below_constant(described, scores_record(scores))


def below_constant(who: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One warning that names the tasks on which a teacher does not beat the best constant prediction.

    Args:
        scores: "task/split" -> scores, as recorded in run.json.
    """
    weak = [
        f"{s['primary']:.3f} on {key} (a constant prediction {s['majority']:.3f})"
        for key, s in scores.items()
        if s["primary"] <= s["majority"]
    ]
    text = (
        f"{who} scores {', '.join(weak)}: not better than the best constant prediction, so it cannot teach "
        "this. Refine it longer, or leave such tasks out."
    )
    return [text] if weak else []
