"""Score a model on labelled rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from mtkd.output_files.path_overlap import refuse_overlap
from mtkd.run_record import RUN_FILE
from tasks.common.digests import check_digests
from tasks.common.errors import UserError, counted
from tasks.common.files import check_output_file
from tasks.common.text_format import score_text
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader

COLUMNS = ("task", "split", "uid", "label", "prediction")  # the first columns of a file of predictions


@dataclass(frozen=True, repr=False)
class TaskScores:
    """The scores of a model on one split of one task.

    Attributes:
        metrics: metric name -> value, as fractions.
        primary: the mean of the task's metrics.
        majority: the score of the best constant prediction; for accuracy, the majority-class baseline. NaN if
            the task type has no constant predictions.
        loss: the task's own loss, averaged over rows (for `span` tasks, over windows).
        details: further numbers that are not part of `primary`.
        threshold: the decision threshold (`TaskType.best_threshold`), for tasks that have one.
        predictions: what was predicted for each row; None for scores that were read from a file.
    """

    task: str
    split: str
    rows: int
    metrics: Mapping[str, float]
    primary: float
    majority: float
    loss: float
    details: Mapping[str, float] = field(default_factory=dict)
    threshold: Any = None
    predictions: RowPredictions | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {score_text(value, name)}" for name, value in self.metrics.items())
        constant = (
            "" if math.isnan(self.majority) else f", best constant prediction {score_text(self.majority)}"
        )
        return f"<TaskScores {self.task}/{self.split}, {counted(self.rows, 'row')}: {metrics}{constant}>"

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values, without the predictions."""
        values = asdict(replace(self, predictions=None))
        return {name: value for name, value in values.items() if name != "predictions"}


def score_logits(
    task: Task,
    split: str,
    encoded: Encoded,
    logits: np.ndarray,
    reader: Reader,
    threshold: Any = None,
) -> TaskScores:
    """Score logits (n, C), or (n, 2, L) of windows, against the labels of the rows.

    Args:
        reader: the reader of the model that computed the logits.
        threshold: the decision threshold; None = the best one on these rows.

    Raises:
        UserError: the split has no labels.
    """
    layout = reader.tokeniser.layout(len(task.columns))
    evaluation = task.type.evaluate(task, split, encoded, logits, layout, threshold)
    return TaskScores(
        task.name,
        split,
        evaluation.rows,
        evaluation.by_metric,
        evaluation.primary,
        evaluation.majority,
        _mean_loss(task, encoded, logits),
        evaluation.details,
        evaluation.threshold,
        evaluation.predictions,
    )


def _mean_loss(task: Task, encoded: Encoded, logits: np.ndarray) -> float:
    groups = None if encoded.groups is None else torch.from_numpy(encoded.groups)
    loss = task.type.loss(task, torch.from_numpy(logits), torch.from_numpy(encoded.labels), groups)
    return float(loss.total / loss.count.clamp(min=1))


def selection_value(metric: str, scores: list[TaskScores]) -> float:
    """The value of the metric by which training compares epochs; see `is_better`.

    Args:
        metric: "score", "loss", "task/metric" or "task/split/metric". The splits of a task (one for each
            language of XNLI) are averaged first.
    """
    by_task: dict[str, list[TaskScores]] = {}
    for score in scores:
        by_task.setdefault(score.task, []).append(score)
    if metric == "loss":
        return _mean(_mean(s.loss for s in splits) for splits in by_task.values())
    if metric == "score":
        return _mean(_mean(s.primary for s in splits) for splits in by_task.values())
    task, *split, name = metric.split("/")
    chosen = [s for s in by_task[task] if not split or s.split in split]
    return _mean(s.metrics[name] for s in chosen)


def is_better(metric: str, new: float, old: float) -> bool:
    """True if a value of `selection_value` is better than an earlier one."""
    return new < old if metric == "loss" else new > old


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def by_task(scores: Sequence[TaskScores]) -> dict[str, TaskScores]:
    """Scores by task name; by "task/split" for tasks that were scored on several splits."""
    names = [score.task for score in scores]
    return {
        score.task if names.count(score.task) == 1 else f"{score.task}/{score.split}": score
        for score in scores
    }


def predictions_by_task(scores: Iterable[TaskScores]) -> dict[str, dict[str, RowPredictions]]:
    """Task -> split -> what was predicted for each row."""
    predictions: dict[str, dict[str, RowPredictions]] = {}
    for score in scores:
        if score.predictions is not None:
            predictions.setdefault(score.task, {})[score.split] = score.predictions
    return predictions


def averages(scores: Iterable[TaskScores]) -> list[TaskScores]:
    """The mean scores of each task that was scored on several splits, as those of a split "average"."""
    splits_of_task: dict[str, list[TaskScores]] = {}
    for score in scores:
        splits_of_task.setdefault(score.task, []).append(score)
    return [
        TaskScores(
            task,
            "average",
            sum(s.rows for s in splits),
            {name: _mean(s.metrics[name] for s in splits) for name in splits[0].metrics},
            _mean(s.primary for s in splits),
            _mean(s.majority for s in splits),
            _mean(s.loss for s in splits),
        )
        for task, splits in splits_of_task.items()
        if len(splits) > 1
    ]


def check_predictions(directory: Path, splits: Iterable[tuple[str, str]], inputs: Mapping[str, Any]) -> None:
    """Check that `write_predictions` would replace nothing but predictions of an earlier evaluation.

    Args:
        splits: (task, split) of each file.
        inputs: argument -> model, which must not hold the files.

    Raises:
        UserError: a file exists and holds something else, or belongs to a run.
    """
    if os.path.lexists(directory.parent / RUN_FILE):
        raise UserError(f"`predictions={str(directory)!r}` belongs to a run", hint="choose another directory")
    for task, split in splits:
        path = directory / task / f"{split}.parquet"
        refuse_overlap("predictions", path, inputs)
        check_output_file(path)
        try:
            is_ours = not path.exists() or pq.read_schema(path).names[: len(COLUMNS)] == list(COLUMNS)
        except (pa.ArrowException, OSError):
            is_ours = False
        if not is_ours:
            raise UserError(
                f"{path} would be overwritten, and does not hold predictions",
                hint="choose another directory with `predictions`",
            )


def write_predictions(directory: Path, scores: Iterable[TaskScores], *, alone: bool = False) -> None:
    """Write what was predicted for each row to `directory`/TASK/SPLIT.parquet (`RowPredictions.write`)."""
    for score in scores:
        if score.predictions is not None:
            path = directory / score.task / f"{score.split}.parquet"
            score.predictions.write(path, score.task, score.split, alone=alone)


def read_predictions(directory: Path, tasks: Iterable[Task] = ()) -> dict[str, dict[str, RowPredictions]]:
    """Read what `write_predictions` wrote: task -> split -> predictions; empty if there is nothing.

    Args:
        tasks: the tasks whose predictions are checked against their labels.

    Raises:
        UserError: a file is damaged, or its values cannot be predictions of its task.
    """
    by_name = {task.name: task for task in tasks}
    predictions: dict[str, dict[str, RowPredictions]] = {}
    paths = sorted(directory.glob("*/*.parquet"))
    check_digests(directory.parent, [path.relative_to(directory.parent).as_posix() for path in paths])
    for path in paths:
        rows = RowPredictions.read(path)
        if task := by_name.get(path.parent.name):
            rows.check(task, path)
        predictions.setdefault(path.parent.name, {})[path.stem] = rows
    return predictions
