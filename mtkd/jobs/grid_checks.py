"""What the cells of a grid need from its inputs, checked before the first run starts."""

from __future__ import annotations

from pathlib import Path

from mtkd.grids import Grid
from mtkd.jobs.find_teachers import teachers_by_task
from mtkd.jobs.grid_jobs import GridInputs
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm
from mtkd.models.saved_model import is_saved_model, read_saved
from mtkd.recipes import load_settings, recipe_command
from tasks.errors import UserError
from tasks.model_tasks import require_heads
from tasks.task_names import resolve
from tasks.unlabelled import UnlabelledRequest


def check_inputs(grid: Grid, inputs: GridInputs) -> None:
    """Check that corpus, rows without labels and teacher suit the cells.

    Raises:
        UserError: a cell needs a corpus and none is given, no cell can learn from the rows without labels, or
            the teacher has no head for a task whose logits a cell learns from.
    """
    wants = next((name for name, cell in grid.cells.items() if cell.corpus), None)
    if wants is not None and inputs.corpus is None:
        raise UserError(
            f"the cell {wants!r} trains on an augmented corpus, but none is given",
            hint=f"pass `corpus=DIR` made by mtkd augment, or leave the cell out with `without={wants}`",
        )
    _check_unlabelled(grid, inputs)
    if inputs.teacher and not (inputs.store or grid.refine):
        _check_teacher(grid, inputs.teacher)


def learns_without_labels(grid: Grid, name: str) -> bool:
    """True if a cell can learn from rows without labels."""
    return any(not loss.needs_labels for loss in _losses(grid, name))


def _losses(grid: Grid, name: str) -> list[type[LossTerm]]:
    """The losses of a cell that distils; those of other cells are not listed."""
    recipe = grid.recipe_of(name)
    if recipe_command(recipe) != "distill":
        return []
    stages = load_settings(recipe, "distill", grid.sets_of(name)).resolved_stages()
    return [loss_class(term.loss) for stage in stages for term in stage.terms.values()]


def _check_unlabelled(grid: Grid, inputs: GridInputs) -> None:
    names = [name for name in grid.cells if learns_without_labels(grid, name)] if inputs.unlabelled else []
    if inputs.unlabelled and not names:
        raise UserError(
            "no cell of the grid can learn from rows without labels", hint="leave `unlabelled` out"
        )
    specs = dict.fromkeys(spec for name in names for spec in grid.specs_of(name))
    tasks = [task for spec in specs for task in resolve(spec)]
    UnlabelledRequest(inputs.unlabelled, inputs.unlabelled_limit).check(tasks)


def _check_teacher(grid: Grid, teacher: str) -> None:
    """Check the heads of a teacher that mtkd has trained; others are checked by the runs."""
    names = [name for name in grid.cells if any(loss.teacher_need.logits for loss in _losses(grid, name))]
    for spec in dict.fromkeys(spec for name in names for spec in grid.specs_of(name)):
        for named, place in teachers_by_task(teacher.replace("{task}", spec)):
            taught = [task for task in resolve(spec) if named in (None, task.name) and not task.soft_labels]
            if is_saved_model(Path(place)):
                heads = {task.head: task for task in read_saved(Path(place)).tasks}
                require_heads(heads, taught, f"the teacher {place}")
