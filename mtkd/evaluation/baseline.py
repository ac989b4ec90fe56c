"""Whether a score says more than the answer that needs no model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mtkd.evaluation.scoring import TaskScores
from tasks.task import Task

_Z = 1.96  # of a two-sided 95% interval
_CORRELATIONS = ("matthews", "pearson", "spearman")


def margin_of_error(scores: TaskScores) -> float:
    """Half the width of the 95% interval around the baseline's score p on n rows.

    1.96 sqrt(p (1 - p) / n) where the metrics are shares of rows, 1.96 / sqrt(n) where one is a correlation.
    """
    if any(name in _CORRELATIONS for name in scores.metrics):
        return _Z / math.sqrt(scores.rows)
    share = min(1.0, max(0.0, scores.majority))
    return _Z * math.sqrt(share * (1 - share) / scores.rows)


def baseline_warnings(tasks: Mapping[str, Task], scores: Iterable[TaskScores]) -> list[str]:
    """A warning for each score that is not above the baseline's by more than the margin of error.

    Args:
        tasks: name -> task.
    """
    found = []
    for of_split in scores:
        margin = margin_of_error(of_split)
        if of_split.primary - of_split.majority > margin:
            continue
        found.append(
            f"{of_split.task}/{of_split.split}: the score {of_split.primary:.3f} is not distinguishable from "
            f"{tasks[of_split.task].type.baseline} ({of_split.majority:.3f}, margin of error {margin:.3f} "
            f"on {of_split.rows:,} rows)."
        )
    return found
