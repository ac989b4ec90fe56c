"""Compare scores with the baseline that needs no model, such as always predicting the majority class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mtkd.evaluation.scoring import TaskScores
from tasks.task import Task

_Z = 1.96  # for a two-sided 95% interval
_CORRELATIONS = ("matthews", "pearson", "spearman")


def margin_of_error(scores: TaskScores) -> float:
    """Half the width of the 95% confidence interval around the baseline's score p on n rows.

    This is 1.96 sqrt(p (1 - p) / n) for metrics that are fractions of rows, and 1.96 / sqrt(n) if one of the
    metrics is a correlation.
    """
    if any(name in _CORRELATIONS for name in scores.metrics):
        return _Z / math.sqrt(scores.rows)
    share = min(1.0, max(0.0, scores.majority))
    return _Z * math.sqrt(share * (1 - share) / scores.rows)


def baseline_warnings(tasks: Mapping[str, Task], scores: Iterable[TaskScores]) -> list[str]:
    """Warn about each score that does not exceed the baseline by more than the margin of error.

    Args:
        tasks: name -> task.
    """
    warnings = []
    for score in scores:
        margin = margin_of_error(score)
        if score.primary - score.majority > margin:
            continue
        warnings.append(
            f"{score.task}/{score.split}: the score {score.primary:.3f} is not above "
            f"{tasks[score.task].type.baseline} ({score.majority:.3f}) by more than the "
            f"margin of error ({margin:.3f} on {score.rows:,} rows)."
        )
    return warnings
