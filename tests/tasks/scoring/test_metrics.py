import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.task_types import check_metrics, task_type, task_type_names

EXACT = 1e-9


def task_of(kind: str, *metrics: str, n_classes: int = 2) -> Task:
    labels = () if kind == "regress" else tuple("abcdef"[:n_classes])
    return Task(name="toy", kind=kind, columns=("text",), labels=labels, metrics=metrics)


def value(metric: str, predictions, labels, groups=None, scores=None) -> float:
    task = task_of(next(kind for kind in task_type_names() if metric in task_type(kind).metrics), metric)
    found = score(
        task,
        np.array(predictions),
        np.array(labels, dtype=float),
        None if groups is None else np.array(groups),
        scores=None if scores is None else np.array(scores),
    )
    assert found.primary == found.by_metric[metric]
    return found.primary


def counts(predictions: list[int], labels: list[int]) -> np.ndarray:
    """Count the confusion matrix, with one row per label."""
    size = max(predictions + labels) + 1
    table = np.zeros((size, size))
    for predicted, label in zip(predictions, labels, strict=True):
        table[label, predicted] += 1
    return table


def naive_f1(table: np.ndarray, which: int) -> float:
    if which >= len(table) or table[which].sum() + table[:, which].sum() == 0:
        return 0.0
    return 2 * table[which, which] / (table[which].sum() + table[:, which].sum())


def naive_matthews(table: np.ndarray) -> float:
    """Gorodkin's R_K, which equals Matthews' coefficient for two classes."""
    n, true, predicted = table.sum(), table.sum(1), table.sum(0)
    below = (n**2 - predicted @ predicted) * (n**2 - true @ true)
    return (n * np.trace(table) - true @ predicted) / np.sqrt(below) if below else 0.0


def naive_pearson(left: np.ndarray, right: np.ndarray) -> float:
    left, right = left - left.mean(), right - right.mean()
    return float((left @ right) / np.sqrt((left @ left) * (right @ right)))


def naive_ranks(values: np.ndarray) -> np.ndarray:
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_classification_metrics_match_the_formulas(pairs):
    predictions, labels = [p for p, _ in pairs], [y for _, y in pairs]
    table = counts(predictions, labels)
    present = set(predictions) | set(labels)
    assert value("accuracy", predictions, labels) == pytest.approx(np.trace(table) / len(pairs), abs=EXACT)
    assert value("matthews", predictions, labels) == pytest.approx(naive_matthews(table), abs=EXACT)
    macro = np.mean([naive_f1(table, which) for which in present])
    assert value("macro_f1", predictions, labels) == pytest.approx(macro, abs=EXACT)
    assert value("f1", predictions, labels) == pytest.approx(naive_f1(table, 1), abs=EXACT)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=40))
def test_correlations_match_the_formulas(pairs):
    predictions, labels = np.array(pairs, dtype=float).T / 10
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        expected, expected_ranks = 0.0, 0.0
    else:
        expected = naive_pearson(predictions, labels)
        expected_ranks = naive_pearson(naive_ranks(predictions), naive_ranks(labels))
    assert value("pearson", predictions, labels) == pytest.approx(expected, abs=EXACT)
    assert value("spearman", predictions, labels) == pytest.approx(expected_ranks, abs=EXACT)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_ranking_metrics_match_a_loop_over_groups(rows):
    groups, scores, right = (np.array(column) for column in zip(*rows, strict=True))
    reciprocal, hits = [], []
    picked = np.ones(len(rows), dtype=int)
    for group in set(groups.tolist()):
        members = np.flatnonzero(groups == group)
        first = max(members, key=lambda row: (scores[row], -row))
        picked[first] = 0
        if right[members].any():
            hits.append(float(right[first]))
            order = sorted(members, key=lambda row: (-scores[row], right[row]))
            reciprocal.append(1 / (1 + [bool(right[row]) for row in order].index(True)))
    labels = np.where(right, 0, 1)
    found = value("mrr", picked, labels, groups, scores)
    assert found == pytest.approx(np.mean(reciprocal) if hits else 0.0, abs=EXACT)
    found = value("group_accuracy", picked, labels, groups)
    assert found == pytest.approx(np.mean(hits) if hits else 0.0, abs=EXACT)


def test_metrics_match_hand_computed_values():
    predictions, labels = [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1]
    assert value("f1", predictions, labels) == pytest.approx(2 / 3, abs=EXACT)
    assert value("matthews", predictions, labels) == pytest.approx(1 / 3, abs=EXACT)
    assert value("pearson", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == pytest.approx(0.5, abs=EXACT)
    assert value("spearman", [1.0, 2.0, 90.0], [0.1, 0.3, 0.2]) == pytest.approx(0.5, abs=EXACT)


@pytest.mark.parametrize("metric", ["pearson", "spearman", "matthews"])
@pytest.mark.parametrize(
    ("predictions", "labels"), [([1, 1, 1], [0, 1, 1]), ([0, 1, 0], [1, 1, 1]), ([1, 1], [1, 1]), ([1], [1])]
)
def test_constant_predictions_score_zero_without_a_warning(metric, predictions, labels):
    assert value(metric, predictions, labels) == 0.0


def test_near_constant_predictions_score_zero_without_a_warning():
    assert value("pearson", [0.1, 0.1, 0.1 + 1e-17, np.nextafter(0.1, 1)], [1, 2, 3, 5]) == 0.0


def test_f1_is_zero_where_the_class_never_occurs():
    assert value("f1", [0, 0], [0, 0]) == 0.0
    assert value("macro_f1", [0, 0], [1, 1]) == 0.0


def test_the_score_is_the_mean_of_the_metrics():
    found = score(TASKS["mrpc"], np.array([1, 1, 1, 0]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert found.by_metric == pytest.approx({"f1": 0.8, "accuracy": 0.75})
    assert found.primary == pytest.approx(0.775)


def test_unlabelled_and_empty_splits_are_rejected():
    labels = np.array([1.0, np.nan, np.nan])
    with pytest.raises(UserError, match=r"split 'test' of task 'rte' is not labelled \(2 of 3 rows\)"):
        score(TASKS["rte"], np.zeros(3), labels, split="test")
    with pytest.raises(UserError, match="has no rows"):
        score(TASKS["rte"], np.zeros(0), np.zeros(0))


def test_predictions_that_are_not_finite_are_rejected():
    with pytest.raises(UserError, match="'stsb' are not all finite"):
        score(TASKS["stsb"], np.array([1.0, np.nan]), np.array([1.0, 2.0]))


def best_constant(task: Task, labels: np.ndarray, groups: np.ndarray | None = None) -> dict[str, float]:
    uids = pa.array([str(row) for row in range(len(labels))])
    labelled_rows = RowPredictions(uids, labels, np.full(labels.shape, np.nan), groups)
    found = task.type.best_constant(task, labelled_rows)
    assert len(np.unique(found.predictions, axis=0)) == 1, "the same answer to all rows"
    return score(task, found.predictions, labels, groups, scores=found.scores).by_metric


def test_the_best_constant_prediction_of_each_task_type():
    labels = np.array([1.0, 1.0, 1.0, 0.0])
    assert best_constant(TASKS["rte"], labels) == {"accuracy": 0.75}
    assert best_constant(TASKS["mrpc"], labels) == pytest.approx({"f1": 6 / 7, "accuracy": 0.75})
    assert best_constant(TASKS["cola"], labels) == {"matthews": 0.0}
    assert best_constant(TASKS["stsb"], np.array([0.1, 0.2, 4.0])) == {"pearson": 0.0, "spearman": 0.0}
    groups = np.array([0, 0, 1, 1, 1])
    ranking = task_of("rank", "accuracy", "group_accuracy", "mrr")
    found = best_constant(ranking, np.array([0.0, 1.0, 1.0, 0.0, 1.0]), groups)
    chance = (1 / 2 + 1 / 3) / 2
    # All candidates right (here the class 0) has the higher mean, in spite of its accuracy.
    assert found == pytest.approx({"accuracy": 0.4, "group_accuracy": chance, "mrr": chance})


@pytest.mark.parametrize("positives", [1, 2, 3, 6, 9])
def test_the_best_constant_prediction_is_not_always_the_majority_class(positives: int):
    """With F1, the positive class can score higher than a more frequent one (here from 3 of 10 rows on)."""
    labels = np.array([1.0] * positives + [0.0] * (10 - positives))
    always = {"f1": 2 * positives / (10 + positives), "accuracy": positives / 10}
    never = {"f1": 0.0, "accuracy": 1 - positives / 10}
    expected = max(always, never, key=lambda scores: sum(scores.values()))
    assert best_constant(TASKS["mrpc"], labels) == pytest.approx(expected)
    assert (expected == always) == (positives >= 3)


def test_unknown_and_unsuitable_metrics_are_errors():
    for kind in task_type_names():
        for name in task_type(kind).metrics:
            check_metrics(task_of(kind, name))
    with pytest.raises(
        UserError, match=r"unknown metric in `metrics` of the task 'toy': 'acuracy'.*'accuracy'"
    ):
        check_metrics(task_of("classify", "acuracy"))
    with pytest.raises(UserError, match="'f1' does not suit"):
        check_metrics(task_of("classify", "f1", n_classes=3))
    with pytest.raises(UserError, match="'mrr' does not suit"):
        check_metrics(task_of("classify", "mrr"))
    assert dataclasses.replace(TASKS["rte"], metrics=()).metrics == ("accuracy",), "the type's own"
