"""`classify`: one class per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.data.raw_table import RawTable
from tasks.scoring import metrics
from tasks.task import Task
from tasks.task_types.labels import (
    ParsedLabels,
    bool_labels,
    class_ids,
    class_texts,
    named_ids,
    read_values,
)
from tasks.task_types.results import LossSum
from tasks.task_types.task_type import Metrics, TaskType

if TYPE_CHECKING:
    from torch import Tensor

_NO_CLASS = -100


class Classification(TaskType):
    """One class per row; logits (B, C), labels (B,) class ids."""

    metrics: ClassVar[Metrics] = {
        "accuracy": metrics.accuracy,
        "f1": metrics.f1,
        "macro_f1": metrics.macro_f1,
        "matthews": metrics.matthews,
    }
    default_metrics: tuple[str, ...] = ("accuracy",)
    fields: tuple[str, ...] = ("labels",)
    one_class: bool = True

    def metric_names(self, task: Task) -> list[str]:
        """All metrics; F1 of class 1 only for two classes."""
        return [name for name in self.metrics if name != "f1" or len(task.labels) <= 2]

    def check_label_column(self, task: Task, column: pa.DataType) -> str | None:
        by_id = all(name.isdigit() for name in task.labels) or bool_labels(task)
        if pa.types.is_boolean(column) and not by_id:
            return f"labels of the task: {named_ids(task)}; which of them true and false are is unknown"
        return super().check_label_column(task, column)

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        """Class ids, parsed from label names or ids, as numbers or text."""
        values = class_ids(task, class_texts(task, table))
        return read_values(task, split, table, values, lambda text: named_ids(task, text))

    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        values = labels.values[~np.isnan(labels.values)]
        sizes = np.bincount(values.astype(np.int64), minlength=len(task.labels))
        return labels.counts(task, [(name, int(size)) for name, size in zip(task.labels, sizes, strict=True)])

    def has_classes(self, bins: int | None) -> bool:
        return True

    def n_outputs(self, task: Task) -> int:
        return len(task.labels)

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """Cross-entropy (MKD, section 3.1)."""
        return self.weighted_loss(logits, labels, None)

    def weighted_loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> LossSum:
        """Cross-entropy, times the weight of each row's class.

        Args:
            weights: (C,) float32; None = 1.
        """
        from torch.nn import functional

        classes = labels.float().nan_to_num(nan=_NO_CLASS).long()
        total = functional.cross_entropy(
            logits.float(), classes, weights, ignore_index=_NO_CLASS, reduction="sum"
        )
        return LossSum(total, (classes != _NO_CLASS).sum())

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        """(n,) int64 class ids."""
        return np.asarray(logits, np.float64).argmax(axis=1)

    def probabilities(self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """(n, C) float64, the softmax."""
        logits = np.asarray(logits, np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def constant_predictions(self, task: Task, labels: np.ndarray) -> list[Any]:
        """The majority class (the first one of a tie), and for F1 the positive class."""
        majority = float(np.bincount(labels.astype(np.int64)).argmax())
        return [majority, 1.0] if "f1" in task.metrics else [majority]
