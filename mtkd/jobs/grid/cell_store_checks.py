"""Check that a grid's knowledge store has what its cells need, before the first run starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mtkd.grids import Grid
from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.jobs.knowledge_store.store_checks import check_store, teacher_of_store
from mtkd.recipes import load_settings, recipe_command
from tasks.common.errors import UserError, counted
from tasks.common.remote import with_local_paths
from tasks.task_names import resolve


def check_stores_of_cells(grid: Grid, inputs: GridInputs) -> None:
    """Check that the given store can replace the teacher of every cell that distils.

    Raises:
        UserError: it lacks what cells need; the message names all of them.
    """
    errors: dict[str, UserError] = {}
    for name in grid.cells if inputs.store else ():
        if error := next(_errors_of_cell(grid, inputs, name), None):
            errors[name] = error
    if not errors:
        return
    first, *others = errors.values()
    listed = [f"cell {name!r}: {error.problem}" for name, error in errors.items()]
    if not others:
        raise UserError(listed[0], expected=first.expected, hint=first.hint) from first
    raise UserError(
        "\n  ".join([f"{counted(len(errors), 'cell')} cannot learn from the knowledge store:", *listed]),
        expected="cells that need only what the store holds (see `mtkd.store_info`)",
        hint="leave these cells out with `without`, or compare them with another `store` and `out`",
    ) from first


def _errors_of_cell(grid: Grid, inputs: GridInputs, name: str) -> Iterator[UserError]:
    """The errors about the stores of a cell; its other errors are those of its runs, as without a store."""
    distils = recipe_command(grid.recipe_of(name)) == "distill"
    for task_spec in grid.task_specs_of(name) if distils else ():
        tasks = resolve(task_spec)
        store = Path(with_local_paths(str(inputs.store).replace("{task}", task_spec)))
        settings = load_settings(grid.recipe_of(name), "distill", grid.sets_of(name), task_spec)
        with contextlib.suppress(UserError):
            teacher = teacher_of_store(store, None, heads=False)
            run = validate_run(settings, teacher, tasks)
            assert teacher.manifest is not None, "it is the teacher of a store"
            try:
                check_store(run.settings, run.teacher_need, run.aligned, store, teacher.manifest)
            except UserError as error:
                yield error
