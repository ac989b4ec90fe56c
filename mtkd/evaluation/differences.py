"""Paired differences between models, with bootstrap intervals over validation rows and seeds."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mtkd.evaluation.resampling import SAMPLES, resampled_scores
from tasks.common.errors import UserError
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

Verdict = Literal["better", "worse", "tied"]
Splits = Mapping[str, RowPredictions]  # split -> predictions of one model


@dataclass(frozen=True)
class Difference:
    """How much higher the score of a model is than that of a reference.

    Attributes:
        score, reference: the scores, averaged over seeds.
        difference: score - reference.
        low, high: the 95% interval of the difference.
    """

    score: float
    reference: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """ "better" if the whole interval is above 0, "worse" if it is below, else "tied"."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "tied"

    def columns(self) -> tuple[str, str, str, str, str]:
        """As text, in points: score, reference, difference, interval, verdict."""
        return (
            f"{100 * self.score:.1f}",
            f"{100 * self.reference:.1f}",
            f"{100 * self.difference:+.1f}",
            f"{100 * self.low:+.1f} to {100 * self.high:+.1f}",
            self.verdict,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return asdict(self) | {"verdict": self.verdict}


class ScoreSamples:
    """The score of one model on one task, and on bootstrap samples of its rows; one line per seed.

    The score of a task with several validation splits (MNLI) is their mean; their rows are drawn separately.

    Attributes:
        seeds: the seeds of the runs.
        scores: (S,) the score of the run of each seed on all rows.
        samples: (S, R) its score on each sample of rows.
    """

    def __init__(self, seeds: Sequence[int], scores: np.ndarray, samples: np.ndarray):
        self.seeds = tuple(seeds)
        self.scores = scores
        self.samples = samples

    def drawn(self, seed: int) -> np.ndarray:
        """(R,) the mean over seeds on each sample, in which S - 1 of the S seeds are drawn.

        Drawing S - 1 instead of S with replacement (Rao & Wu 1988) gives the variance of the mean without
        bias. Models with the same seeds draw the same ones, so differences are paired by seed too.
        """
        n_seeds, n_samples = self.samples.shape
        if n_seeds == 1:
            return self.samples[0]
        rng = np.random.default_rng([seed, zlib.crc32(repr(self.seeds).encode())])
        chosen = rng.integers(n_seeds, size=(n_seeds - 1, n_samples))
        return self.samples[chosen, np.arange(n_samples)].mean(0)


def sample_scores(
    task: Task,
    models: Sequence[Mapping[int, Splits]],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> list[ScoreSamples]:
    """Score models on a task, and on the same bootstrap samples of its validation rows.

    Args:
        models: for each model, seed -> split -> predictions.

    Raises:
        UserError: the models were not scored on the same rows.
    """
    runs = [splits for model in models for splits in model.values()]
    split_names = list(runs[0])
    values, sampled = np.zeros(len(runs)), np.zeros((len(runs), samples))
    for split in split_names:
        if any(set(run) != set(split_names) for run in runs):
            raise UserError(f"not all models were scored on the same splits of {task.name}")
        rows = [run[split] for run in runs]
        for other in rows[1:]:
            if not (other.uids.equals(rows[0].uids) and np.array_equal(other.labels, rows[0].labels)):
                raise UserError(
                    f"the models were not scored on the same rows of {task.name}/{split}",
                    hint="score them on the same data, with the same limit",
                )
        values += [np.mean(list(metric_values(task, part).values())) for part in rows]
        sampled += resampled_scores(task, split, rows, samples=samples, seed=seed)
    values, sampled = values / len(split_names), sampled / len(split_names)
    results, start = [], 0
    for model in models:
        part = slice(start, start + len(model))
        results.append(ScoreSamples(list(model), values[part], sampled[part]))
        start += len(model)
    return results


def metric_values(task: Task, rows: RowPredictions) -> dict[str, float]:
    """The value of each of the task's metrics on all rows; their mean is the task's score."""
    if rows.by_row:
        return {name: float(rows.by_row[name].mean()) for name in task.metrics}
    return score(task, rows.predictions, rows.labels, rows.groups, scores=rows.scores).by_metric


def paired_difference(
    model: Sequence[ScoreSamples], reference: Sequence[ScoreSamples], *, seed: int = 0
) -> Difference:
    """The difference of two models on one task, or of their averages over several tasks, with its interval.

    The interval holds the 2.5% and the 97.5% percentile of the difference over bootstrap samples. Each sample
    draws the validation rows of every split with replacement, the same for both models, and the seeds (see
    `ScoreSamples.drawn`). With one seed per model, the interval covers only the choice of validation
    rows. The chosen epoch, and thresholds tuned on validation rows, are treated as fixed.

    Args:
        model, reference: the samples of each task, for the same tasks.
        seed: the random seed for drawing the seeds of the runs.
    """
    model_scores, reference_scores = (
        [float(part.scores.mean()) for part in tasks] for tasks in (model, reference)
    )
    differences = np.mean(
        [a.drawn(seed) - b.drawn(seed) for a, b in zip(model, reference, strict=True)], axis=0
    )
    low, high = np.quantile(differences, [0.025, 0.975])
    means = float(np.mean(model_scores)), float(np.mean(reference_scores))
    return Difference(*means, means[0] - means[1], float(low), float(high))


AVERAGE = "average"


def differences_by_task(
    model: Mapping[str, ScoreSamples], reference: Mapping[str, ScoreSamples], *, seed: int = 0
) -> dict[str, Difference]:
    """The difference on each task that both models were scored on.

    If there are several tasks and both models have all of them, "average" holds the difference
    of their averages.
    """
    shared = [name for name in model if name in reference]
    differences = {name: paired_difference([model[name]], [reference[name]], seed=seed) for name in shared}
    if len(shared) > 1 and set(model) == set(reference):
        samples = [model[name] for name in shared], [reference[name] for name in shared]
        differences[AVERAGE] = paired_difference(*samples, seed=seed)
    return differences
