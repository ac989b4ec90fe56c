"""`regress`: one score per row."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError
from tasks.data.raw_table import RawTable
from tasks.scoring import metrics
from tasks.task import Task
from tasks.task_types.labels import NOT_A_NUMBER, OUT_OF_RANGE, ParsedLabels, read_values, task_labels
from tasks.task_types.results import LossSum
from tasks.task_types.task_type import Metrics, TaskType

if TYPE_CHECKING:
    from torch import Tensor

_BINS = 5


class Regression(TaskType):
    """One score per row; logits (B, 1), labels (B,) scores."""

    metrics: ClassVar[Metrics] = {"pearson": metrics.pearson, "spearman": metrics.spearman}
    default_metrics = ("pearson", "spearman")
    fields = ("range",)
    baseline = "always predicting the mean"
    outputs = "scores"

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        """Finite scores inside the task's range, rounded to float32 as on the hub."""
        allowed = f"a number from {task.range[0]:g} to {task.range[1]:g}" if task.range else "a finite number"
        values = _scores(task, task_labels(task, table))
        return read_values(task, split, table, values, lambda text: allowed, _kind_of_problem)

    def check_label_column(self, task: Task, column: pa.DataType) -> str | None:
        if pa.types.is_boolean(column):
            return "one number per row; true and false are two classes, for a task of type classify"
        return super().check_label_column(task, column)

    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        """The number of rows in each fifth of the range."""
        values = labels.values[~np.isnan(labels.values)]
        if len(values) == 0:
            return labels.counts(task, [])
        sizes, edges = np.histogram(values, bins=_BINS, range=task.range)
        names = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
        return labels.counts(task, list(zip(names, map(int, sizes), strict=True)))

    def has_classes(self, bins: int | None) -> bool:
        return bins is not None

    def row_classes(self, task: Task, labels: Tensor, bins: int | None) -> Tensor:
        """The bin of each score, with bins of equal width over the task's range.

        Raises:
            UserError: `bins` is None, or the task has no range.
        """
        if bins is None or task.range is None:
            lacking = "no number of bins is given" if bins is None else "the task declares no range"
            raise UserError(
                f"the scores of {task.name!r} cannot be sorted into classes: {lacking}",
                expected="a number of bins, and `range = [lowest, highest]` in the task's file",
            )
        low, high = task.range
        return ((labels - low) / (high - low) * bins).floor().clamp(max=bins - 1)

    def n_outputs(self, task: Task) -> int:
        return 1

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """Squared error (MKD Eq. 2)."""
        labels = labels.float()
        labelled = ~labels.isnan()
        squares = (logits.float().squeeze(1) - labels.nan_to_num()).square()
        return LossSum((squares * labelled).sum(), labelled.sum())

    def softmax_logits(self, logits: Tensor) -> Tensor | None:
        """None: a score has no distribution."""
        return None

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        """(n,) float64 scores inside the task's range."""
        scores = np.asarray(logits, np.float64)[:, 0]
        return scores if task.range is None else scores.clip(*task.range)

    def constant_predictions(self, task: Task, labels: np.ndarray) -> list[Any]:
        """The mean score."""
        return [float(labels.mean())]

    def record(self, task: Task, prediction: Any, probabilities: np.ndarray | None) -> dict[str, Any]:
        return {"prediction": round(float(prediction), 6)}


def _scores(task: Task, texts: pa.Array) -> np.ndarray:
    """(n,) float64 scores; NaN for texts that are not finite numbers inside the task's range."""
    unique = texts.dictionary_encode()
    numbers = np.array([_number(text) for text in unique.dictionary.to_pylist()] + [math.nan])
    values = numbers[pc.fill_null(unique.indices, -1).to_numpy()].astype(np.float32)
    if task.range is not None:
        low, high = np.float32(task.range[0]), np.float32(task.range[1])
        values = np.where((values >= low) & (values <= high), values, np.float32(np.nan))
    return values.astype(np.float64)


def _kind_of_problem(text: str) -> str:
    """The kind of problem of a label that is not a score of the task."""
    return NOT_A_NUMBER if math.isnan(_number(text)) else OUT_OF_RANGE


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if abs(value) <= float(np.finfo(np.float32).max) else math.nan
