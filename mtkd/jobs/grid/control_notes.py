"""A note on students that learn from labels alone, but start from weights of a teacher."""

from __future__ import annotations

from mtkd.grids import Grid
from mtkd.jobs.grid.grid_baselines import pretrained_encoder_of
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.models.encoders.transformer_student import TransformerStudentSettings
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError


def control_notes(grid: Grid, inputs: GridInputs) -> list[str]:
    """A note that names the cells whose students learn from labels, but start from weights of the teacher."""
    try:
        names = [repr(name) for name in grid.cells if _starts_from_teacher(grid, inputs, name)]
    except UserError:  # all runs are finished, and the teacher is gone
        return []
    if not names:
        return []
    return [
        f"Students that learn from labels alone, but start from weights of the teacher: {', '.join(names)}. "
        "They may score better than students that are trained without a teacher."
    ]


def _starts_from_teacher(grid: Grid, inputs: GridInputs, name: str) -> bool:
    recipe = grid.recipe_of(name)
    if recipe_command(recipe) != "distill":
        return False
    settings = load_settings(recipe, "distill", grid.sets_of(name))
    if not isinstance(settings, DistillSettings) or settings.supervision != "labels":
        return False
    encoders = {pretrained_encoder_of(grid, inputs, spec) for spec in grid.task_specs_of(name)}
    given = inputs.teacher or inputs.encoder
    if not grid.refine and encoders == {given}:  # it is a pretrained encoder, which has learned no task
        return False
    student = settings.student
    # A control's heads that are "auto" start from a linear probe.
    if (
        student.init_heads == "teacher"
        or student.model_copy(update={"init_heads": "random"}).needs_teacher_weights
    ):
        return True
    from_encoder = isinstance(student, TransformerStudentSettings) and student.transformer.init == "encoder"
    # A transformers checkpoint does not name its encoder, so the student starts from the checkpoint.
    return from_encoder and None in encoders
