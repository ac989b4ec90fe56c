"""How a model does on each class of a task: precision, recall, F1, and which classes it confuses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tasks.task import Task


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class.

    Attributes:
        precision: share of the rows predicted as this class that are of it; 0 if none is predicted.
        recall: share of the rows of this class that are predicted as it; 0 if there is none.
        f1: harmonic mean of the two; 0 if both are 0.
        support: rows of this class.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, eq=False)
class ClassReport:
    """Scores of every class of a `classify` task.

    Attributes:
        classes: in label-id order.
        confusion: (C, C) int64, the rows of class i (first axis) that are predicted as class j.
    """

    classes: tuple[ClassScores, ...]
    confusion: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"classes": [asdict(scores) for scores in self.classes], "confusion": self.confusion.tolist()}

    def confused_with(self, index: int) -> str:
        """What class `index` is most often mistaken for, with the number of rows; "-" if it never is."""
        wrong = self.confusion[index].copy()
        wrong[index] = 0
        most = int(wrong.argmax())
        return f"{self.classes[most].label} ({wrong[most]:,})" if wrong[most] else "-"


def class_report(task: Task, predictions: np.ndarray, labels: np.ndarray) -> ClassReport:
    """Compare predictions with labels, class by class.

    Args:
        predictions: (n,) class ids.
        labels: (n,) class ids, none of them NaN.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    ids = np.arange(len(task.labels))
    given, predicted = labels.astype(np.int64), predictions.astype(np.int64)
    columns = precision_recall_fscore_support(given, predicted, labels=ids, zero_division=0.0)
    classes = tuple(
        ClassScores(name, float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(task.labels, *columns, strict=True)
    )
    return ClassReport(classes, confusion_matrix(given, predicted, labels=ids))
