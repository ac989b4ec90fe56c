"""Check the `first` runs of a grid: whether plain text can train them, and cells can start from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mtkd.grids import Grid
from mtkd.grids.cell import FirstStep
from mtkd.jobs.distillation.distill_text import settings_for_text
from mtkd.models.encoders.transformer_settings import TransformerSettings
from mtkd.models.encoders.transformer_student import TransformerStudentSettings
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError
from tasks.data.plain_text import TEXT_TASK

_INIT = "student.transformer.init"
_NO_START_HINT = "give the cell `first = false`, or another `first`"


def check_first(grid: Grid) -> None:
    """Check that each `first` can be trained on plain text, and that its cells can start from it.

    Raises:
        UserError: a recipe learns from tasks, or a cell has another kind of student, or other sizes.
    """
    for name in grid.cells:
        if first := grid.first_of(name):
            with naming_cell(name):
                _check_start(grid, name, _settings_of(first))


@contextlib.contextmanager
def naming_cell(name: str) -> Iterator[None]:
    """Add the name of a cell to a UserError that is raised inside the block."""
    try:
        yield
    except UserError as error:
        problem = f"cell {name!r}: {error.problem}"
        raise UserError(problem, expected=error.expected, hint=error.hint) from error


def _settings_of(first: FirstStep) -> DistillSettings:
    """The settings with which the run on plain text is trained."""
    settings: DistillSettings = load_settings(first.recipe, "distill", first.set, TEXT_TASK.name)
    try:
        return settings_for_text(settings)[0]
    except UserError as error:
        raise UserError(
            f"its `first` cannot be trained on plain text: {error.problem}",
            expected=error.expected
            or "a recipe that learns from a teacher on plain text for a number of steps, "
            "such as minilmv2-6x384",
            hint="give `first` another recipe or other settings (`set`), or leave it out",
        ) from error


def _check_start(grid: Grid, name: str, first: DistillSettings) -> None:
    """Check that the student of a cell that distils can start from the one that was trained on plain text.

    Raises:
        UserError: it is pruned from the teacher, or one of the two is not a Transformer or has other sizes.
    """
    recipe = grid.recipe_of(name)
    if recipe_command(recipe) != "distill" or _INIT in grid.sets_of(name):
        return
    cell: DistillSettings = load_settings(recipe, "distill", grid.sets_of(name))
    student = _transformer("its student", cell)
    start = _transformer("the model of its `first`", first)
    if student.prune:
        raise UserError(
            "its student is pruned from the teacher (student.transformer.prune=true), so it cannot start "
            "from another model",
            hint=_NO_START_HINT,
        )
    for size in ("hidden_size", "intermediate_size", "embedding_size"):
        wanted, available = getattr(student, size), getattr(start, size)
        if wanted and available and wanted != available:
            raise _other_size(size, wanted, available, f"{size}={available}")
    if student.layers and start.layers and student.layers > start.layers:
        raise _other_size("layers", student.layers, start.layers, f"up to {start.layers} layers")


def _transformer(what: str, settings: DistillSettings) -> TransformerSettings:
    """The Transformer that settings describe; UserError, which starts with `what`, if it is none."""
    if isinstance(settings.student, TransformerStudentSettings):
        return settings.student.transformer
    raise UserError(
        f"{what} ({settings.student.kind}) is not a Transformer, but only Transformers can start from a "
        "model that was trained on plain text",
        expected="student.kind=transformer",
        hint=_NO_START_HINT,
    )


def _other_size(size: str, wanted: int, available: int, expected: str) -> UserError:
    return UserError(
        f"its student has student.transformer.{size}={wanted}, but the model of `first` has {available}",
        expected=expected,
        hint=f"set `student.transformer.{size}` in `first` or in the cell, or {_NO_START_HINT}",
    )
