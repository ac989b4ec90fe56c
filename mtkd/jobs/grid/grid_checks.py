"""Check that a grid's inputs are what its cells need, before the first run starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mtkd.grids import TEACHER, Grid
from mtkd.jobs.grid.cell_store_checks import check_stores_of_cells
from mtkd.jobs.grid.comparison_directory import check_comparison_directory
from mtkd.jobs.grid.first_checks import check_first, naming_cell
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.jobs.grid.prerequisite_runs import given_encoder
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm
from mtkd.models.encoders.encoder import StudentSettings
from mtkd.output_files.path_overlap import refuse_overlap
from mtkd.recipes import load_settings, recipe_command
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.teacher_names import teachers_by_task
from tasks.common.errors import UserError, did_you_mean_path, unknown
from tasks.common.hub_loading import refuse_path
from tasks.common.remote import with_local_paths
from tasks.data.corpus_reader import read_corpus_manifest
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task
from tasks.task_names import resolve


def check_inputs(grid: Grid, inputs: GridInputs) -> None:
    """Check that all needed inputs are given, and that unlabelled rows and teachers suit the cells.

    Raises:
        UserError: an input that a cell needs is missing; unlabelled rows are given, but no cell can learn
            from them; `teacher_labels` names a task for which no cell uses the given teacher; a cell learns
            from the teacher's logits on a task for which it has no head, or a head with other labels; or the
            reference is the teacher, whose place a store takes.
    """
    _require_inputs(grid, inputs)
    if grid.reference == TEACHER and inputs.store and not inputs.teacher:
        raise UserError(
            f"the reference is the row {TEACHER!r}, but the store replaces the teacher, so it has no row",
            hint="pass `teacher`, too, or another `reference`",
        )
    _check_unlabelled(grid, inputs)
    _check_teacher_labels(grid, inputs)
    for task_spec, teacher in _given_teachers(grid, inputs):
        _check_local_teachers(teacher, resolve(task_spec), inputs)


def missing_inputs(grid: Grid, inputs: GridInputs) -> dict[str, UserError]:
    """The inputs that the grid needs and that are not given: attribute of `inputs` -> error."""
    missing = {}
    if error := _missing_data(grid, inputs):
        missing["data"] = error
    if error := _missing_teacher(grid, inputs):
        missing["teacher"] = error
    for name, cell in grid.cells.items():
        if cell.corpus is True and inputs.corpus is None:
            missing["corpus"] = UserError(
                f"the cell {name!r} trains on an augmented corpus, but none is given",
                hint=f"pass `corpus='DIR'` made with `mtkd.augment`, or leave the cell out with "
                f"`without={name!r}`",
            )
            break
    from_text = any(map(grid.first_of, grid.cells))
    problem = "this grid first trains students on plain text, but no {} is given"
    if from_text and inputs.text is None:
        missing["text"] = UserError(problem.format("text"), hint="pass `text='FILE'` with plain text")
    if given_encoder(grid, inputs) is None:
        if from_text:
            missing["encoder"] = UserError(
                problem.format("teacher for them"), hint="pass their teacher as `encoder='NAME'`"
            )
        elif (grid.refine and not inputs.store) or "refine" in _commands(grid):
            missing["encoder"] = UserError(
                "the grid refines an encoder, but none is given", hint="pass `encoder='NAME'`"
            )
    return missing


def _require_inputs(grid: Grid, inputs: GridInputs) -> None:
    """Raise UserError if a needed input is missing, or if a `first` run is invalid."""
    check_first(grid)
    for error in missing_inputs(grid, inputs).values():
        raise error


def _missing_data(grid: Grid, inputs: GridInputs) -> UserError | None:
    if inputs.data:
        return None
    then = [cell.then.tasks for cell in grid.cells.values() if cell.then and cell.then.tasks]
    refined = [grid.refine.tasks] if grid.refine and grid.refine.tasks and not inputs.store else []
    for task in (task for task_spec in [*grid.task_specs, *then, *refined] for task in resolve(task_spec)):
        if not task.files and not task.unlabelled:
            problem = f"the task {task.name!r} names no files of its own, so the grid needs data"
            return UserError(problem, hint="pass `data='DIR'`, `data='pocket'` or `data='hub'`")
    return None


def _missing_teacher(grid: Grid, inputs: GridInputs) -> UserError | None:
    if inputs.teacher or (grid.refine and not inputs.store):
        return None
    for name in grid.cells if inputs.store else ():
        if recipe_command(grid.recipe_of(name)) == "finetune" and not grid.first_of(name):
            problem = f"the cell {name!r} fine-tunes the teacher, but none is given"
            return UserError(problem, hint="pass `teacher='DIR'`")
    if inputs.store or not grid.needs_teacher:
        return None
    return UserError(
        "a grid needs a teacher",
        hint="pass `teacher='DIR'` or the name of a model, or `store='DIR'`, a knowledge store",
    )


def _commands(grid: Grid) -> set[str]:
    """The commands that train the models of the cells."""
    return {recipe_command(grid.recipe_of(name)) for name in grid.cells}


def check_paths(grid: Grid, inputs: GridInputs) -> None:
    """Check that data, unlabelled rows, plain text and the models exist, for each task if they depend on it.

    A teacher on the hub is downloaded.

    Raises:
        UserError: an input is missing; a file, directory or model does not exist or is of another kind; no
            cell uses the given corpus or plain text; the store lacks what a cell needs; or `out` is a file,
            or a directory that holds other files than those of a comparison.
    """
    _require_inputs(grid, inputs)
    check_given_paths(grid, inputs)
    check_comparison_directory(inputs.out)
    refuse_unused(grid, inputs)
    for task_spec, teacher in _given_teachers(grid, inputs):
        _find_teacher(teacher, resolve(task_spec), inputs)
    for task_spec, teacher in _given_teachers(grid, inputs, logits=False):
        find_teachers(teacher, resolve(task_spec), heads=False)
    check_stores_of_cells(grid, inputs)


def refuse_unused(grid: Grid, inputs: GridInputs) -> None:
    """Raise UserError if a corpus or plain text is given that no cell of the grid uses."""
    if inputs.corpus and not any(cell.corpus is True for cell in grid.cells.values()):
        raise UserError(
            "no cell of the grid uses the given augmented corpus",
            expected="a grid with `corpus = true` in a cell",
            hint="leave `corpus` out",
        )
    if inputs.text and not any(map(grid.first_of, grid.cells)):
        raise UserError(
            "no cell of the grid is first trained on the given plain text",
            expected="a grid with `first` in a cell, such as minilmv2-table-1",
            hint="leave `text` out",
        )


def check_given_paths(grid: Grid, inputs: GridInputs) -> None:
    """Check that the given inputs exist, except for the teacher; see `check_paths`."""
    if os.path.lexists(inputs.out) and not inputs.out.is_dir():
        raise UserError(f"{inputs.out} is a file", expected="a directory", hint="choose another `out`")
    models = {name: getattr(inputs, name) for name in ("teacher", "encoder", "store", "corpus")}
    refuse_overlap("out", inputs.out, models, may_contain=True)
    source = open_data(inputs.data or None)
    for task in _tasks_that_can_lack_labels(grid):
        files = inputs.unlabelled.get(task.name)
        if files is not None:
            UnlabelledRequest.of_files({task.name: files}, inputs.unlabelled_limit).open(source, task)
    if inputs.text is not None and not inputs.text.exists():
        raise UserError(f"no such file or directory: {inputs.text}{did_you_mean_path(inputs.text)}")
    _paths_per_task_spec("teacher", inputs.teacher, grid.task_specs)  # checks the placeholder
    for name in _paths_per_task_spec("encoder", inputs.encoder, grid.task_specs):
        if not Path(with_local_paths(name)).exists():
            refuse_path("encoder", name)
    for path in _paths_per_task_spec("store", inputs.store, grid.task_specs):
        read_store_manifest(Path(with_local_paths(path)))
    # Checks the placeholder, even if no cell uses the corpus.
    _paths_per_task_spec("corpus", inputs.corpus, grid.task_specs)
    for name, cell in grid.cells.items():
        for path in _paths_per_task_spec("corpus", inputs.corpus_of(cell), grid.task_specs_of(name)):
            read_corpus_manifest(Path(with_local_paths(path)))
        if student := _student_of(grid, name):
            with naming_cell(name):
                student.check_start()


def _student_of(grid: Grid, name: str) -> StudentSettings | None:
    """The settings of the student of a cell that distils; None for other cells."""
    recipe = grid.recipe_of(name)
    if recipe_command(recipe) != "distill":
        return None
    student: StudentSettings = load_settings(recipe, "distill", grid.sets_of(name)).student
    return student


def _paths_per_task_spec(argument: str, value: str | None, task_specs: Sequence[str]) -> list[str]:
    """The path or name that an input gives for each task specification; empty if it is not given.

    Raises:
        UserError: it contains a placeholder other than {task}.
    """
    paths = [value.replace("{task}", task_spec) for task_spec in task_specs] if value else []
    if any(set("{}") & set(path) for path in paths):
        raise UserError(
            f"`{argument}={value!r}` contains a placeholder other than {{task}}",
            expected="a path or name in which {task} stands for the task",
        )
    return paths


def learns_without_labels(grid: Grid, name: str) -> bool:
    """True if a cell can learn from unlabelled rows."""
    return any(not loss.needs_labels for loss in _losses(grid, name))


def learns_from_logits(grid: Grid, name: str) -> bool:
    """True if a cell learns from the outputs of the teacher's task heads."""
    return any(loss.teacher_need.logits for loss in _losses(grid, name))


def _losses(grid: Grid, name: str) -> list[type[LossTerm]]:
    """The classes of the losses of a cell that distils; empty for other cells."""
    recipe = grid.recipe_of(name)
    if recipe_command(recipe) != "distill":
        return []
    stages = load_settings(recipe, "distill", grid.sets_of(name)).resolved_stages()
    return [loss_class(term.loss) for stage in stages for term in stage.terms.values()]


def _check_unlabelled(grid: Grid, inputs: GridInputs) -> None:
    """Raise UserError if no cell can learn from the given unlabelled rows, or they are for another task."""
    tasks = _tasks_that_can_lack_labels(grid) if inputs.unlabelled else []
    if inputs.unlabelled and not tasks:
        raise UserError("no cell of the grid can learn from unlabelled rows", hint="leave `unlabelled` out")
    UnlabelledRequest(inputs.unlabelled, inputs.unlabelled_limit).check(tasks)


def _tasks_that_can_lack_labels(grid: Grid) -> list[Task]:
    """The tasks of the cells that can learn from unlabelled rows."""
    names = [name for name in grid.cells if learns_without_labels(grid, name)]
    task_specs = dict.fromkeys(task_spec for name in names for task_spec in grid.task_specs_of(name))
    return [task for task_spec in task_specs for task in resolve(task_spec)]


def _given_teachers(grid: Grid, inputs: GridInputs, *, logits: bool = True) -> list[tuple[str, str]]:
    """(task specification, given teacher) for the cells that distil.

    Args:
        logits: True = the cells that learn from logits; False = only the others.
    """
    if not inputs.teacher or inputs.store or grid.refine:
        return []
    names = [name for name in grid.cells if _student_of(grid, name)]
    names = [name for name in names if learns_from_logits(grid, name) == logits]
    task_specs = dict.fromkeys(task_spec for name in names for task_spec in grid.task_specs_of(name))
    return [(task_spec, inputs.teacher.replace("{task}", task_spec)) for task_spec in task_specs]


def _check_teacher_labels(grid: Grid, inputs: GridInputs) -> None:
    """Check that a cell learns from the logits of the given teacher on each task of `teacher_labels`."""
    taught = [task.name for task_spec, _ in _given_teachers(grid, inputs) for task in resolve(task_spec)]
    if inputs.teacher_labels and not taught:
        raise UserError(
            "`teacher_labels` gives the order of a teacher's labels, but no cell of the grid learns from the "
            "logits of a given teacher",
            expected="a transformers checkpoint as `teacher`, without `store`",
            hint="leave `teacher_labels` out",
        )
    for task in inputs.teacher_labels:
        if task not in taught:
            raise unknown("task in `teacher_labels`", task, dict.fromkeys(taught))


def _check_local_teachers(teacher: str, tasks: Sequence[Task], inputs: GridInputs) -> None:
    """Check the heads and labels of teachers on disk; those on the hub are checked by `check_paths`."""
    names = [name for _, name in teachers_by_task(teacher)]
    for name in names:
        if not Path(name).exists():
            refuse_path("teacher", name)
    if all(Path(name).exists() for name in names):
        _find_teacher(teacher, tasks, inputs)


def _find_teacher(teacher: str, tasks: Sequence[Task], inputs: GridInputs) -> None:
    find_teachers(teacher, tasks, heads=True, labels=inputs.labels_of_teacher(tasks))
