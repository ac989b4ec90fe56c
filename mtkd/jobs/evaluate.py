"""Evaluate: score a trained model on labelled splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtkd.device import find_device
from mtkd.evaluation.baselines import (
    CONSTANT,
    COSINE,
    LINEAR,
    TRAINING_ROWS,
    baseline_warnings,
    best_constant,
    encoder_baselines,
)
from mtkd.evaluation.class_report import ClassReport, class_report
from mtkd.evaluation.differences import AVERAGE, Difference, Splits, differences_by_task, sample_scores
from mtkd.evaluation.frozen_encoder import FrozenEncoder
from mtkd.evaluation.scoring import (
    TaskScores,
    check_predictions,
    predictions_by_task,
    score_logits,
    write_predictions,
)
from mtkd.jobs.evaluation_result import Evaluation
from mtkd.jobs.labelled_rows import labelled_rows
from mtkd.jobs.model_origin import label_limit, pretrained_encoder
from mtkd.jobs.open_model import (
    EvaluatedModel,
    is_checkpoint,
    load_module,
    open_model,
    open_other_model,
    tasks_of,
)
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.teachers.label_order import order_warnings
from mtkd.teachers.teacher_names import LabelsSpec, teacher_name
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.torch_state import with_torch_defaults
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.data.loading import load_rows
from tasks.data.rows import Rows
from tasks.data.sources import DataSource, open_data
from tasks.model_tasks import require_heads
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve
from tasks.tokens.encoding import Encoded

_MAX_CLIPPED_SHARE = 0.5  # of the outputs for a regression task, without a warning
_Predictions = Mapping[str, Splits]  # task -> split -> predictions of one model


@with_torch_defaults
def evaluate(
    model: EvaluatedModel,
    data: Any,
    spec: TaskSpec | None = None,
    *,
    split: str | None = None,
    teacher_labels: LabelsSpec = None,
    limit: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    against: EvaluatedModel | None = None,
    baselines: bool = False,
    encoder: str | None = None,
    baseline_rows: int | None = None,
    predictions: Path | None = None,
    paths: Mapping[str, Path | None] | None = None,
) -> Evaluation:
    """Score a model on the validation splits of some tasks.

    Splits that are missing or unlabelled are skipped, as long as another one can be scored.

    Args:
        model: the directory of a model; the model itself, which stays on its device; or, for one task, a
            fine-tuned transformers checkpoint: its directory or hub name, or the model and its tokeniser.
        data: "pocket", "hub", a directory, or tables in memory; None = the files that the tasks name.
        spec: the tasks; by default all that the model was trained on, as the model records them.
        split: a split to score instead of the validation splits; "test" also means test_de, test_matched, ...
        teacher_labels: task -> its labels in the order of the outputs of a transformers checkpoint given as
            `model`, or else as `against` (see `mtkd.teachers.teacher_names.parse_labels`).
        limit: maximum number of rows per split.
        batch_size: rows per batch.
        device: such as "cuda:1"; None = the best available device.
        against: another model to compare this one with on the same rows; given as `model` is.
        baselines: True to compare the model with the baselines of `mtkd.evaluation.baselines` as well.
        encoder: the pretrained encoder of these baselines; None = the one that the teacher started from.
        baseline_rows: maximum number of labelled rows per task that the baselines learn from; None = the
            `limit` of the model's run, if it had one. In any case, at most 10,000.
        predictions: a directory to which each row's prediction is written (`write_predictions`).
        paths: "model" and "against" -> the directory that the model was read from, if it is passed loaded.

    Raises:
        UserError: a model or device does not exist, a model has no head for a task, a row is invalid, no task
            can be scored, or no encoder is known for the baselines.
    """
    if encoder is not None and not baselines:
        raise UserError("`encoder` has no effect without `baselines`", hint="also pass `baselines=True`")
    torch_device = find_device(device)
    directories = {
        name: (paths or {}).get(name) or given for name, given in (("model", model), ("against", against))
    }
    labels_are_for_other = bool(teacher_labels) and against is not None and not is_checkpoint(model)
    labels, labels_of_other = (None, teacher_labels) if labels_are_for_other else (teacher_labels, None)
    model, checkpoint = open_model(model, spec, data, torch_device, labels)
    model_tasks = tasks_of(model)
    tasks = resolve(spec, model_tasks, data) if spec else model_tasks
    other, other_checkpoint = None, None
    if against is not None:
        other, other_checkpoint = open_other_model(against, tasks, torch_device, labels_of_other)
    name = "the model" if isinstance(model, MultiTaskModel) else f"the model {model}"
    require_heads({task.head: task for task in model_tasks}, tasks, name)
    if other is not None:
        heads_of_other = {task.head: task for task in tasks_of(other)}
        require_heads(heads_of_other, tasks, "the other model (`against`)")
    limit_of_run = label_limit(model) if isinstance(model, Path) else None
    baseline_rows = min(baseline_rows or limit_of_run or TRAINING_ROWS, TRAINING_ROWS)
    in_memory = checkpoint is not None and checkpoint.module is not None
    frozen = _frozen_encoder(None if in_memory else model, encoder, device) if baselines else None
    source = open_data(data)
    rows, skipped = labelled_rows(source, tasks, split, limit)
    if not rows:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in skipped.items())
        raise UserError(
            f"no task can be scored:\n{reasons}",
            expected="labelled rows of at least one task",
            hint="choose another split or other data; use `mtkd.predict` for unlabelled rows",
        )
    if predictions is not None:
        check_predictions(predictions, [(task.name, part.split) for task, part in rows], directories)
    by_name = {task.name: task for task in tasks}
    scores, warnings = _score_all(load_module(model, torch_device), rows, batch_size, checkpoint)
    references: dict[str, _Predictions] = {}
    if other is not None:
        other_model = load_module(other, torch_device)
        other_scores, more_warnings = _score_all(other_model, rows, batch_size, other_checkpoint)
        warnings += more_warnings
        references[teacher_name(directories["against"])] = predictions_by_task(other_scores)
    scored = predictions_by_task(scores)
    if frozen is not None:
        references |= _baselines(source, rows, scored, frozen, baseline_rows, skipped)
    if predictions is not None:
        write_predictions(predictions, scores, alone=True)
    differences = {name: _differences(by_name, scored, reference) for name, reference in references.items()}
    warnings += baseline_warnings(by_name, scores)
    if ignored := source.outside_warning((task, part.split) for task, part in rows):
        warnings.append(ignored)
    reports, fitted_to = _class_reports(by_name, scores), baseline_rows if baselines else None
    scored_tasks = [task for task in tasks if task.name in scored]
    return Evaluation(scores, reports, skipped, warnings, differences, fitted_to, scored_tasks)


def _frozen_encoder(
    model: Path | MultiTaskModel | None, encoder: str | None, device: str | None
) -> FrozenEncoder:
    """The encoder of the baselines: `encoder`, or the one that the model says its teacher started from."""
    name = encoder
    if name is None and model is not None:
        name = model.info.base if isinstance(model, MultiTaskModel) else pretrained_encoder(model)
    if not name:
        raise UserError(
            "the baselines need a pretrained encoder, and the model does not say which one its teacher "
            "started from",
            hint="name one: `encoder='minilm'`",
        )
    return FrozenEncoder(name, device=device)


def _score_all(
    model: MultiTaskModel,
    rows: Sequence[tuple[Task, Rows]],
    batch_size: int,
    checkpoint: CheckpointRef | None,
) -> tuple[list[TaskScores], list[str]]:
    """The scores of a model, and warnings about clipped scores and the order of a checkpoint's labels."""
    scores = []
    warnings = [checkpoint.warning] if checkpoint and checkpoint.warning else []
    for task, split_rows in rows:
        encoded = Encoded.encode(model.reader.rows(split_rows), model.tokeniser)
        with progress(f"evaluating {task.name}/{split_rows.split}", len(encoded)) as advance:
            logits = predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)
        scores.append(
            score_logits(task, split_rows.split, encoded, logits, model.reader, model.threshold(task))
        )
        warnings += _clipped_warning(task, split_rows.split, logits)
        if checkpoint and checkpoint.order:
            who = f"the model {checkpoint.name}"
            warnings += order_warnings(who, task, checkpoint.order, logits, encoded.labels)
    return scores, warnings


def _clipped_warning(task: Task, split: str, logits: np.ndarray) -> list[str]:
    """A warning if many predicted scores are outside the range of a regression task.

    Args:
        logits: (n, 1) float32 for tasks with scores.
    """
    if task.type.outputs != "scores" or task.range is None or not len(logits):
        return []
    low, high = task.range
    margin = 0.1 * (high - low)
    share = float(np.mean((logits < low - margin) | (logits > high + margin)))
    if share <= _MAX_CLIPPED_SHARE:
        return []
    return [
        f"{share:.0%} of the model's outputs for {task.name}/{split} are far outside the task's range, "
        f"{low:g} to {high:g}, and are clipped: they are {logits.min():.3g} to {logits.max():.3g}. If it "
        "predicts on another scale, give the task that range, and convert the labels"
    ]


def _class_reports(tasks: Mapping[str, Task], scores: Sequence[TaskScores]) -> dict[str, ClassReport]:
    """For classification tasks, "task/split" -> the report on each class."""
    return {
        f"{score.task}/{score.split}": class_report(
            tasks[score.task], score.predictions.predictions, score.predictions.labels
        )
        for score in scores
        if score.predictions is not None and tasks[score.task].type.one_class
    }


def _baselines(
    source: DataSource,
    rows: Sequence[tuple[Task, Rows]],
    scored: _Predictions,
    frozen: FrozenEncoder,
    baseline_rows: int,
    skipped: dict[str, str],
) -> dict[str, _Predictions]:
    """The predictions of each baseline; for a task without training rows, only the best constant prediction.

    Args:
        rows: the scored rows of each task and split.
        scored: the model's predictions for them.
        baseline_rows: maximum number of labelled rows per task.
        skipped: task or baseline -> why it was left out; the baselines left out here are added to it.
    """
    by_baseline: dict[str, dict[str, Splits]] = {}
    tasks = {task.name: task for task, _ in rows}
    for name, splits in scored.items():
        task = tasks[name]
        constants = best_constant(task, splits)
        baselines = {CONSTANT: constants} if constants else {}
        if task.train in source.splits(task):
            train = load_rows(source, task, task.train, baseline_rows)
            baselines |= encoder_baselines(task, train, [part for t, part in rows if t.name == name], frozen)
        else:
            skipped[f"{name} ({LINEAR}, {COSINE})"] = f"no training rows in {source.described}"
        for baseline, predicted in baselines.items():
            by_baseline.setdefault(baseline, {})[name] = predicted
    return dict(by_baseline)


def _differences(
    tasks: Mapping[str, Task], model: _Predictions, other: _Predictions
) -> dict[str, Difference]:
    """How much higher the model scores than the other one, by task and on "average".

    Tasks that the other one did not predict are left out, and then also the average.
    """
    pairs = {
        name: sample_scores(tasks[name], [{0: model[name]}, {0: other[name]}])
        for name in model
        if name in other
    }
    samples = ({name: pair[index] for name, pair in pairs.items()} for index in (0, 1))
    differences = differences_by_task(*samples)
    if len(pairs) < len(model):
        differences.pop(AVERAGE, None)  # an average over some tasks only would mislead
    return differences
