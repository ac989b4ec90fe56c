"""Scores of a model on labelled rows."""

from __future__ import annotations

from collections.abc import Mapping
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
