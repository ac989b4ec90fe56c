"""Resampled scores compared with loops, paired intervals with scipy; coverage on synthetic rows; verdicts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from mtkd.evaluation.differences import Difference, ScoreSamples, paired_difference, sample_scores
from mtkd.evaluation.resampling import _counts, resampled_scores
from tasks.common.errors import UserError
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

N, SAMPLES = 60, 40
RNG = np.random.default_rng(5)
PAIR = ("a", "b")
GROUPS = np.sort(RNG.integers(0, 15, N))


def task(kind: str, *metrics: str, labels: Sequence[str] = ()) -> Task:
    own = {"group": "g", "positive": 1} if kind == "rank" else {}
    return Task(name="t", kind=kind, columns=PAIR, labels=labels, metrics=metrics, **own)  # type: ignore[arg-type]


def rows(labels: np.ndarray, predictions: np.ndarray, **more: object) -> RowPredictions:
    uids = pa.array([f"t/validation/{n}" for n in range(len(labels))])
    return RowPredictions(uids, labels.astype(float), predictions.astype(float), **more)  # type: ignore[arg-type]


CASES = [
    (task("classify", "accuracy", "f1", labels="ab"), RNG.integers(0, 2, (2, N)), {}),
    (task("classify", "accuracy", "macro_f1", "matthews", labels="abc"), RNG.integers(0, 3, (2, N)), {}),
    (task("regress", "pearson", "spearman"), RNG.integers(0, 6, (2, N)), {}),
    (task("multilabel", "micro_f1", "macro_f1", labels="abcd"), RNG.integers(0, 2, (2, N, 4)), {}),
    (
        task("rank", "mrr", "group_accuracy", "matthews", labels="ab"),
        RNG.integers(0, 2, (2, N)),
        {"groups": GROUPS, "scores": RNG.normal(size=N).round(1)},
    ),
]


@pytest.mark.parametrize(("task", "values", "more"), CASES, ids=[case[0].kind for case in CASES])
def test_resampled_scores_match_a_loop_over_repeated_rows(task: Task, values: np.ndarray, more: dict) -> None:
    made = rows(values[0], values[1], **more)
    found = resampled_scores(task, "validation", [made], samples=SAMPLES, seed=3)[0]
    units = np.unique(GROUPS, return_inverse=True)[1] if more else np.arange(N)
    drawn = np.concatenate(list(_counts(units.max() + 1, SAMPLES, [3, zlib.crc32(b"t/validation")])))
    assert (drawn.sum(1) == units.max() + 1).all()
    for sample, counts in enumerate(drawn.astype(int)):
        chosen = [unit for unit, count in enumerate(counts) for _ in range(count)]
        parts = [np.flatnonzero(units == unit) for unit in chosen]
        taken = np.concatenate(parts)
        groups = np.repeat(np.arange(len(parts)), [len(part) for part in parts]) if more else None
        scores = made.scores[taken] if made.scores is not None else None
        naive = score(task, made.predictions[taken], made.labels[taken], groups, scores=scores)
        assert found[sample] == pytest.approx(naive.primary, abs=1e-12)


def test_constant_predictions_or_labels_give_no_correlation() -> None:
    for kind, names, labels in (("regress", ("pearson", "spearman"), ()), ("classify", ("matthews",), PAIR)):
        made = rows(RNG.integers(0, 2, N), np.ones(N))
        assert not resampled_scores(task(kind, *names, labels=labels), "v", [made], samples=5).any()


def test_span_scores_are_means_over_rows(tmp_path: Path) -> None:
    exact, f1 = RNG.integers(0, 2, N).astype(float), RNG.random(N)
    made = RowPredictions(
        pa.array(map(str, range(N))),
        np.ones(N),
        np.full(N, "x", object),
        by_row={"exact_match": exact, "f1": f1},
    )
    span = task("span", "exact_match", "f1")
    found = resampled_scores(span, "validation", [made], samples=3000)[0]
    assert found.mean() == pytest.approx((exact.mean() + f1.mean()) / 2, abs=0.01)
    assert found.std() == pytest.approx(((exact + f1) / 2).std() / np.sqrt(N), rel=0.1)
    made.write(tmp_path / "a.parquet", "t", "validation")
    read = RowPredictions.read(tmp_path / "a.parquet")
    np.testing.assert_array_equal(found, resampled_scores(span, "validation", [read], samples=3000)[0])


@pytest.mark.parametrize(("task", "values", "more"), CASES, ids=[case[0].kind for case in CASES])
def test_predictions_are_unchanged_after_saving_and_loading(
    task: Task, values: np.ndarray, more: dict, tmp_path: Path
) -> None:
    chances = np.random.default_rng(6).random((N, 3)).astype(np.float32).astype(float)
    made = rows(values[0], values[1], probabilities=None if more else chances, **more)
    made.write(tmp_path / "a.parquet", "t", "validation")
    read = RowPredictions.read(tmp_path / "a.parquet")
    assert read.uids.equals(made.uids)
    for name in ("labels", "predictions", "groups", "scores", "probabilities"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot be read"):
        RowPredictions.read(tmp_path / "a.parquet")


def difference(task: Task, one: RowPredictions, other: RowPredictions, samples: int = 2000) -> Difference:
    ours, others = sample_scores(task, [{0: {"v": one}}, {0: {"v": other}}], samples=samples)
    return paired_difference([ours], [others])


def test_the_interval_matches_the_paired_bootstrap_of_scipy() -> None:
    labels = RNG.integers(0, 2, 300)
    one, other = (np.where(RNG.random(300) < right, labels, 1 - labels) for right in (0.8, 0.7))
    accuracy = task("classify", "accuracy", labels=PAIR)
    found = difference(accuracy, rows(labels, one), rows(labels, other), 20_000)

    def accuracy_difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return a.mean(axis) - b.mean(axis)

    right = (one == labels).astype(float), (other == labels).astype(float)
    reference = stats.bootstrap(
        right, accuracy_difference, paired=True, method="percentile", n_resamples=20_000, random_state=0
    ).confidence_interval
    assert found.difference == pytest.approx(right[0].mean() - right[1].mean())
    assert (found.low, found.high) == pytest.approx(tuple(reference), abs=0.006)


def test_the_interval_has_95_percent_coverage() -> None:
    """Two models with accuracies 0.8 and 0.7 and correlated errors."""
    rng, hits = np.random.default_rng(1), 0
    accuracy = task("classify", "accuracy", labels=PAIR)
    for _ in range(400):
        luck = rng.random(150)
        second = np.where(rng.random(150) < 0.5, luck, rng.random(150))
        zeros = np.zeros(150)
        found = difference(accuracy, rows(zeros, luck > 0.8), rows(zeros, second > 0.7), 400)
        hits += found.low <= 0.1 <= found.high
    assert 0.91 <= hits / 400 <= 0.98


def test_the_interval_accounts_for_the_variation_between_seeds() -> None:
    """If accuracy varies between seeds, an interval over rows alone is far too narrow."""
    rng, hits, narrow = np.random.default_rng(2), 0, 0
    accuracy = task("classify", "accuracy", labels=PAIR)
    zeros = np.zeros(400)
    for _ in range(150):

        def runs(right: float) -> dict[int, dict[str, RowPredictions]]:
            drawn = right + 0.1 * rng.normal(size=5)
            return {n: {"v": rows(zeros, rng.random(400) > part)} for n, part in enumerate(drawn)}

        made = sample_scores(accuracy, [runs(0.6), runs(0.5)], samples=400)
        found = paired_difference(made[:1], made[1:])
        hits += found.low <= 0.1 <= found.high
        means = [ScoreSamples([0], np.ones(1), part.samples.mean(0, keepdims=True)) for part in made]
        rows_only = paired_difference(means[:1], means[1:])
        narrow += rows_only.low <= 0.1 <= rows_only.high
    assert hits / 150 >= 0.85, "five seeds are few, so a little below 95%"
    assert narrow / 150 < 0.7


def test_verdicts_for_tasks_and_for_the_mean_over_tasks() -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 400)
    weak = np.where(rng.random(400) < 0.6, labels, 1 - labels)
    accuracy = task("classify", "accuracy", labels=PAIR)
    tie = difference(accuracy, rows(labels, weak), rows(labels, weak))
    assert (tie.low, tie.high, tie.verdict) == (0, 0, "tied")
    assert difference(accuracy, rows(labels, labels), rows(labels, weak)).verdict == "better"
    assert difference(accuracy, rows(labels, weak), rows(labels, labels)).verdict == "worse"
    noisy = weak.copy()
    noisy[:6] = 1 - noisy[:6]
    assert difference(accuracy, rows(labels, noisy), rows(labels, weak)).verdict == "tied"

    sides = sample_scores(accuracy, [{0: {"v": rows(labels, labels)}}, {0: {"v": rows(labels, weak)}}])
    found = paired_difference([sides[0], sides[1]], [sides[1], sides[1]])
    assert found.difference == pytest.approx((1 - (weak == labels).mean()) / 2)
    assert found.high - found.low < 0.06 and found.verdict == "better"


def test_models_scored_on_different_rows_are_rejected() -> None:
    accuracy = task("classify", "accuracy", labels=PAIR)
    one, other = rows(np.ones(4), np.ones(4)), rows(np.ones(5), np.ones(5))
    for unlike in (other, rows(np.zeros(4), np.ones(4))):
        with pytest.raises(UserError, match="same rows of t/v"):
            difference(accuracy, one, unlike)
    with pytest.raises(UserError, match="same splits"):
        sample_scores(accuracy, [{0: {"v": one}}, {0: {"w": one}}])
