"""A row of the table of a grid: the results of the runs of one cell, or of a baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mtkd.evaluation.differences import Difference

SeedValues = Mapping[str, list[float]]  # task or heading -> value of each seed


@dataclass
class TableRow:
    """The results of the runs of one cell, or of a baseline.

    Attributes:
        scores: task -> score of each seed.
        failed: "task, seed N" -> error message.
        parameters: the number of the model's weights; `parameters_without_embeddings`: outside the word
            embeddings.
        model: the digest of the weights of the model that is timed; None for baselines.
        seconds: training time of each run, in seconds.
        speed: batch size -> inference speed on the CPU relative to the first row that is timed.
        ms: batch size -> inference time on the CPU in milliseconds.
        gpu_speed, gpu_ms: the same on the GPU; empty if there is none.
        steps: training steps of each run.
        kept: which epoch's weights were scored, "best" or "last"; None for rows without training.
        metrics: heading such as "mnli-m acc" -> value of each seed.
        differences: task, or "average" -> difference from the reference.
        above_majority: the same, relative to the best constant prediction; empty without baselines.
    """

    name: str
    scores: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    parameters: int | None = None
    parameters_without_embeddings: int | None = None
    model: str | None = None
    seconds: list[float] = field(default_factory=list)
    speed: dict[int, float] = field(default_factory=dict)
    ms: dict[int, float] = field(default_factory=dict)
    gpu_speed: dict[int, float] = field(default_factory=dict)
    gpu_ms: dict[int, float] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    kept: str | None = None
    metrics: dict[str, list[float]] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)
    above_majority: dict[str, Difference] = field(default_factory=dict)

    def remove_times(self) -> None:
        """Remove all inference times."""
        self.speed, self.ms, self.gpu_speed, self.gpu_ms = {}, {}, {}, {}

    def mean(self, task: str) -> float:
        """The mean score of a task over seeds; NaN if it has none."""
        return mean_of(self.scores, task)

    def std(self, task: str) -> float | None:
        """The standard deviation of a task's score over seeds; None if there are fewer than two."""
        return std_of(self.scores, task)

    def average(self, tasks: list[str]) -> float:
        """The average over tasks; NaN if a task is missing."""
        return statistics.fmean([self.mean(task) for task in tasks]) if tasks else math.nan

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        plain = {
            name: {task: difference.to_json() for task, difference in getattr(self, name).items()}
            for name in ("differences", "above_majority")
        }
        return {**vars(self), **plain}


def mean_of(columns: SeedValues, name: str) -> float:
    """The mean of a column over seeds; NaN if it has no values."""
    return statistics.fmean(columns[name]) if columns.get(name) else math.nan


def std_of(columns: SeedValues, name: str) -> float | None:
    """The standard deviation of a column over seeds; None if it has fewer than two values."""
    values = columns.get(name, [])
    return statistics.stdev(values) if len(values) > 1 else None
