"""Baselines that train no encoder, which every model should beat: their predictions for validation rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mtkd.evaluation.differences import paired_difference, sample_scores
from mtkd.evaluation.frozen_encoder import FrozenEncoder
from mtkd.evaluation.scoring import TaskScores
from tasks.common.errors import counted
from tasks.common.text_format import score_text
from tasks.data.rows import Rows
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.task_types.classification import Classification
from tasks.task_types.regression import Regression

CONSTANT = "best constant prediction"
LINEAR = "frozen encoder + linear"
COSINE = "zero-shot cosine + fitted threshold"
TRAINING_ROWS = 10_000  # at most, for the linear baseline and the cosine's threshold
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # inverse regularisation


def best_constant(task: Task, splits: Mapping[str, RowPredictions]) -> dict[str, RowPredictions]:
    """The constant prediction with the best score on each split; empty if the task type has none."""
    constants = ((split, task.type.best_constant(task, rows)) for split, rows in splits.items())
    return {split: rows for split, rows in constants if rows is not None}


def encoder_baselines(
    task: Task, train: Rows, validation: Sequence[Rows], encoder: FrozenEncoder
) -> dict[str, dict[str, RowPredictions]]:
    """The baselines on the vectors of a frozen encoder: name -> split -> predictions.

    "frozen encoder + linear" (`classify`, `rank`, `regress`) is a logistic or ridge regression on the
    standardised vectors; for two texts u and v, on u, v, |u - v| and u * v. The regularisation is chosen on a
    held-out fifth of the training rows, for scores by leave-one-out cross-validation.

    "zero-shot cosine + fitted threshold" (pairs of texts with a score, two labels or candidates) uses the
    cosine of u and v as the score. For two labels, the threshold and its direction are those with the best
    accuracy on the training rows; for scores and candidates, nothing is fitted.

    Args:
        train: labelled rows, at most `TRAINING_ROWS` of which are needed.
    """
    if not isinstance(task.type, Classification | Regression):
        return {}
    train_vectors = encoder.vectors(train)
    vectors = {rows.split: encoder.vectors(rows) for rows in validation}
    by_split = {rows.split: rows for rows in validation}
    logits = {LINEAR: _linear(task, train_vectors, train.labels, vectors)}
    if len(train_vectors) == 2 and (isinstance(task.type, Regression) or len(task.labels) == 2):
        logits[COSINE] = _cosine(task, train_vectors, train.labels, vectors)
    return {
        name: {split: _predictions(task, by_split[split], values) for split, values in split_logits.items()}
        for name, split_logits in logits.items()
    }


def _predictions(task: Task, rows: Rows, logits: np.ndarray) -> RowPredictions:
    predictions = task.type.decode(task, logits, rows.groups).astype(np.float64)
    ranked = None if rows.groups is None else logits[:, 0]
    return RowPredictions(rows.uids, rows.labels, predictions, rows.groups, ranked)


def _linear(
    task: Task,
    train_vectors: Sequence[np.ndarray],
    labels: np.ndarray,
    split_vectors: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Split -> logits (n, C), or scores (n, 1), of a linear model on the vectors."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(_features(train_vectors))
    train_features = scaler.transform(_features(train_vectors))
    features = {split: scaler.transform(_features(vectors)) for split, vectors in split_vectors.items()}
    if isinstance(task.type, Regression):
        ridge = RidgeCV(np.logspace(0, 5, 6)).fit(train_features, labels)
        return {split: ridge.predict(values)[:, None] for split, values in features.items()}
    classes = labels.astype(np.int64)
    if len(np.unique(classes)) == 1:
        constant = np.eye(len(task.labels))[classes[:1]]
        return {
            split: np.repeat(_task_logits(task, constant), len(values), 0)
            for split, values in features.items()
        }
    model = _logistic(train_features, classes)
    split_logits = {}
    for split, values in features.items():
        logits = np.full((len(values), len(task.labels)), -np.inf)
        logits[:, model.classes_] = model.predict_log_proba(values)
        split_logits[split] = _task_logits(task, logits)
    return split_logits


def _logistic(features: np.ndarray, classes: np.ndarray):  # type: ignore[no-untyped-def]
    """A logistic regression; its regularisation has the best accuracy on a fifth of the rows."""
    from sklearn.linear_model import LogisticRegression

    order = np.random.default_rng(0).permutation(len(classes))
    held_out, training = order[: len(order) // 5], order[len(order) // 5 :]

    def fit(strength: float, rows: np.ndarray):  # type: ignore[no-untyped-def]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may stop before it has converged
            return LogisticRegression(C=strength, max_iter=200).fit(features[rows], classes[rows])

    best = _STRENGTHS[1]
    if len(held_out) and len(np.unique(classes[training])) > 1:
        best = max(_STRENGTHS, key=lambda c: fit(c, training).score(features[held_out], classes[held_out]))
    return fit(best, order)


def _task_logits(task: Task, logits: np.ndarray) -> np.ndarray:
    """Convert logits of classes to those of the task type: for `rank`, only the positive label's remain."""
    if task.group is None:
        return logits
    return logits[:, [task.positive]]


def _features(vectors: Sequence[np.ndarray]) -> np.ndarray:
    if len(vectors) == 1:
        return vectors[0]
    u, v = vectors
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def _cosine(
    task: Task,
    train_vectors: Sequence[np.ndarray],
    labels: np.ndarray,
    split_vectors: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Split -> logits (n, 2), or scores (n, 1), from the cosines of pairs."""
    cosines = {split: _cosines(*vectors) for split, vectors in split_vectors.items()}
    if isinstance(task.type, Regression) or task.group is not None:
        return {split: values[:, None] for split, values in cosines.items()}
    threshold, sign = best_cut(_cosines(*train_vectors), labels == 1)
    return {
        split: np.stack([np.zeros(len(values)), sign * (values - threshold)], axis=1)
        for split, values in cosines.items()
    }


def _cosines(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    return np.einsum("nd,nd->n", u, v) / np.maximum(lengths, 1e-12)


def best_cut(values: np.ndarray, positive: np.ndarray) -> tuple[float, int]:
    """The threshold and the sign with which "sign * (value - threshold) > 0" is most often right.

    Args:
        values: (n,).
        positive: (n,) bool, what is to be predicted.

    Returns:
        A threshold halfway between two values, or outside of all; and 1 or -1.
    """
    order = np.argsort(values, kind="stable")
    ranked, right = values[order], positive[order].astype(np.int64)
    # With k values below the threshold: correct ones if those above it are predicted as positive.
    above = right.sum() - np.concatenate([[0], np.cumsum(right)])
    below = np.concatenate([[0], np.cumsum(1 - right)])
    correct = above + below
    edges = np.concatenate([[ranked[0] - 1.0], ranked, [ranked[-1] + 1.0]])
    possible = np.concatenate([[True], np.diff(ranked) > 0, [True]])  # equal values cannot be separated
    best = {1: int(np.where(possible, correct, -1).argmax())}
    best[-1] = int(np.where(possible, len(values) - correct, -1).argmax())
    sign = 1 if correct[best[1]] >= len(values) - correct[best[-1]] else -1
    return float((edges[best[sign]] + edges[best[sign] + 1]) / 2), sign


def baseline_warnings(tasks: Mapping[str, Task], scores: Iterable[TaskScores]) -> list[str]:
    """Warn about each score that is not clearly better than the best constant prediction.

    "Clearly" means that the 95% interval of a paired bootstrap excludes 0.

    Args:
        tasks: name -> task.
        scores: those without predictions are ignored, and those of task types without constant predictions.
    """
    messages = []
    for score in scores:
        if score.predictions is None:
            continue
        task, rows = tasks[score.task], {score.split: score.predictions}
        if not (constants := best_constant(task, rows)):
            continue
        model, constant = sample_scores(task, [{0: rows}, {0: constants}])
        gap = paired_difference([model], [constant])
        if gap.verdict != "better":
            messages.append(
                f"{score.task}/{score.split}: the score {score_text(gap.score)} is not clearly better than "
                f"{task.type.baseline} ({score_text(gap.reference)}): the 95% interval of the difference on "
                f"{counted(score.rows, 'row')} is {100 * gap.low:+.1f} to {100 * gap.high:+.1f} points."
            )
    return messages
