"""The plan of a grid: all its runs, and the commands of each in an order in which they can run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mtkd.grids import TEACHER, Grid
from mtkd.jobs.grid.cell_jobs import CellJobs, finetune_jobs
from mtkd.jobs.grid.grid_checks import check_inputs
from mtkd.jobs.grid.grid_jobs import GridInputs, Job
from mtkd.jobs.grid.prerequisite_runs import teacher_job


@dataclass(frozen=True)
class PlannedRun:
    """One cell, trained for one of the grid's task specifications with one seed.

    Attributes:
        task_spec: a task, or several comma-separated ones that are trained together.
        jobs: the commands, each after those that it needs.
        scored: those of them whose scores are the cell's scores.
        trained: those whose steps and seconds are the cell's training cost.
    """

    cell: str
    task_spec: str
    seed: int
    jobs: tuple[Job, ...]
    scored: tuple[Job, ...]
    trained: tuple[Job, ...]

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return f"{self.cell}, {self.task_spec}, seed {self.seed}"


def plan_runs(grid: Grid, inputs: GridInputs) -> list[PlannedRun]:
    """All runs of a grid: the teachers that it refines first, then seed by seed and cell by cell.

    Raises:
        UserError: a cell needs an input that is not given (see `check_inputs`), or `epochs` is too small.
    """
    check_inputs(grid, inputs)
    runs = _teacher_runs(grid, inputs)
    for seed in grid.seeds:
        for name in grid.cells:
            runs += [_cell_run(grid, inputs, name, task_spec, seed) for task_spec in grid.task_specs_of(name)]
    return runs


def _teacher_runs(grid: Grid, inputs: GridInputs) -> list[PlannedRun]:
    """The runs that refine the grid's teachers; none if a teacher or store is given instead."""
    if grid.refine is None:
        return []
    runs = {}
    for seed in grid.seeds if grid.refine.seed == "each" else [grid.refine.seed]:
        for task_spec in grid.task_specs:
            if job := teacher_job(grid, inputs, task_spec, seed):
                tasks = grid.refine.tasks or task_spec
                runs[job.out] = PlannedRun(TEACHER, tasks, seed, (job,), (job,), (job,))
    return list(runs.values())


def _cell_run(grid: Grid, inputs: GridInputs, name: str, task_spec: str, seed: int) -> PlannedRun:
    jobs = CellJobs(grid, inputs, task_spec, seed)
    earlier = jobs.earlier(name)
    main = jobs.main(name)
    then = grid.cells[name].then
    needed = [job for other in main for source in other.steps_of for job in _with_needs(source)]
    later: list[Job] = []
    if then:
        model = main[0].out
        prefix = model.with_name(f"{model.name}-then")
        options, needs = ["--seed", str(seed), *inputs.data_options()], (*main[0].needs, main[0])
        later = finetune_jobs(then, then.tasks or task_spec, str(model), options, prefix, needs)
    all_jobs = tuple(dict.fromkeys((*earlier, *needed, *main, *later)))
    return PlannedRun(name, task_spec, seed, all_jobs, tuple(later or main), (*main, *later))


def _with_needs(job: Job) -> Iterator[Job]:
    """The jobs that a job needs, directly or not, and then the job itself."""
    for other in job.needs:
        yield from _with_needs(other)
    yield job
