"""Open the model that a user gives: the directory of a model, a model, or a transformers checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import model_directory, read_saved
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.teacher_names import LabelsSpec, teacher_name
from mtkd.teachers.transformers_checkpoint import (
    RUN_OR_CHECKPOINT,
    CheckpointRef,
    checkpoint_directory,
    refuse_headless,
)
from tasks.common.errors import UserError
from tasks.common.hub_loading import only_contains_models
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve

# A directory or hub name, a model, or (transformers model, tokeniser).
EvaluatedModel = Path | MultiTaskModel | tuple[nn.Module, Any]


def open_model(
    model: EvaluatedModel, spec: TaskSpec | None, data: Any, device: torch.device, labels: LabelsSpec = None
) -> tuple[Path | MultiTaskModel, CheckpointRef | None]:
    """Load a model if it is a transformers checkpoint; other models are returned unchanged.

    Args:
        spec: the task of a checkpoint, which does not record it.
        labels: the task's labels in the order of a checkpoint's outputs.

    Returns:
        The model or its directory, and the `CheckpointRef` if it is a checkpoint.

    Raises:
        UserError: there is no such model, `labels` are given for a model that is not a checkpoint, or a
            checkpoint is opened for several tasks.
    """
    if isinstance(model, MultiTaskModel) or not is_checkpoint(model):
        assert not isinstance(model, tuple)
        if labels:
            raise UserError(
                "`teacher_labels` applies only to transformers checkpoints, and this model is not one",
                hint="leave it out: an mtkd model knows its labels",
            )
        if isinstance(model, Path):
            _require_model(model)
        return model, None
    tasks = resolve(spec, data=data) if spec else []
    if len(tasks) != 1:
        raise UserError(
            f"{teacher_name(model)} is a transformers checkpoint, which is for one task",
            hint="name the task: `tasks='NAME'`, or a task file",
        )
    source = model if isinstance(model, tuple) else str(model)
    checkpoint = find_teachers(source, tasks, heads=True, labels=labels)
    assert isinstance(checkpoint, CheckpointRef)
    return checkpoint.load(None).to(device), checkpoint


def open_other_model(
    against: EvaluatedModel, tasks: Sequence[Task], device: torch.device, labels: LabelsSpec
) -> tuple[Path | MultiTaskModel, CheckpointRef | None]:
    """As `open_model`, for the model to compare with; its errors name the argument `against`."""
    try:
        other, checkpoint = open_model(against, tasks, None, device, labels)
        if isinstance(other, Path):
            read_saved(other)  # raises a UserError if it is missing or damaged
    except UserError as error:
        raise UserError(f"`against`: {error.problem}", expected=error.expected, hint=error.hint) from error
    return other, checkpoint


def load_module(model: Path | MultiTaskModel, device: torch.device) -> MultiTaskModel:
    """Load a model from its directory to a device; a model that is loaded already stays on its own."""
    return model if isinstance(model, MultiTaskModel) else MultiTaskModel.load(model).to(device)


def tasks_of(model: Path | MultiTaskModel) -> list[Task]:
    """The tasks that a model has heads for."""
    return list(model.tasks.values()) if isinstance(model, MultiTaskModel) else read_saved(model).tasks


def is_checkpoint(model: EvaluatedModel) -> bool:
    """True for a fine-tuned transformers checkpoint: a directory, a hub name, or a pair in memory."""
    if isinstance(model, Path):
        return checkpoint_directory(str(model)) is not None
    return not isinstance(model, MultiTaskModel)


def _require_model(path: Path) -> None:
    """Check that a directory holds an mtkd model; its UserError says that checkpoints are also accepted."""
    refuse_headless(path)
    try:
        model_directory(path)
    except UserError as error:
        if error.expected is None or only_contains_models(path):
            raise
        raise UserError(error.problem, expected=RUN_OR_CHECKPOINT, hint=error.hint) from error
