"""Checks of loaded teachers on validation rows, before a student is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from mtkd.evaluation.scoring import score_logits
from mtkd.jobs.distillation.prepare import LoadedTeacher
from mtkd.jobs.training_data import EncodedRows
from mtkd.jobs.validation_scores import scores_record, validation_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.teachers.label_order import check_order, possible_order
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.time_trial import current_trial
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError
from tasks.common.text_format import score_text
from tasks.data.rows import has_label
from tasks.task import Task
from tasks.tokens.encoding import Encoded

_MIN_SCORES = 10  # the scale of a teacher's scores cannot be judged on fewer rows
_MIN_CORRELATION = 0.5  # between scores and labels, for a teacher that has learned the task
_MAX_TRAINING_ROWS = 500  # training rows that are predicted if the validation rows are too few


def check_teacher(
    teacher: LoadedTeacher,
    tasks: Mapping[str, Task],
    rows: EncodedRows,
    accelerator: Accelerator,
    train: TrainSettings,
) -> list[str]:
    """Run a teacher on the validation rows of its tasks, and return warnings about it.

    If the outputs of a checkpoint seem to be in another order than assumed, but the validation rows are too
    few to be sure, up to 500 labelled training rows are predicted too.

    Raises:
        UserError: another order of a checkpoint's outputs agrees clearly better with the labels.
    """
    model, ref = teacher.model.to(accelerator.device), teacher.ref
    warnings = [ref.warning] if isinstance(ref, CheckpointRef) and ref.warning else []
    scores = []
    predictions: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    order_remarks: dict[str, str] = {}  # task -> a remark on another order that its outputs may have
    for (name, split), encoded in rows.validation(model.reader, only=teacher.tasks).items():
        task = tasks[name]
        logits = validation_logits(model, task, encoded, accelerator, train)
        scores.append(score_logits(task, split, encoded, logits, model.reader))
        predictions.setdefault(name, []).append((logits, encoded.labels))
    if isinstance(ref, CheckpointRef) and ref.order and not current_trial():  # a trial predicts too few rows
        for name, pairs in predictions.items():
            if _possible_order(tasks[name], ref, pairs) and (more := _some_training_rows(rows, name, model)):
                pairs.append((validation_logits(model, tasks[name], more, accelerator, train), more.labels))
            check_order(f"the teacher {ref.name}", tasks[name], ref.order, *_concatenated(pairs))
            if remark := _possible_order(tasks[name], ref, pairs):
                order_remarks[name] = remark
    described = f"the teacher {ref.name}" if isinstance(ref, CheckpointRef) else "the teacher"
    record = scores_record(scores)
    for name, pairs in predictions.items():
        if tasks[name].type.outputs == "scores" and (remark := _other_scale(*_concatenated(pairs))):
            warnings.append(
                f"{described} seems to predict on another scale than the labels of {name!r}: {remark}"
            )
    for name, remark in order_remarks.items():
        scored = [f"{score_text(s['primary'])} on {key}" for key, s in record.items() if s["task"] == name]
        warnings.append(f"{described} scores {', '.join(scored)}; {remark}")
    undoubted = {key: s for key, s in record.items() if s["task"] not in order_remarks}
    return warnings + below_constant(described, undoubted)


def recorded_scores(teacher: LoadedTeacher, rows: EncodedRows) -> dict[str, Any] | None:
    """The scores that the run of a teacher has recorded for the same validation rows.

    Returns:
        "task/split" -> scores; None if the teacher is no run of mtkd, was not scored on all these rows, or
        has a record that cannot be read: it is then scored again.
    """
    file = Path(teacher.ref.name) / RUN_FILE
    if type(teacher.ref) is not TeacherRef or teacher.ref.saved is None or not file.is_file():
        return None
    try:
        record = read_run_record(file)
    except UserError:
        return None
    digests, scores = record.get("data"), record.get("scores", {})
    parts = [part for part in rows.data.parts if part.task.name in teacher.tasks]
    keys = [f"{part.task.name}/{split}" for part in parts for split in part.validation]
    same = isinstance(digests, dict) and all(digests.get(key) == rows.data.digests[key] for key in keys)
    return {key: scores[key] for key in keys} if same and scores.keys() >= set(keys) else None


def _concatenated(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The logits and the labels of all pairs (logits, labels), concatenated."""
    logits, labels = (np.concatenate(values) for values in zip(*pairs, strict=True))
    return logits, labels


def _other_scale(logits: np.ndarray, labels: np.ndarray) -> str | None:
    """A remark on scores that correlate with the labels, but have a larger error than the labels' mean has.

    Args:
        logits: (n, 1) scores.
        labels: (n,), NaN = unlabelled.

    Returns:
        The remark; None if the scores are on the scale of the labels, or do not correlate with them.
    """
    labelled = has_label(labels)
    scores, actual = logits[labelled, 0].astype(np.float64), labels[labelled]
    if len(actual) < _MIN_SCORES or not (np.ptp(scores) and np.ptp(actual)):
        return None
    correlates = np.corrcoef(scores, actual)[0, 1] >= _MIN_CORRELATION
    if not correlates or np.square(scores - actual).mean() <= actual.var():
        return None
    ranges = (f"{values.min():.3g} to {values.max():.3g}" for values in (scores, actual))
    return (
        f"its scores range from {', and the labels from '.join(ranges)}. The student will predict on the "
        "teacher's scale: convert the labels and the `range` of the task to that scale, or refine a teacher"
    )


def _possible_order(task: Task, ref: CheckpointRef, pairs: list[tuple[np.ndarray, np.ndarray]]) -> str | None:
    return possible_order(task, ref.order, *_concatenated(pairs))


def _some_training_rows(rows: EncodedRows, name: str, model: MultiTaskModel) -> Encoded | None:
    """Up to 500 evenly spaced labelled training rows of a task as the teacher's token ids; None if none is
    labelled.
    """
    (train,) = (part.train for part in rows.data.parts if part.task.name == name)
    labelled = np.flatnonzero(has_label(train.labels))
    if not len(labelled):
        return None
    spaced = np.linspace(0, len(labelled) - 1, min(len(labelled), _MAX_TRAINING_ROWS)).astype(np.int64)
    return Encoded.encode(model.reader.rows(train.take(labelled[spaced])), model.reader.tokeniser)


def below_constant(who: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One warning that names all tasks on which a teacher does not beat the best constant prediction.

    Args:
        who: the teacher, as the start of the warning.
        scores: "task/split" -> scores, as recorded in run.json.
    """
    weak = [
        f"{score_text(s['primary'])} on {key} (the constant {score_text(s['majority'])})"
        for key, s in scores.items()
        if s["primary"] <= s["majority"]
    ]
    text = (
        f"{who} is not better than the best constant prediction, so it cannot teach these tasks: it scores "
        f"{', '.join(weak)}. Train it longer, or leave these tasks out."
    )
    return [text] if weak else []
