"""The baselines in a grid's table, which train no encoder, and warnings about cells that are no better."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mtkd.evaluation.baselines import CONSTANT, TRAINING_ROWS, best_constant, encoder_baselines
from mtkd.evaluation.frozen_encoder import FrozenEncoder
from mtkd.grids import Grid
from mtkd.jobs.grid.grid_jobs import GridInputs
from mtkd.jobs.grid.prerequisite_runs import encoder_to_refine
from mtkd.jobs.grid.table_row import TableRow
from mtkd.jobs.model_origin import encoder_of_store, encoder_of_teacher
from mtkd.teachers.teacher_names import teachers_by_task
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

PredictionsByTask = dict[str, dict[int, dict[str, RowPredictions]]]  # task -> seed -> split -> predictions


def grid_baselines(
    grid: Grid,
    inputs: GridInputs,
    tasks: Mapping[str, Task],
    task_specs: Mapping[str, str],
    predicted: Mapping[str, PredictionsByTask],
) -> tuple[dict[str, PredictionsByTask], list[str]]:
    """The predictions of the baselines for the rows that the cells were scored on.

    The vectors of the frozen encoder are cached in `out`/features.

    Args:
        tasks: name -> the task as the models know it.
        task_specs: task -> the task specification of the grid that it belongs to.
        predicted: cell -> its predictions.

    Returns:
        Baseline -> predictions, under the seed 0; and notes about baselines that are missing.
    """
    predictions: dict[str, PredictionsByTask] = {}
    notes: list[str] = []
    for name, task in tasks.items():
        runs = [run for cell in predicted.values() for run in cell.get(name, {}).values()]
        if not runs:
            continue
        constants = best_constant(task, runs[0])
        baselines = {CONSTANT: constants} if constants else {}
        try:
            baselines |= _frozen_encoder_baselines(grid, inputs, task, task_specs[name])
        except UserError as error:  # the table is still useful
            notes.append(f"No baselines of a frozen encoder for {name}: {error.problem}.")
        for baseline, splits in baselines.items():
            predictions.setdefault(baseline, {})[name] = {0: splits}
    return predictions, notes


def _frozen_encoder_baselines(
    grid: Grid, inputs: GridInputs, task: Task, task_spec: str
) -> dict[str, dict[str, RowPredictions]]:
    """Baseline -> split -> predictions of the baselines that use the pretrained encoder's vectors."""
    encoder = pretrained_encoder_of(grid, inputs, task_spec)
    if encoder is None or task.train is None:
        raise UserError("the teacher does not say which pretrained encoder it started from")
    source = open_data(inputs.data or None)
    limit = min(inputs.limit or TRAINING_ROWS, TRAINING_ROWS)
    train = load_rows(source, task, task.train, limit)
    present = [split for split in task.validation if split in source.splits(task)]
    validation = [load_rows(source, task, split, inputs.eval_limit) for split in present]
    return encoder_baselines(task, train, validation, FrozenEncoder(encoder, inputs.out / "features"))


def pretrained_encoder_of(grid: Grid, inputs: GridInputs, task_spec: str) -> str | None:
    """The pretrained encoder that the teacher of a task specification started from; None if unknown."""
    if inputs.store:
        return encoder_of_store(Path(inputs.store.replace("{task}", task_spec)))
    if grid.refine:
        return encoder_to_refine(grid, inputs, task_spec)
    teacher = inputs.teacher or inputs.encoder
    if not teacher:
        return None
    teachers = teachers_by_task(teacher.replace("{task}", task_spec))
    return next(
        (encoder_of_teacher(name) for task, name in teachers if task in (None, *task_spec.split(","))), None
    )


def weak_row_warnings(rows: Mapping[str, TableRow]) -> list[str]:
    """A warning for each trained row that is not clearly better than the best constant prediction."""
    warnings = []
    for name, row in rows.items():
        weak = [task for task, difference in row.above_majority.items() if difference.verdict != "better"]
        if weak and name != CONSTANT and row.kept:
            warnings.append(
                f"Warning: {name} is not clearly better than the best constant prediction on "
                f"{', '.join(weak)}."
            )
    return warnings
