"""Checking on labelled rows that a model's outputs, or soft labels, are in the order of the task's labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.data.rows import has_label
from tasks.task import Task

_MIN_GAIN = 0.2  # of Cohen's kappa, for another order to be reported
_CLEAR_DEVIATIONS = 3.0  # standard deviations of the number of agreeing rows, for a clear result


@dataclass(frozen=True)
class BetterOrder:
    """Another order of the outputs, which agrees better with the labels.

    Attributes:
        labels: for each output, the label that it seems to stand for.
        agreeing: the number of labels that agree with the outputs in this order.
        agreeing_as_assumed: the number that agree with them in the assumed order.
        total: the number of all labels.
        is_clear: True if `agreeing` is higher by at least three standard deviations, so it is not chance.
    """

    labels: tuple[str, ...]
    agreeing: int
    agreeing_as_assumed: int
    total: int
    is_clear: bool


def better_order(task: Task, logits: np.ndarray, labels: np.ndarray) -> BetterOrder | None:
    """The order of the outputs that agrees best with labelled rows, if it is not that of the task's labels.

    Agreement is counted beyond chance (as in Cohen's kappa), so outputs that always predict the same label
    do not suggest another order. Another order is returned only if its kappa is higher by 0.2.

    Args:
        logits: (n, C), in the order of the task's labels.
        labels: (n,) class ids or (n, C) zeros and ones, NaN = without label.

    Returns:
        None if no other order agrees that much better, or if the task has no labels.
    """
    from scipy.optimize import linear_sum_assignment

    size = len(task.labels)
    labelled = has_label(labels)
    if size < 2 or logits.shape[1:] != (size,) or not labelled.any():
        return None
    predicted, actual = task.type.decode(task, logits[labelled]), labels[labelled]
    if labels.ndim == 1:
        predicted, actual = (np.eye(size)[part.astype(np.int64)] for part in (predicted, actual))
    counts = predicted.T @ actual  # rows with output j predicted and label k
    chance = np.outer(predicted.sum(0), actual.sum(0)) / len(actual)
    outputs, best = linear_sum_assignment(chance - counts)
    max_gain = actual.sum() - (actual.sum(0) ** 2).sum() / len(actual)
    n_assumed, n_better = np.trace(counts), counts[outputs, best].sum()
    gain = ((counts - chance)[outputs, best].sum() - np.trace(counts - chance)) / max(max_gain, 1e-9)
    if gain < _MIN_GAIN or n_better <= n_assumed:
        return None
    moved = outputs != best
    differing = (np.diag(counts)[moved] + counts[outputs, best][moved]).sum()
    return BetterOrder(
        tuple(task.labels[label] for label in best),
        agreeing=round(n_better),
        agreeing_as_assumed=round(n_assumed),
        total=round(actual.sum()),
        is_clear=bool(n_better - n_assumed >= _CLEAR_DEVIATIONS * np.sqrt(differing)),
    )
