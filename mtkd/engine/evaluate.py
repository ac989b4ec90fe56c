"""Scores of a model on labelled rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from tasks.batching import Encoded
from tasks.kinds import decode, hard_loss
from tasks.metrics import majority_score, score
from tasks.task import Task


@dataclass(frozen=True)
class TaskScores:
    """What a model scores on one split of one task.

    Attributes:
        metrics: by name, as fractions.
        primary: the mean of the task's metrics.
        majority: what always giving the commonest answer would score.
        loss: the task's own loss, mean over rows.
    """

    task: str
    split: str
    rows: int
    metrics: Mapping[str, float]
    primary: float
    majority: float
    loss: float

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def score_logits(task: Task, split: str, encoded: Encoded, logits: np.ndarray) -> TaskScores:
    """The scores of logits (n, C) against the rows' labels.

    Raises:
        UserError: the split is not labelled.
    """
    answers = decode(task, logits, encoded.groups)
    scores = score(task, answers, encoded.labels, encoded.groups, scores=logits, split=split)
    groups = None if encoded.groups is None else torch.from_numpy(encoded.groups)
    loss = hard_loss(task, torch.from_numpy(logits), torch.from_numpy(encoded.labels), groups)
    return TaskScores(
        task.name,
        split,
        len(encoded.labels),
        scores.by_metric,
        scores.primary,
        majority_score(task, encoded.labels, encoded.groups, split=split).primary,
        float(loss.total / loss.count.clamp(min=1)),
    )


def watched(metric: str, scores: list[TaskScores]) -> tuple[float, Callable[[float, float], bool]]:
    """The value of the metric that a run watches, and how to tell a better one.

    Args:
        metric: "score", "loss" or "task/metric". Splits of one task (MNLI has two) are averaged first.
    """
    by_task: dict[str, list[TaskScores]] = {}
    for found in scores:
        by_task.setdefault(found.task, []).append(found)
    if metric == "loss":
        return _mean(_mean(s.loss for s in splits) for splits in by_task.values()), lambda new, old: new < old
    if metric == "score":
        return _mean(
            _mean(s.primary for s in splits) for splits in by_task.values()
        ), lambda new, old: new > old
    task, _, name = metric.partition("/")
    return _mean(s.metrics[name] for s in by_task[task]), lambda new, old: new > old


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
