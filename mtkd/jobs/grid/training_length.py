"""How long a cell trains: for some epochs, divided among its stages, or for as many steps as other runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mtkd.grids import Grid
from mtkd.jobs.grid.grid_checks import learns_without_labels
from mtkd.jobs.grid.grid_jobs import GridInputs, apportion
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings, Stage
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError
from tasks.task_names import resolve

_LENGTH = re.compile(r"(^|\.)train\.(epochs|steps)$")


def settings_without_length(grid: Grid, inputs: GridInputs, name: str) -> dict[str, Any]:
    """The settings of a cell, without its epochs and steps if `epochs` or `steps_of` decides about them."""
    settings = grid.sets_of(name)
    if not (inputs.epochs or grid.cells[name].steps_of):
        return settings
    return {key: value for key, value in settings.items() if not _LENGTH.search(key)}


def epoch_options(grid: Grid, inputs: GridInputs, name: str, task_spec: str) -> list[str]:
    """The options with which the stages of a cell's run together train for `epochs` epochs; empty without it.

    Raises:
        UserError: there are more stages than epochs.
    """
    epochs = inputs.epochs
    if epochs is None:
        return []
    stages = stages_of(grid, name, task_spec)
    if len(stages) < 2:
        return ["--epochs", str(epochs)]
    if epochs < len(stages):
        raise UserError(
            f"`epochs={epochs}` is less than one epoch for each stage of the cell {name!r}",
            expected=f"{len(stages)} or more",
        )
    options = []
    for stage, share in zip(stages, apportion(stage_weights(stages), epochs), strict=True):
        if stage.train.steps is not None:
            options += ["--set", f"stages.{stage.name}.train.steps=none"]
        options += ["--set", f"stages.{stage.name}.train.epochs={share}"]
    return options


def stages_of(grid: Grid, name: str, task_spec: str) -> list[Stage]:
    """The stages of a cell that distils, before `one_stage` merges them; empty for other cells."""
    settings = _settings(grid, name, task_spec)
    if not isinstance(settings, DistillSettings):
        return []
    return settings.model_copy(update={"one_stage": False}).resolved_stages()


def stage_weights(stages: Sequence[Stage]) -> list[int]:
    """The weights by which epochs or steps are divided among stages."""
    lengths = [stage.train.epochs for stage in stages]
    return [1 if "auto" in lengths else int(length) for length in lengths]


def steps_key(grid: Grid, inputs: GridInputs, name: str, task_spec: str) -> tuple[Any, ...]:
    """Everything besides its tasks and epochs that decides a cell's number of steps.

    For two cells with equal keys, the same number of epochs on the same tasks is the same number of steps.
    """
    cell, settings = grid.cells[name], _settings(grid, name, task_spec)
    rows = (cell.limit or inputs.limit, inputs.corpus_of(cell), learns_without_labels(grid, name))
    return (*rows, _batch_settings(settings), _length_settings(settings, task_spec))


def task_specs_that_train(task_specs: Sequence[str], task_spec: str) -> list[str]:
    """Those of `task_specs` that together train every task of `task_spec`; empty if a task is missing."""
    if task_spec in task_specs:
        return [task_spec]
    wanted = {task.name for task in resolve(task_spec)}
    trained = {other: {task.name for task in resolve(other)} & wanted for other in task_specs}
    if set().union(*trained.values()) != wanted:
        return []
    return [other for other, tasks in trained.items() if tasks]


def _settings(grid: Grid, name: str, task_spec: str) -> Any:
    recipe = grid.recipe_of(name)
    return load_settings(recipe, recipe_command(recipe), grid.sets_of(name), task_spec)


def _train_settings(settings: Any) -> list[TrainSettings]:
    """The training settings of each stage."""
    stages = settings.resolved_stages() if isinstance(settings, DistillSettings) else [settings]
    return [stage.train for stage in stages]


def _batch_settings(settings: Any) -> list[Any]:
    """The settings that decide each stage's batches per epoch, with its weight if the stages differ."""
    batches = [
        (
            ("tokens", train.batch_tokens) if train.batch_tokens else ("rows", train.batch_size),
            train.steps_per_epoch,
            train.unlabelled_fraction,
            train.min_confidence,
        )
        for train in _train_settings(settings)
    ]
    if len(set(batches)) == 1:  # however the epochs are divided, they have as many steps
        return batches[:1]
    return list(zip(batches, stage_weights(settings.resolved_stages()), strict=True))


def _length_settings(settings: Any, task_spec: str) -> list[Any]:
    """The settings that decide the lengths of texts, if the number of batches depends on these; else empty.

    It does for batches of a number of tokens, and for span tasks, whose texts are cut into windows.
    """
    by_windows = any(task.kind == "span" for task in resolve(task_spec))
    if not (by_windows or any(train.batch_tokens for train in _train_settings(settings))):
        return []
    reader = getattr(settings, "student", settings)
    return [getattr(reader, key, None) for key in ("max_length", "stride", "vocabulary")]
