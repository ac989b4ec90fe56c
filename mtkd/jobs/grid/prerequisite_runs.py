"""The runs that a cell's run starts from: one refines the teacher, one trains a student on plain text."""

from __future__ import annotations

from pathlib import Path

from mtkd.grids import Grid
from mtkd.jobs.grid.grid_jobs import GridInputs, Job, safe_file_name, setting_options
from mtkd.models.saved_model import is_saved_model, read_saved
from tasks.common.sha256 import digest_bytes


def teacher_job(grid: Grid, inputs: GridInputs, task_spec: str, seed: int) -> Job | None:
    """The run that refines the teacher for this seed; None if the grid refines no teacher."""
    refine = grid.refine
    if refine is None or inputs.store:
        return None
    tasks = refine.tasks or task_spec
    encoder = encoder_to_refine(grid, inputs, task_spec)
    out = inputs.out / "teacher" / safe_file_name(tasks)
    if refine.seed == "each":
        out = out.with_name(f"{out.name}-{seed}")
    else:
        seed = refine.seed
    argv = ["refine", *inputs.data_options(), "--tasks", tasks, "--encoder", encoder]
    argv += ["--recipe", refine.recipe, "--seed", str(seed), *setting_options(refine.set)]
    return Job((*argv, "--out", str(out)), out)


def text_job(grid: Grid, inputs: GridInputs, name: str, seed: int) -> Job | None:
    """The run on plain text that a cell starts from (`first`); cells with the same settings share it.

    None if the cell does not start from plain text.
    """
    first = grid.first_of(name)
    if first is None:
        return None
    encoder = given_encoder(grid, inputs)
    assert inputs.text is not None and encoder is not None, "`check_inputs` must be called first"
    argv = ["distill", first.recipe, "--text", str(inputs.text), "--teacher", encoder]
    argv += ["--seed", str(seed if first.seed == "each" else first.seed), *setting_options(first.set)]
    out = inputs.out / "first" / f"{Path(first.recipe).stem}-{digest_bytes(*argv)[:12]}"
    return Job((*argv, "--out", str(out)), out)


def encoder_to_refine(grid: Grid, inputs: GridInputs, task_spec: str) -> str:
    """The pretrained encoder that is refined into the teacher, or by a cell with a recipe for `refine`."""
    name = given_encoder(grid, inputs)
    assert name is not None, "`check_inputs` must be called first"
    return name.replace("{task}", task_spec)


def given_encoder(grid: Grid, inputs: GridInputs) -> str | None:
    """The pretrained encoder: the given one, the grid's, or the one that the given teacher started from."""
    if inputs.encoder or grid.refine:
        return inputs.encoder or (grid.refine.encoder if grid.refine else None)
    teacher = inputs.teacher
    if teacher and is_saved_model(Path(teacher)):
        return read_saved(Path(teacher)).info.base or teacher
    return teacher
