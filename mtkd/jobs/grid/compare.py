"""Compare: run a grid of cells x tasks x seeds, and collect the results in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mtkd.evaluation.baselines import CONSTANT
from mtkd.evaluation.differences import (
    ScoreSamples,
    differences_by_task,
    metric_values,
    sample_scores,
)
from mtkd.evaluation.scoring import read_predictions
from mtkd.grids import TEACHER, Grid
from mtkd.jobs.grid.compare_plot import plot_table
from mtkd.jobs.grid.compare_table import Table, metric_name
from mtkd.jobs.grid.compare_times import add_times, with_earlier_times
from mtkd.jobs.grid.comparison_directory import TABLE_FILE, check_comparison_directory
from mtkd.jobs.grid.control_notes import control_notes
from mtkd.jobs.grid.finished_inputs import check_finished_inputs, check_same_commands
from mtkd.jobs.grid.given_teacher import score_given_teacher
from mtkd.jobs.grid.grid_baselines import PredictionsByTask, grid_baselines, weak_row_warnings
from mtkd.jobs.grid.grid_checks import check_paths
from mtkd.jobs.grid.grid_jobs import GridInputs, total_of_stages
from mtkd.jobs.grid.grid_plan import PlannedRun, plan_runs
from mtkd.jobs.grid.grid_scheduler import run_jobs
from mtkd.jobs.grid.table_row import TableRow
from mtkd.models.saved_model import digest_model, read_saved
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.training.run_directory import PREDICTIONS
from tasks.common.errors import UserError
from tasks.common.files import write_text
from tasks.common.locks import locked, remove_leftovers
from tasks.common.records import write_record
from tasks.task import Task


@dataclass
class _Results:
    """What was read from the finished runs of a grid.

    Attributes:
        tasks: name -> the task as the models know it.
        task_specs: task -> the task specification of the grid that it belongs to.
        predicted: row -> predictions of its runs.
        models: cell -> the run directory of one of its models.
        teacher: the given teacher that is timed; None if there is none, or if the grid trains it.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    task_specs: dict[str, str] = field(default_factory=dict)
    predicted: dict[str, PredictionsByTask] = field(default_factory=dict)
    models: dict[str, Path] = field(default_factory=dict)
    teacher: TeacherRef | None = None


def run_grid(grid: Grid, inputs: GridInputs, say: Callable[[str], None], jobs: int = 1) -> Table:
    """Run the unfinished runs of a grid and collect the table; a failed run does not stop the others.

    Args:
        say: called with a line before each run, and with error messages.
        jobs: how many runs are executed at the same time.

    Returns:
        The table, which is also written to `out` as compare.json and compare.md, and plotted as compare.png.

    Raises:
        UserError: an input that a cell needs is missing, or has changed since a finished run; or `out` holds
            other files than those of a comparison.
    """
    check_paths(grid, inputs)
    planned = plan_runs(grid, inputs)
    jobs_of_grid = list(dict.fromkeys(job for run in planned for job in run.jobs))
    check_same_commands(jobs_of_grid)
    check_finished_inputs(jobs_of_grid, inputs)
    with locked(inputs.out):
        check_comparison_directory(inputs.out)  # another process may have written to it
        for folder in {job.out.parent for run in planned for job in run.jobs}:
            if folder.is_dir():
                remove_leftovers(folder)
        return _run_and_collect(grid, inputs, planned, say, jobs)


def _run_and_collect(
    grid: Grid, inputs: GridInputs, planned: list[PlannedRun], say: Callable[[str], None], jobs: int
) -> Table:
    """Run the unfinished jobs of all planned runs, then collect and write the table."""
    errors = run_jobs([job for run in planned for job in run.jobs], jobs, say)
    rows: dict[str, TableRow] = {run.cell: TableRow(run.cell) for run in planned}
    commands: dict[str, list[str]] = {name: [] for name in rows}
    scored_runs: dict[str, list[str]] = {name: [] for name in rows}
    results = _Results()
    for run in planned:
        commands[run.cell] += [job.command_line for job in run.jobs]
        failed = next((job for job in run.jobs if job.out in errors), None)
        if failed is None:
            _collect(rows[run.cell], run, results)
            scored_runs[run.cell] += [job.out.relative_to(inputs.out).as_posix() for job in run.scored]
        else:
            rows[run.cell].failed[f"{run.task_spec}, seed {run.seed}"] = errors[failed.out]
    notes = _notes(grid, rows) + control_notes(grid, inputs)
    if inputs.teacher and not grid.refine:
        teacher, teacher_notes = _teacher_row(inputs, rows, results, say)
        rows, notes = teacher | rows, notes + teacher_notes
    if grid.baselines:
        baselines, baseline_notes = grid_baselines(
            grid, inputs, results.tasks, results.task_specs, results.predicted
        )
        notes += baseline_notes
        for name, predicted in baselines.items():
            rows[name] = _baseline_row(name, predicted, results.tasks)
            results.predicted[name] = predicted
    _add_differences(grid, rows, results)
    notes += weak_row_warnings(rows)
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row.scores))
    table = Table(grid, tasks, list(rows.values()), commands, notes, scored_runs)
    notes += table.gain_notes()
    earlier = with_earlier_times(table, inputs.out)
    _write(earlier, inputs.out)
    if grid.bench.batches and results.models:
        say(f"the scores are in {inputs.out / 'compare.md'}; now inference is timed")
        if add_times(table, results.models, results.teacher):
            _write(table, inputs.out)
            return table
        earlier = replace(earlier, notes=list(dict.fromkeys([*earlier.notes, *table.notes])))
        _write(earlier, inputs.out)
    return earlier


def _write(table: Table, out: Path) -> None:
    """Write a table as JSON, Markdown and, if inference was timed, as a plot."""
    write_record(out / TABLE_FILE, table.to_json())
    write_text(out / "compare.md", table.markdown())
    if plot_table(table, out / "compare.png") is None:
        (out / "compare.png").unlink(missing_ok=True)  # an earlier plot


def _collect(row: TableRow, run: PlannedRun, results: _Results) -> None:
    """Add the scores, costs and predictions of a finished run to its row and to the results."""
    by_task: dict[str, list[float]] = {}
    for job in run.scored:
        record = read_run_record(job.out / RUN_FILE)
        for scores in record["scores"].values():
            by_task.setdefault(scores["task"], []).append(scores["primary"])
        _collect_metrics(row, list(record["scores"].values()))
        tasks = read_saved(job.out).tasks
        results.tasks |= {task.name: task for task in tasks}
        for task, splits in read_predictions(job.out / PREDICTIONS, tasks).items():
            results.predicted.setdefault(run.cell, {}).setdefault(task, {})[run.seed] = splits
            results.task_specs.setdefault(task, run.task_spec)
        row.parameters = record["parameters"]["total"]
        row.parameters_without_embeddings = record["parameters"]["without_embeddings"]
        row.kept = _kept_epoch(record["identity"]["settings"])
    for task, values in by_task.items():
        row.scores.setdefault(task, []).append(statistics.fmean(values))
    row.seconds.append(sum(total_of_stages(job.out, "seconds") for job in run.trained))
    row.steps.append(sum(total_of_stages(job.out, "steps") for job in run.trained))
    if run.cell not in results.models:
        results.models[run.cell] = run.scored[0].out
        row.model = digest_model(run.scored[0].out)


def _collect_metrics(row: TableRow, scores: list[dict[str, Any]]) -> None:
    """Add every metric of every split to a row.

    Args:
        scores: one entry per task and split of a run, with the keys "task", "split" and "metrics".
    """
    tasks = [task_scores["task"] for task_scores in scores]
    for task_scores in scores:
        for metric, value in task_scores["metrics"].items():
            name = metric_name(
                task_scores["task"], task_scores["split"], metric, tasks.count(task_scores["task"])
            )
            row.metrics.setdefault(name, []).append(value)


def _kept_epoch(settings: Mapping[str, Any]) -> str:
    """Which epoch's weights the last stage of a run has kept: "best" or "last"."""
    stages = settings.get("stages") or {}
    if settings.get("supervision") == "labels" or settings.get("one_stage") or not stages:
        last_stage = list(stages.values())[-1:]
    else:
        last_stage = [stages[name] for name in settings["run_stages"] or stages][-1:]
    train = settings["train"] | (last_stage[0]["train"] if last_stage else {})
    return str(train["keep"])


def _notes(grid: Grid, rows: Mapping[str, TableRow]) -> list[str]:
    """Notes on the scored weights, on cells with different numbers of steps, and on a single seed."""
    kept_epochs = {row.name: row.kept for row in rows.values() if row.kept}
    best_cells = [name for name, epoch in kept_epochs.items() if epoch == "best"]
    last_cells = [name for name in kept_epochs if name not in best_cells]
    best_epoch = "the epoch with the best `train.metric` on the validation rows"
    notes = []
    for epoch, names in ((best_epoch, best_cells), ("the last epoch", last_cells)):
        cells = "" if len(names) == len(kept_epochs) else f" ({', '.join(names)})"
        notes += [f"The scored weights are those of {epoch}{cells}."] if names else []
    notes += _steps_note(grid, rows)
    if len(grid.seeds) == 1:
        notes.append("There is one seed, so the intervals do not cover the variation between seeds.")
    return notes


def _steps_note(grid: Grid, rows: Mapping[str, TableRow]) -> list[str]:
    """A note if the runs of one seed do not have the same total number of steps in all cells."""
    complete = {name: rows[name].steps for name in grid.cells if rows[name].steps and not rows[name].failed}
    totals = {name: sum(steps) / len(grid.seeds) for name, steps in complete.items()}
    if len(set(totals.values())) < 2:
        return []
    listed = []
    for name, total in totals.items():
        n_runs = len(grid.task_specs_of(name))
        listed.append(f"{name} {total / n_runs:,.0f}" + (f" in each of {n_runs} runs" if n_runs > 1 else ""))
    return [f"The cells trained for different numbers of steps per seed: {', '.join(listed)}."]


def _teacher_row(
    inputs: GridInputs, rows: Mapping[str, TableRow], results: _Results, say: Callable[[str], None]
) -> tuple[dict[str, TableRow], list[str]]:
    """The row of a given teacher, whose predictions are added to the results; or a note why there is none."""
    missing = "The table has no row for the teacher, and no column with shares of its gain: "
    if TEACHER in rows:
        return {}, [f"{missing}a cell is called {TEACHER!r}."]
    try:
        scored = score_given_teacher(inputs, results.tasks, results.task_specs, results.predicted, say)
    except UserError as error:  # the table is still useful
        return {}, [f"{missing}{' '.join(error.problem.split())}."]
    if not scored.predicted:
        return {}, []
    row = _baseline_row(TEACHER, scored.predicted, results.tasks)
    row.parameters = scored.parameters
    row.parameters_without_embeddings = scored.parameters_without_embeddings
    row.model = scored.first.digest if scored.first else None
    results.predicted[TEACHER] = scored.predicted
    results.teacher = scored.first
    return {TEACHER: row}, []


def _baseline_row(name: str, predicted: PredictionsByTask, tasks: Mapping[str, Task]) -> TableRow:
    """The row of a baseline or a given teacher, whose predictions have one seed."""
    row = TableRow(name)
    for task, seeds in predicted.items():
        (splits,) = seeds.values()
        metrics = {split: metric_values(tasks[task], rows) for split, rows in splits.items()}
        row.scores[task] = [statistics.fmean(statistics.fmean(v.values()) for v in metrics.values())]
        scores = [{"task": task, "split": split, "metrics": values} for split, values in metrics.items()]
        _collect_metrics(row, scores)
    return row


def _add_differences(grid: Grid, rows: Mapping[str, TableRow], results: _Results) -> None:
    """Add each row's differences from the reference and from the best constant prediction."""
    samples: dict[str, dict[str, ScoreSamples]] = {}
    for name, task in results.tasks.items():
        scored_rows = [row for row, predicted in results.predicted.items() if name in predicted]
        predictions = [results.predicted[row][name] for row in scored_rows]
        for row, row_samples in zip(
            scored_rows, sample_scores(task, predictions) if predictions else [], strict=True
        ):
            samples.setdefault(row, {})[name] = row_samples
    reference = samples.get(grid.reference_row, {})
    for row, task_samples in samples.items():
        if row != grid.reference_row:
            rows[row].differences = differences_by_task(task_samples, reference)
        rows[row].above_majority = differences_by_task(task_samples, samples.get(CONSTANT, {}))
