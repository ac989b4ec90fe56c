"""What task types return: a loss before averaging, and the scores of a split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.scoring.row_predictions import RowPredictions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossSum:
    """A loss before averaging.

    Attributes:
        total: scalar float32, the sum over all items.
        count: scalar int64 on the same device, the number of items (rows, unless the task type says
            otherwise).
    """

    total: Tensor
    count: Tensor


@dataclass(frozen=True)
class SplitScores:
    """The scores of one labelled split.

    Attributes:
        rows: number of scored rows.
        by_metric: metric -> value, in the order of `Task.metrics`.
        majority: the score of `TaskType.best_constant`, NaN without one; for accuracy, the majority class's.
        details: further values that do not count towards the task's score.
        threshold: the threshold for `TaskType.decode` and `TaskType.records`; None if the type has none.
        predictions: what was predicted for each row, from which the scores of resampled rows follow; None if
            the type does not keep it.
    """

    rows: int
    by_metric: dict[str, float]
    majority: float
    details: dict[str, float] = field(default_factory=dict)
    threshold: Any = None
    predictions: RowPredictions | None = None

    @property
    def primary(self) -> float:
        """The task's score: the mean of its metrics."""
        return float(np.mean(list(self.by_metric.values())))
