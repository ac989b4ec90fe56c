"""Metrics, as fractions from 0 to 1 (correlations from -1 to 1). Task types list the ones they support."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.common.errors import UserError
from tasks.data.rows import has_label
from tasks.task import Task


@dataclass(frozen=True)
class Predictions:
    """The input of a metric: predictions and labels of the n rows of one split.

    Attributes:
        predictions: (n,) or (n, K), as returned by `TaskType.decode`.
        labels: float64 of the same shape, without NaN.
        groups: (n,) ids of the candidate groups (`rank`), or None.
        scores: (n,) the model's score of each candidate (`rank`), or None.
        positive: the label id of the right candidate (`rank`).
    """

    predictions: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None
    scores: np.ndarray | None
    positive: int


@dataclass(frozen=True)
class MetricScores:
    """The scores of one task on one split.

    Attributes:
        task: the task's name.
        by_metric: metric -> value, in the order of `Task.metrics`.
    """

    task: str
    by_metric: dict[str, float]

    @property
    def primary(self) -> float:
        """The task's score: the mean of its metrics."""
        return sum(self.by_metric.values()) / len(self.by_metric)


def accuracy(rows: Predictions) -> float:
    """The share of correct predictions."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(rows.labels, rows.predictions))


def f1(rows: Predictions) -> float:
    """F1 of class 1; 0 if class 1 is neither predicted nor a label."""
    from sklearn.metrics import f1_score

    return float(f1_score(rows.labels == 1, rows.predictions == 1, zero_division=0.0))


def macro_f1(rows: Predictions) -> float:
    """The mean F1 over all classes that occur among predictions or labels."""
    from sklearn.metrics import f1_score

    return float(f1_score(rows.labels, rows.predictions, average="macro", zero_division=0.0))


def matthews(rows: Predictions) -> float:
    """Matthews correlation coefficient for any number of classes; 0 if either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if _is_constant(rows.labels) or _is_constant(rows.predictions):
        return 0.0
    return float(matthews_corrcoef(rows.labels, rows.predictions))


def pearson(rows: Predictions) -> float:
    """Pearson correlation; 0 if either side is constant (up to float64 rounding)."""
    return _correlation(rows.predictions, rows.labels)


def spearman(rows: Predictions) -> float:
    """Spearman rank correlation, where ties share their mean rank; 0 if either side is constant."""
    from scipy.stats import rankdata

    return _correlation(rankdata(rows.predictions), rankdata(rows.labels))


def group_accuracy(rows: Predictions) -> float:
    """The share of groups whose picked candidate is right, over the groups that have a right candidate.

    If several candidates of a group are picked, the share of right ones among them counts.
    """
    index, right = _groups(rows)
    picked = rows.predictions == rows.positive
    n_picked = np.bincount(index, picked)
    share = np.bincount(index, picked & right) / np.maximum(n_picked, 1)
    return _mean(share[np.bincount(index, right) > 0])


def mrr(rows: Predictions) -> float:
    """The mean reciprocal rank of the best right candidate, over the groups that have one.

    A wrong candidate with the same score counts as ranked higher.
    """
    index, right = _groups(rows)
    if rows.scores is None:
        raise ValueError("mrr needs the scores of the candidates")
    best = np.full(index.max(initial=-1) + 1, -np.inf)
    np.maximum.at(best, index[right], rows.scores[right])
    ahead = np.bincount(index, ~right & (rows.scores >= best[index]))
    return _mean(1.0 / (1.0 + ahead[np.bincount(index, right) > 0]))


def score(
    task: Task,
    predictions: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    scores: np.ndarray | None = None,
    split: str = "given",
) -> MetricScores:
    """Score the predictions for one split with each of the task's metrics.

    Args:
        predictions: (n,) or (n, K), as returned by `TaskType.decode`.
        labels: float64 of the same shape.
        groups: (n,) ids of the candidate groups (`rank`).
        scores: (n,) or (n, 1) logits of a `rank` task; needed by `mrr`.
        split: the split's name, for error messages.

    Raises:
        UserError: the split is empty or not labelled, or a prediction is NaN or infinite.
    """
    labels = _checked_labels(task, labels, split)
    if not np.isfinite(predictions).all():
        raise UserError(
            f"the predictions for task {task.name!r} are not all finite numbers",
            hint="the model has diverged: use an earlier checkpoint, or train with a lower learning rate",
        )
    flat = None if scores is None else np.asarray(scores, dtype=np.float64).reshape(-1)
    compared = Predictions(np.asarray(predictions, dtype=np.float64), labels, groups, flat, task.positive)
    return MetricScores(task.name, {name: task.type.metrics[name](compared) for name in task.metrics})


def _checked_labels(task: Task, labels: np.ndarray, split: str) -> np.ndarray:
    """The labels as float64; raises UserError if there are none or one is missing."""
    labels = np.asarray(labels, dtype=np.float64)
    missing = int((~has_label(labels)).sum())
    if missing or not len(labels):
        problem = f"is not labelled ({missing} of {len(labels)} rows)" if missing else "has no rows"
        raise UserError(
            f"split {split!r} of task {task.name!r} {problem}, so it cannot be scored",
            hint="score a labelled split; use `mtkd.predict` for unlabelled rows",
        )
    return labels


def _is_constant(values: np.ndarray) -> bool:
    """True if the values are equal up to float64 rounding."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.stats import pearsonr

    if _is_constant(first) or _is_constant(second):
        return 0.0
    return float(pearsonr(first, second).statistic)


def _groups(rows: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the group index of each row, counted from 0, and (n,) whether the row is a right candidate."""
    if rows.groups is None:
        raise ValueError("a rank task's rows need groups")
    return np.unique(rows.groups, return_inverse=True)[1], rows.labels == rows.positive


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
