"""From the arguments of `mtkd.refine`, `mtkd.distill` and `mtkd.finetune` to what a job takes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.common.errors import MtkdWarning
from tasks.common.urls import as_url
from tasks.task import Task
from tasks.task_names import describe, resolve


def prepare(command: str, recipe: str, options: Mapping[str, Any], model: Any = None) -> tuple[Any, Any]:
    """The validated settings of a recipe, and the request, from a function's arguments.

    Args:
        model: whose tasks may also be named.
    """
    from mtkd.jobs.request import Request
    from mtkd.training.callbacks import require_known_events
    from tasks.data.sources import open_data

    require_known_events(options["callbacks"])

    tasks, data = options["tasks"], options["data"]
    loaded = load_recipe(command, recipe, options)
    known_tasks = _tasks_of(model)
    requested_names = {word.strip() for word in describe(tasks).split(",")}
    if not isinstance(tasks, str | Path) or requested_names & {task.name for task in known_tasks}:
        tasks = resolve(tasks, known_tasks)
    request = Request(
        data=str(data) if isinstance(data, str | Path) else data if data is None else open_data(data),
        tasks=str(tasks) if isinstance(tasks, str | Path) else tasks,
        out=Path(options["out"]),
        **{name: options[name] for name in ("limit", "eval_limit", "resume", "overwrite", "device")},
    )
    return loaded, request


def load_recipe(command: str, recipe: str, options: Mapping[str, Any]) -> Any:
    """The validated settings of a recipe, with those that a function's arguments change."""
    from mtkd.recipes import load_settings

    changes = _train_changes(command, options) | dict(options["settings"] or {})
    return load_settings(recipe, command, changes, describe(options["tasks"]))


def _tasks_of(model: Any) -> list[Task]:
    """The tasks that a saved or loaded model knows, where they are no built-in ones."""
    from mtkd.models.multitask import MultiTaskModel
    from mtkd.models.saved_model import is_saved_model, read_saved
    from tasks.glue import TASKS

    tasks: Iterable[Task] = ()
    if isinstance(model, MultiTaskModel):
        tasks = model.tasks.values()
    elif isinstance(model, Mapping | list):
        models = model.values() if isinstance(model, Mapping) else model
        tasks = {task.name: task for one_model in models for task in _tasks_of(one_model)}.values()
    elif isinstance(model, str | Path) and is_saved_model(Path(model)):
        tasks = read_saved(Path(model)).tasks
    return [task for task in tasks if task.name not in TASKS]


_SHORTHANDS = {
    "train.epochs": "epochs",
    "train.steps": "steps",
    "train.batch_size": "batch",
    "train.lr": "lr",
    "train.seed": "seed",
    "student.transformer.init": "init",
}


def _train_changes(command: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted setting -> value of `train` and of the shorthand arguments."""
    train_settings = options["train"]
    fields = {} if train_settings is None else train_settings.model_dump(exclude_unset=True)
    changes = {f"train.{name}": value for name, value in fields.items()}
    shorthands = {key: options.get(name) for key, name in _SHORTHANDS.items()}
    changes |= {key: value for key, value in shorthands.items() if value is not None}
    if command == "finetune" and "train.lr" in changes:
        changes["learning_rates"] = [changes.pop("train.lr")]
    if "student.transformer.init" in changes:
        changes["student.transformer.init"] = str(changes["student.transformer.init"])
    return changes


def model_or_path(model: Any) -> Any:
    """What a job takes as a model: its directory where it has one, else the module itself.

    Args:
        model: a model, or a list or a mapping of models.
    """
    from mtkd.api.model import Model

    if isinstance(model, Mapping):
        return {task: model_or_path(one_model) for task, one_model in model.items()}
    if isinstance(model, list):
        return [model_or_path(one_model) for one_model in model]
    if isinstance(model, Model):
        return str(model.path) if model.path else model.module
    return str(model) if isinstance(model, Path) else model


def file_names(
    unlabelled: Mapping[str, str | Path | Sequence[str | Path]] | None,
) -> dict[str, str | list[str]]:
    """The argument `unlabelled` of functions that take only files, with names in place of paths."""
    return {
        task: str(files) if isinstance(files, str | Path) else [str(file) for file in files]
        for task, files in (unlabelled or {}).items()
    }


def warn_caller(text: str) -> None:
    """Warn as if from the line that called mtkd."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in ("mtkd", "tasks"):
        level, frame = level + 1, frame.f_back
    warnings.warn(as_url(text), MtkdWarning, stacklevel=level)
