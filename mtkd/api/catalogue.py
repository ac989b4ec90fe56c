"""`mtkd.list_tasks`, `list_recipes`, `list_grids`, `show_recipe` and `check_data`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtkd.api.argument_types import Recipe, Settings, Unlabelled
from mtkd.output_files.remote_paths import remote_paths
from tasks.checks.data_report import DataReport, report_on
from tasks.common.arguments import PositiveInt, checked
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve

if TYPE_CHECKING:
    from tasks.tokens.tokeniser import Tokeniser


def list_tasks() -> dict[str, Task]:
    """The built-in tasks: name -> task."""
    from tasks.glue import TASKS

    return dict(TASKS)


@checked
def list_recipes(command: Literal["distill", "refine", "finetune"] = "distill") -> list[str]:
    """The names of the recipes for the command "distill", "refine" or "finetune"."""
    from mtkd.recipes import recipe_names

    return recipe_names(command)


def list_grids() -> list[str]:
    """The names of the built-in grids, which reproduce tables of the papers."""
    from mtkd.grids import grid_names

    return grid_names()


@checked
def show_recipe(name: Recipe, settings: Settings | None = None) -> Any:
    """A recipe's settings as a typed object, with overrides applied.

    Args:
        settings: dotted setting -> value.

    Raises:
        UserError: the recipe or a setting is unknown, a value is invalid, or the stages cannot be run.
    """
    from mtkd.recipes import load_settings, recipe_command
    from mtkd.settings import DistillSettings

    loaded = load_settings(name, recipe_command(name), settings or {})
    if isinstance(loaded, DistillSettings):
        loaded.resolved_stages()  # raises the errors
    return loaded


@checked
@remote_paths("data", "tasks", "unlabelled", "teacher")
def check_data(
    data: Any = None,
    tasks: TaskSpec | None = None,
    *,
    unlabelled: Unlabelled | None = None,
    max_length: PositiveInt = 128,
    teacher: str | Path | None = None,
) -> DataReport:
    """Check the rows of some tasks and report all problems; invalid rows are reported, not raised.

    Args:
        data: see `refine`.
        tasks: by default all built-in tasks that the data have.
        unlabelled: task -> unlabelled rows, which are also checked (see `distill`); by default those of
            data and task files.
        max_length: the number of tokens to which your models truncate a row, 128 in most recipes; the report
            warns about longer rows.
        teacher: a run of mtkd, a transformers checkpoint or an encoder, whose tokeniser counts the tokens; by
            default the default encoder.
    """
    source = open_data(data)
    chosen = resolve(tasks or "glue,ax,squad", data=data)
    if tasks is None:
        chosen = [task for task in chosen if source.splits(task)] or chosen
    rows_without_labels = UnlabelledRequest({} if unlabelled is None else unlabelled)
    return report_on(source, chosen, max_length, rows_without_labels, _teacher_tokeniser(teacher, chosen))


def _teacher_tokeniser(teacher: str | Path | None, tasks: list[Task]) -> Tokeniser | None:
    if teacher is None:
        return None
    from mtkd.teachers.find_teachers import find_teachers

    found = find_teachers(str(teacher), tasks, heads=False)
    assert found is not None
    return found.tokeniser()
