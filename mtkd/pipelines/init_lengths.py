"""The `max_length` of the models in a pipeline that `mtkd init` writes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mtkd.pipelines.init_data import Part
from mtkd.pipelines.init_files import length_limits, suitable_length
from mtkd.pipelines.init_student import StudentPlan
from tasks.checks.data_quality import MAX_TRUNCATED_SHARE, TokenSample, truncation_message
from tasks.task import Task


def choose_length(
    task: Task, splits: Mapping[str, Part], max_length: int | None, plan: StudentPlan
) -> tuple[int, list[str]]:
    """The `max_length` of the models, and notes on the tokens of the rows; `max_length`: from the user."""
    longest = max_length or length_limits(task)[1]
    train, validation = (
        TokenSample.of_task(task, splits[split].raw.table, longest, plan.tokeniser)
        for split in ("train", "validation")
    )
    length = max_length or max(suitable_length(task, split.lengths) for split in (train, validation))
    truncated = _truncation_notes(task, "training", train.lengths, length)
    truncated = truncated or _truncation_notes(task, "validation", validation.lengths, length)
    return length, truncated + train.unknown_text()


def _truncation_notes(task: Task, split: str, lengths: np.ndarray, max_length: int) -> list[str]:
    """A warning if many rows of a split are longer than the pipeline's `max_length`.

    Args:
        split: "training" or "validation".
        lengths: (n,) tokens of each row.
    """
    share = float(np.mean(lengths > max_length))
    if task.type.predicts_spans or share <= MAX_TRUNCATED_SHARE:
        return []
    return [truncation_message(f"the {split} rows", share, f"{max_length} tokens") + ", but takes longer"]
