"""The scores of models with intervals, their differences from others, calibration and confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mtkd.evaluation.baselines import CONSTANT, best_constant
from mtkd.evaluation.class_report import ClassReport, class_report
from mtkd.evaluation.differences import (
    AVERAGE,
    Difference,
    ScoreSamples,
    Splits,
    differences_by_task,
    sample_scores,
)
from mtkd.reporting.checkpoints import ScoredCheckpoint
from mtkd.reporting.models import Gathered, ReportedModel
from mtkd.reporting.runs import TEACHER
from tasks.task import Task

BINS = 10  # of equal width, for the calibration


@dataclass(frozen=True)
class Interval:
    """A score with its 95% interval, which is missing if there are no predictions."""

    score: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Line:
    """A line of the table of scores.

    Attributes:
        scores: task, or "average" if the model has all tasks, -> score with its interval.
        samples: task -> the scores of resampled rows.
        predicted: task -> seed -> split -> predictions.
    """

    name: str
    role: str
    scores: dict[str, Interval]
    samples: dict[str, ScoreSamples] = field(default_factory=dict)
    predicted: dict[str, dict[int, Splits]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of all models.

    Attributes:
        tasks: the scored tasks, by name.
        lines: one per scored model, and the best constant prediction last.
        differences: reference -> other line -> task, or "average" -> the difference.
    """

    tasks: dict[str, Task]
    lines: list[Line]
    differences: dict[str, dict[str, dict[str, Difference]]]

    @property
    def several_seeds(self) -> bool:
        """True if a model has runs with several seeds, so that its intervals cover their variation."""
        return any(len(samples.seeds) > 1 for line in self.lines for samples in line.samples.values())

    @property
    def columns(self) -> list[str]:
        """The tasks, after "average" if there are several."""
        return [*([AVERAGE] if len(self.tasks) > 1 else []), *self.tasks]

    @property
    def overall(self) -> dict[str, float]:
        """The score in the first column, of the lines that have one."""
        column = self.columns[0] if self.columns else ""
        return {line.name: line.scores[column].score for line in self.lines if column in line.scores}


def score_models(gathered: Gathered, checkpoint: ScoredCheckpoint | None = None) -> Scores:
    """Score all models, and compare them with the reference, the teacher and the best constant prediction.

    Args:
        checkpoint: a teacher that is not a run.
    """
    tasks = {name: task for model in gathered.models for name, task in model.tasks.items()}
    lines = [_line(model, tasks) for model in gathered.models if model.tasks]
    if checkpoint:
        lines.insert(0, _with_intervals(checkpoint.name, TEACHER, {}, checkpoint.predicted, tasks))
    lines += [_constant(gathered.models, lines, tasks)] if lines else []
    teacher = gathered.first(TEACHER) or checkpoint
    names = dict.fromkeys([gathered.reference.name, *([teacher.name] if teacher else []), CONSTANT])
    differences: dict[str, dict[str, dict[str, Difference]]] = {}
    for reference in (line for name in names for line in lines if line.name == name):
        gaps = {line.name: _differences(line, reference) for line in lines if line is not reference}
        if any(gaps.values()):
            differences[reference.name] = {name: values for name, values in gaps.items() if values}
    return Scores(tasks, lines, differences)


def _line(model: ReportedModel, tasks: dict[str, Task]) -> Line:
    predicted = {name: by_seed for name in model.tasks if (by_seed := model.predictions(name))}
    return _with_intervals(model.name, model.role, model.scores(), predicted, tasks)


def _constant(models: Sequence[ReportedModel], lines: Sequence[Line], tasks: dict[str, Task]) -> Line:
    """The best constant prediction on the rows of the first model that was scored on each task.

    Tasks whose type has no constant predictions are left out.
    """
    first_models = {name: next(model for model in models if name in model.tasks) for name in tasks}
    predicted: dict[str, dict[int, Splits]] = {}
    for name, task in tasks.items():
        by_seed = next((line.predicted[name] for line in lines if name in line.predicted), None)
        if by_seed and (constants := best_constant(task, next(iter(by_seed.values())))):
            predicted[name] = {0: constants}
    recorded = {name: model.scores("majority")[name] for name, model in first_models.items()}
    scores = {name: score for name, score in recorded.items() if not math.isnan(score)}
    return _with_intervals(CONSTANT, CONSTANT, scores, predicted, tasks)


def _with_intervals(
    name: str,
    role: str,
    scores: dict[str, float],
    predicted: dict[str, dict[int, Splits]],
    tasks: dict[str, Task],
) -> Line:
    samples = {task: sample_scores(tasks[task], [by_seed])[0] for task, by_seed in predicted.items()}
    drawn = {task: task_samples.drawn(0) for task, task_samples in samples.items()}
    scores = scores | {task: float(task_samples.scores.mean()) for task, task_samples in samples.items()}
    cells = {task: _interval(score, drawn.get(task)) for task, score in scores.items()}
    if len(tasks) > 1 and set(scores) == set(tasks):
        everywhere = np.mean(list(drawn.values()), axis=0) if set(drawn) == set(tasks) else None
        cells[AVERAGE] = _interval(float(np.mean(list(scores.values()))), everywhere)
    return Line(name, role, cells, samples, predicted)


def _interval(score: float, drawn: np.ndarray | None) -> Interval:
    return (
        Interval(score) if drawn is None else Interval(score, *map(float, np.quantile(drawn, [0.025, 0.975])))
    )


def _differences(line: Line, reference: Line) -> dict[str, Difference]:
    """The differences on the tasks that both were scored on with the same rows."""
    shared = [
        name for name in line.samples if name in reference.samples and _same_rows(line, reference, name)
    ]
    sample_pairs = [{name: side.samples[name] for name in shared} for side in (line, reference)]
    differences = differences_by_task(*sample_pairs)
    if AVERAGE not in line.scores or len(shared) < len(line.samples):
        differences.pop(AVERAGE, None)  # the average over some tasks would not be that of the table
    return differences


def _same_rows(line: Line, other: Line, task: str) -> bool:
    line_splits, other_splits = (next(iter(side.predicted[task].values())) for side in (line, other))
    return set(line_splits) == set(other_splits) and all(
        line_splits[split].uids.equals(other_splits[split].uids)
        and np.array_equal(line_splits[split].labels, other_splits[split].labels)
        for split in line_splits
    )


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often predictions are right, by the probability of the predicted class.

    Attributes:
        bins: (mean probability, fraction that is right, fraction of all rows) of each bin that has rows.
        error: the expected calibration error: the mean distance of the first two, weighted by the third.
    """

    bins: list[tuple[float, float, float]]

    @property
    def error(self) -> float:
        return sum(share * abs(right - confidence) for confidence, right, share in self.bins)


@dataclass(frozen=True, eq=False)
class Errors:
    """Where a model is wrong on a task, over the rows of all its validation splits and seeds.

    Attributes:
        report: scores by class and the confusion, for tasks with one class per row.
        reliability: None if the probabilities were not recorded.
        labels, predictions: (n,) of tasks with a score per row, else None.
    """

    report: ClassReport | None = None
    reliability: Reliability | None = None
    labels: np.ndarray | None = None
    predictions: np.ndarray | None = None


def errors_of(task: Task, predicted: dict[int, Splits]) -> Errors | None:
    """Compare predictions with labels; None for other types of tasks than `classify` and `regress`."""
    rows = [split for splits in predicted.values() for split in splits.values()]
    if not rows or not (task.type.one_class or task.type.outputs == "scores"):
        return None
    labels, predictions = (
        np.concatenate([getattr(r, name) for r in rows]) for name in ("labels", "predictions")
    )
    if not task.type.one_class:
        return Errors(labels=labels, predictions=predictions)
    probabilities = [r.probabilities for r in rows if r.probabilities is not None]
    all_recorded = len(probabilities) == len(rows)
    measured = (
        reliability(np.concatenate(probabilities).max(1), predictions == labels) if all_recorded else None
    )
    return Errors(class_report(task, predictions, labels), measured)


def reliability(confidences: np.ndarray, right: np.ndarray) -> Reliability:
    """Group predictions by their probability into `BINS` bins of equal width.

    Args:
        confidences: (n,) the probability of the predicted class.
        right: (n,) bool.
    """
    bins = np.minimum((confidences * BINS).astype(int), BINS - 1)
    masks = [bins == number for number in range(BINS) if (bins == number).any()]
    return Reliability(
        [(float(confidences[p].mean()), float(right[p].mean()), float(p.mean())) for p in masks]
    )
