"""Scores of resampled validation rows: the bootstrap, without per-sample Python code for most metrics.

A sample of n rows, drawn with replacement, is described by how often it contains each row. Most metrics are
functions of sums over rows, so one matrix product with these counts gives their values on many samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tasks.scoring import metrics
from tasks.scoring.metrics import Predictions
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

SAMPLES = 2000
_CELLS = 1 << 21  # counts held at once
_FLAT = 1e-13  # a variance below this fraction of the whole split's is that of constant values

# Maps (predictions, counts (r, n) float64) to the metric's values on r samples.
Resampled = Callable[[RowPredictions, np.ndarray], np.ndarray]


def resampled_scores(
    task: Task,
    split: str,
    models: Sequence[RowPredictions],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """The task's score of each model on bootstrap samples of the rows; all models get the same samples.

    The samples are those of the whole split (all candidates of a group together, for `rank`). They depend
    only on the seed, the names of task and split, and the number of rows.

    Args:
        models: predictions for the same rows, in the same order.

    Returns:
        (len(models), samples) float64, the mean of the task's metrics.
    """
    item_of_row, n_items = _resampled_items(models[0])
    scores = np.empty((len(models), samples))
    start = 0
    for drawn in _counts(n_items, samples, [seed, zlib.crc32(f"{task.name}/{split}".encode())]):
        counts = drawn if item_of_row is None else drawn[:, item_of_row]
        for row, model in enumerate(models):
            values = [_metric(task, name, model)(model, counts) for name in task.metrics]
            scores[row, start : start + len(drawn)] = np.mean(values, axis=0)
        start += len(drawn)
    return scores


def _resampled_items(rows: RowPredictions) -> tuple[np.ndarray | None, int]:
    """What is drawn: the group of each row and the number of groups, or None and the number of rows."""
    if rows.groups is None:
        return None, len(rows)
    names, group_of_row = np.unique(rows.groups, return_inverse=True)
    return group_of_row, len(names)


def _counts(n_items: int, samples: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield (r, n_items) float64 arrays: how often each item is in a sample of `n_items` items."""
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n_items)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        drawn = rng.integers(n_items, size=(size, n_items)) + n_items * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * n_items).reshape(size, n_items).astype(np.float64)


def _metric(task: Task, name: str, rows: RowPredictions) -> Resampled:
    if name in rows.by_row:
        return lambda rows, counts: counts @ rows.by_row[name] / counts.sum(1)
    function = task.type.metrics[name]
    return _RESAMPLED.get(function) or (lambda rows, counts: _one_by_one(task, function, rows, counts))


def _one_by_one(
    task: Task, metric: Callable[..., float], rows: RowPredictions, counts: np.ndarray
) -> np.ndarray:
    """Compute any metric on the repeated rows of each sample; copies of a group are separate groups."""
    values = np.empty(len(counts))
    for sample, repeats in enumerate(counts.astype(np.int64)):
        row_numbers = np.repeat(np.arange(len(rows)), repeats)
        groups = rows.groups
        if groups is not None:
            copy = np.arange(len(row_numbers)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            groups = groups[row_numbers] * (repeats.max() + 1) + copy
        scores = None if rows.scores is None else rows.scores[row_numbers]
        predictions = Predictions(
            rows.predictions[row_numbers], rows.labels[row_numbers], groups, scores, task.positive
        )
        values[sample] = metric(predictions)
    return values


def _accuracy(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    return counts @ (rows.predictions == rows.labels) / counts.sum(1)


def _f1(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    predicted, actual = rows.predictions == 1, rows.labels == 1
    return _ratio(2 * counts @ (predicted & actual), counts @ predicted + counts @ actual)


def _by_class(rows: RowPredictions, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three (r, C) arrays: for each class, the number of correct, of predicted and of actual rows."""
    classes = np.union1d(rows.predictions, rows.labels)
    predicted = rows.predictions[:, None] == classes
    actual = rows.labels[:, None] == classes
    return counts @ (predicted & actual), counts @ predicted, counts @ actual


def _macro_f1(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    right, predicted, actual = _by_class(rows, counts)
    return _ratio(2 * right, predicted + actual).sum(1) / (predicted + actual > 0).sum(1)


def _matthews(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    right, predicted, actual = _by_class(rows, counts)
    total = counts.sum(1)
    numerator = right.sum(1) * total - (predicted * actual).sum(1)
    squared_denominator = (total**2 - (predicted**2).sum(1)) * (total**2 - (actual**2).sum(1))
    return _ratio(numerator, np.sqrt(squared_denominator))


def _pearson(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    predictions, labels = (values - values.mean() for values in (rows.predictions, rows.labels))
    columns = np.stack([predictions, labels, predictions**2, labels**2, predictions * labels], axis=1)
    x, y, xx, yy, xy = (counts @ columns / counts.sum(1, keepdims=True)).T
    flat = (predictions @ predictions / len(predictions) * _FLAT, labels @ labels / len(labels) * _FLAT)
    return _correlation(xy - x * y, xx - x * x, yy - y * y, flat)


def _spearman(rows: RowPredictions, counts: np.ndarray) -> np.ndarray:
    predictions, labels = (_ranks(values, counts) for values in (rows.predictions, rows.labels))
    total = counts.sum(1, keepdims=True)
    predictions, labels = (ranks - (total + 1) / 2 for ranks in (predictions, labels))
    xy, xx, yy = (
        (counts * product).sum(1)
        for product in (predictions * labels, predictions * predictions, labels * labels)
    )
    return _correlation(xy, xx, yy, (0.0, 0.0))


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(r, n) the rank of each row's value in each sample; equal values share their mean rank."""
    distinct, value_of_row = np.unique(values, return_inverse=True)
    order = np.argsort(value_of_row, kind="stable")
    starts = np.searchsorted(value_of_row[order], np.arange(len(distinct)))
    equal = np.add.reduceat(counts[:, order], starts, axis=1)
    return (np.cumsum(equal, axis=1) - (equal - 1) / 2)[:, value_of_row]


def _correlation(xy: np.ndarray, xx: np.ndarray, yy: np.ndarray, flat: tuple[float, float]) -> np.ndarray:
    """The correlation from (co)variances; 0 where a side is constant."""
    varies = (xx > flat[0]) & (yy > flat[1])
    return np.where(varies, _ratio(xy, np.sqrt(np.where(varies, xx * yy, 0.0))), 0.0)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator; 0 where the denominator is not above 0."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator > 0)


_RESAMPLED: dict[Callable[..., float], Resampled] = {
    metrics.accuracy: _accuracy,
    metrics.f1: _f1,
    metrics.macro_f1: _macro_f1,
    metrics.matthews: _matthews,
    metrics.pearson: _pearson,
    metrics.spearman: _spearman,
}
