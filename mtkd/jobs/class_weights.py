"""The setting `train.class_weights`: weights of the classes in the loss on labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mtkd.jobs.training_data import TrainingData
from mtkd.losses.logits import Labels
from mtkd.losses.objective import Objective
from mtkd.settings import TrainSettings
from tasks.common.errors import UserError
from tasks.data.rows import has_label
from tasks.task import Task


def check_class_weights(train: TrainSettings, tasks: Sequence[Task], objective: Objective) -> None:
    """Check that the weights fit the tasks and are used.

    Raises:
        UserError: no task is a classification, a task has another number of labels, or no loss uses labels.
    """
    weights = train.class_weights
    if weights is None:
        return
    weighted = [task for task in tasks if task.kind == "classify"]
    problem = expected = None
    if not weighted:
        problem, expected = "no task of this run is a classification", "tasks of type classify"
    elif not any(isinstance(term, Labels) for term in objective.terms.values()):
        problem, expected = "no loss of this run is the loss on labels", "a recipe with a term `labels`"
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

    "balanced" gives a class with n_c of n labelled rows the weight n / (C n_c), so that every class has the
    same influence and the mean weight of the rows is 1.
    """
    if train.class_weights is None:
        return objective
    weights = {}
    for task_data in data.parts:
        if task_data.task.kind != "classify":
            continue
        values = train.class_weights
        if isinstance(values, str):
            labels = task_data.train.labels[has_label(task_data.train.labels)].astype(np.int64)
            counts = np.bincount(labels, minlength=len(task_data.task.labels))
            values = (len(labels) / (len(counts) * np.maximum(counts, 1))).tolist()
        weights[task_data.task.name] = torch.tensor(values, dtype=torch.float32)
    for term in objective.terms.values():
        if isinstance(term, Labels):
            term.class_weights = weights
    return objective
