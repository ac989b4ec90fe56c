"""Scores of a model on each class of a task (precision, recall, F1), and which classes it confuses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tasks.task import Task


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class.

    Attributes:
        precision: the fraction of the rows predicted as this class that belong to it; 0 if there are none.
        recall: the fraction of the rows of this class that are predicted as it; 0 if there are none.
        f1: the harmonic mean of precision and recall; 0 if both are 0.
        support: the number of rows of this class.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, eq=False)
class ClassReport:
    """The scores of all classes of a `classify` task.

    Attributes:
        classes: the scores of each class, in the order of the label ids.
        confusion: (C, C) int64, the number of rows of class i (first axis) that are predicted as class j.
    """

    classes: tuple[ClassScores, ...]
    confusion: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {"classes": [asdict(scores) for scores in self.classes], "confusion": self.confusion.tolist()}

    def confused_with(self, index: int) -> str:
        """The class that class `index` is most often mistaken for, with the number of rows, or "-"."""
        wrong = self.confusion[index].copy()
        wrong[index] = 0
        other = int(wrong.argmax())
        return f"{self.classes[other].label} ({wrong[other]:,})" if wrong[other] else "-"


def class_report(task: Task, predictions: np.ndarray, labels: np.ndarray) -> ClassReport:
    """Compare predictions with labels, class by class.

    Args:
        predictions: (n,) class ids.
        labels: (n,) class ids, without NaN.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    ids = np.arange(len(task.labels))
    actual, predicted = labels.astype(np.int64), predictions.astype(np.int64)
    columns = precision_recall_fscore_support(actual, predicted, labels=ids, zero_division=0.0)
    classes = tuple(
        ClassScores(name, float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(task.labels, *columns, strict=True)
    )
    return ClassReport(classes, confusion_matrix(actual, predicted, labels=ids))
