"""A note on students that learn from labels alone, but start from weights of a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mtkd.grids import Grid
from mtkd.jobs.grid.grid_baselines import pretrained_encoder_of
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.jobs.model_origin import teacher_of_store
from mtkd.models.encoders.transformer_student import TransformerStudentSettings
from mtkd.models.saved_model import is_saved_model
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_names import teachers_by_task
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from tasks.common.errors import UserError
from tasks.common.remote import with_local_paths


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
    kinds = {_kind_of_teacher(grid, inputs, task_spec) for task_spec in grid.task_specs_of(name)}
    if kinds == {"pretrained"}:
        return False
    student = settings.student
    # A control's heads that are "auto" start from a linear probe, not from the teacher's.
    encoder_only = student.model_copy(update={"init_heads": "random"})
    if student.init_heads == "teacher" or encoder_only.needs_teacher_weights:
        return True
    from_encoder = isinstance(student, TransformerStudentSettings) and student.transformer.init == "encoder"
    return from_encoder and "checkpoint" in kinds


def _kind_of_teacher(
    grid: Grid, inputs: GridInputs, task_spec: str
) -> Literal["pretrained", "refined", "checkpoint"]:
    """Whether the teacher of a task specification has learned a task, and names the encoder it started from.

    A transformers checkpoint does not name its encoder, so students start from the checkpoint instead.
    """
    if grid.refine:
        return "refined"
    if inputs.store:
        teacher = teacher_of_store(Path(inputs.store.replace("{task}", task_spec)))
        if teacher is None or not teacher.tasks:
            return "pretrained"
    else:
        teachers = teachers_by_task((inputs.teacher or inputs.encoder or "").replace("{task}", task_spec))
        places = [with_local_paths(teacher) for _, teacher in teachers]
        if all(not is_saved_model(Path(place)) and checkpoint_directory(place) is None for place in places):
            return "pretrained"
    return "checkpoint" if pretrained_encoder_of(grid, inputs, task_spec) is None else "refined"
