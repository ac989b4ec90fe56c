"""The setting `train.class_weights`: weights of the classes in the loss on labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mtkd.jobs.training_data import TaskData, TrainingData
from mtkd.losses.logits import Labels
from mtkd.losses.objective import Objective
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError
from tasks.data.rows import has_label
from tasks.task import Task


def check_class_weights(train: TrainSettings, tasks: Sequence[Task], objective: Objective) -> None:
    """Check that `train.class_weights` fits the tasks and is used by a loss.

    Raises:
        UserError: no task is a classification, a task has another number of labels, or no loss is the loss on
            labels.
    """
    weights = train.class_weights
    if weights is None:
        return
    weighted = [task for task in tasks if task.kind == "classify"]
    problem = expected = None
    if not weighted:
        problem, expected = "no task of this run is a classification", "tasks of type classify"
    elif not any(isinstance(term, Labels) for term in objective.terms.values()):
        problem = "no loss of this run is the loss on labels"
        expected = "a recipe with a term `labels`"
    elif not isinstance(weights, str):
        other = next((task for task in weighted if len(task.labels) != len(weights)), None)
        if other is not None:
            problem = f"the task {other.name!r} has {len(other.labels)} labels, not {len(weights)}"
            expected = f"one weight for each of {', '.join(other.labels[:8])}; or balanced"
    if problem:
        raise UserError(
            f"train.class_weights = {weights}: {problem}",
            expected=expected,
            hint="leave `train.class_weights` out",
        )


def weigh_classes(objective: Objective, train: TrainSettings, data: TrainingData) -> Objective:
    """Set the class weights of the loss on labels; returns the objective.

    The loss on all labelled rows is sum(w * loss) / sum(w), where w is the weight of a row's class, as with
    `torch.nn.CrossEntropyLoss(weight=...)`. For this, the weights are divided by their mean over these rows.
    Each step can then divide by its number of rows, for any batches and number of processes.

    "balanced" gives a class that has n_c of the n labelled rows the weight n / n_c.

    Raises:
        UserError: all labelled rows of a task have classes of weight 0.
    """
    if train.class_weights is None:
        return objective
    weights = {
        part.task.name: torch.tensor(_weights(train.class_weights, part), dtype=torch.float32)
        for part in data.parts
        if part.task.kind == "classify"
    }
    for term in objective.terms.values():
        if isinstance(term, Labels):
            term.class_weights = weights
    return objective


def _weights(class_weights: str | Sequence[float], part: TaskData) -> np.ndarray:
    """(C,) float64 weights of the classes of a task, with mean 1 over its labelled training rows."""
    labels = part.train.labels[has_label(part.train.labels)].astype(np.int64)
    counts = np.bincount(labels, minlength=len(part.task.labels))
    is_balanced = isinstance(class_weights, str)
    weights = len(labels) / np.maximum(counts, 1) if is_balanced else np.array(class_weights)
    total = weights @ counts
    if len(labels) and not total:
        raise UserError(
            f"train.class_weights = {class_weights} gives all labelled training rows of {part.task.name!r} "
            "the weight 0",
            expected="a weight above 0 for a class with rows",
        )
    return weights * len(labels) / total if total else weights
