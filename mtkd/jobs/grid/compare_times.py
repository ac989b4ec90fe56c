"""The inference times in the table of a grid: measured, or kept from an earlier call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mtkd.evaluation.inference_bench import BenchSettings, time_each_shape
from mtkd.grids import TEACHER
from mtkd.jobs.grid.compare_table import Table
from mtkd.jobs.grid.comparison_directory import TABLE_FILE
from mtkd.jobs.grid.given_teacher import timed_directory
from mtkd.jobs.grid.kept_speeds import keep_speeds
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.common.temporary import temporary_directory


def with_earlier_times(table: Table, out: Path) -> Table:
    """The table with the inference times that an earlier call measured, if there are any."""
    kept = keep_speeds(out / TABLE_FILE, {row.name: row for row in table.rows})
    if not kept:
        return table
    bench, note = kept
    grid = table.grid.model_copy(update={"bench": bench})
    return replace(table, grid=grid, notes=[*table.notes, note])


def add_times(table: Table, models: Mapping[str, Path], teacher: TeacherRef | None) -> bool:
    """Time the inference of the cells' models and of a given teacher; or add a note why it is not timed.

    Args:
        models: cell -> the run directory of one of its models.

    Returns:
        False if nothing was timed.
    """
    with temporary_directory() as folder:
        if teacher:
            try:
                given = {TEACHER: timed_directory(teacher, folder)}
                _time_models(table, {**given, **models})
                return True
            except UserError as error:  # perhaps only the teacher cannot be timed
                table.notes.append(f"The teacher was not timed: {error.problem}.")
        try:
            _time_models(table, models)
            return True
        except UserError as error:  # the table is still useful
            table.notes.append(f"Inference was not timed: {error.problem}.")
            return False


def _time_models(table: Table, models: Mapping[str, Path]) -> None:
    """Time one model of each shape; rows whose models have the same shape get the same time."""
    bench, timed = table.grid.bench, []
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        for batch in bench.batches:
            settings = BenchSettings(bench.seq_len, batch, bench.rounds, device=device)
            timed += [(device, batch, *item) for item in time_each_shape(models, settings).items()]
    rows = {row.name: row for row in table.rows}
    for row in rows.values():
        row.remove_times()
    for device, batch, name, result in timed:
        row = rows[name]
        speed, ms = (row.speed, row.ms) if device == "cpu" else (row.gpu_speed, row.gpu_ms)
        speed[batch], ms[batch] = result.speed, result.ms
