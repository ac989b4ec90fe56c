"""Scores of a transformers checkpoint, which is not a run, for a line of the report."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.evaluation.differences import Splits
from mtkd.jobs.evaluate import evaluate
from mtkd.reporting.models import Gathered
from mtkd.teachers.teacher_names import LabelsSpec
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from tasks.common.errors import MtkdWarning, UserError


@dataclass(frozen=True, eq=False)
class ScoredCheckpoint:
    """A checkpoint and what it predicted: task -> seed -> split -> predictions; the seed is 0."""

    name: str
    predicted: dict[str, dict[int, Splits]]


def score_checkpoint(gathered: Gathered, name: str, data: Any, labels: LabelsSpec) -> ScoredCheckpoint:
    """Score a fine-tuned checkpoint on the validation rows of the runs.

    Args:
        name: a directory or hub name.
        data: where the rows are read; None = where the first run read them.
        labels: the order of the checkpoint's labels; see `mtkd.distill`.

    Raises:
        UserError: it is not a checkpoint, the runs are for several tasks, or their rows cannot be read.
    """
    if checkpoint_directory(name) is None:
        raise UserError(
            f"`teacher={name!r}` is not a fine-tuned transformers checkpoint",
            hint="list runs of mtkd, such as those of `mtkd.refine`, with the other runs",
        )
    tasks = {task: model.tasks[task] for model in gathered.models for task in model.tasks}
    if len(tasks) != 1:
        raise UserError(
            f"a transformers checkpoint is for one task, but the runs are for {', '.join(tasks) or 'none'}",
            hint="leave `teacher` out, or name only runs for one task",
        )
    (task,) = tasks.values()
    identity = next(model.runs[0].identity for model in gathered.models if model.tasks)
    source = identity["data"] if data is None else data
    scored = evaluate(Path(name), source, [task], teacher_labels=labels, limit=identity["eval_limit"])
    for text in scored.warnings:
        warnings.warn(text, MtkdWarning, stacklevel=2)
    splits = {score.split: score.predictions for score in scored.scores if score.predictions is not None}
    return ScoredCheckpoint(name, {task.name: {0: splits}})
