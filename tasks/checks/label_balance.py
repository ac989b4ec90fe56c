"""Counting the rows of a split by label."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tasks.task import Task
from tasks.task_types.labels import ParsedLabels, RowProblem


@dataclass(frozen=True)
class LabelCount:
    """Number of rows with one label, one interval of scores, or (`span`) with or without an answer."""

    label: str
    rows: int


class Balance:
    """Counts rows per label.

    For scores of a task without a range, the intervals depend on all rows, so rows are counted after the last
    one has been added.
    """

    def __init__(self, task: Task, split: str):
        self._task = task
        self._needs_all_rows = "range" in task.type.fields and task.range is None
        self._rows: dict[str, int] = {}
        self._without_label = "soft labels" if task.has_soft_labels(split) else "unlabelled"
        self._scores, self._problems = [np.zeros(0)], list[RowProblem]()
        self._lowest, self._highest = np.inf, -np.inf

    def add(self, labels: ParsedLabels) -> None:
        """Add the labels of some rows."""
        if "range" in self._task.type.fields:
            self._lowest = np.fmin.reduce(labels.values, axis=None, initial=self._lowest)
            self._highest = np.fmax.reduce(labels.values, axis=None, initial=self._highest)
        if self._needs_all_rows:
            start = sum(map(len, self._scores))
            self._scores.append(labels.values)
            self._problems += [replace(problem, row=start + problem.row) for problem in labels.problems]
        else:
            self._count(labels)

    def counts(self) -> tuple[LabelCount, ...]:
        """The counts of all rows."""
        if self._needs_all_rows and len(self._scores) > 1:
            self._count(ParsedLabels(np.concatenate(self._scores), self._problems))
        order = sorted(self._rows, key=self._without_label.__eq__)  # unlabelled rows come last
        return tuple(LabelCount(label, self._rows[label]) for label in order)

    @property
    def constant_score(self) -> float | None:
        """The score of all rows; None if they differ, or if the labels are not scores."""
        return float(self._lowest) if self._lowest == self._highest else None

    def _count(self, labels: ParsedLabels) -> None:
        for label, rows in self._task.type.balance(self._task, labels):
            if label == "unlabelled" and label not in self._task.labels:
                label = self._without_label
            self._rows[label] = self._rows.get(label, 0) + rows
