"""The commands that train a cell's model: distill, refine or finetune with its recipe and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.grids import CellStep, Grid
from mtkd.jobs.grid.grid_checks import learns_from_logits, learns_without_labels
from mtkd.jobs.grid.grid_jobs import GridInputs, Job, safe_file_name, setting_options
from mtkd.jobs.grid.prerequisite_runs import encoder_to_refine, teacher_job, text_job
from mtkd.jobs.grid.training_length import (
    epoch_options,
    settings_without_length,
    stage_weights,
    stages_of,
    steps_key,
    task_specs_that_train,
)
from mtkd.recipes import recipe_command
from tasks.task_names import resolve, task_words


@dataclass(frozen=True)
class CellJobs:
    """The commands of a grid's cells for one of the grid's task specifications and one seed.

    Attributes:
        task_spec: a task, or several comma-separated ones that are trained together.
    """

    grid: Grid
    inputs: GridInputs
    task_spec: str
    seed: int

    def earlier(self, name: str) -> tuple[Job, ...]:
        """The runs that a cell's run starts from: the one of its teacher and the one on plain text."""
        return tuple(job for job in (self._teacher_job(), self._text_job(name)) if job)

    def main(self, name: str) -> list[Job]:
        """The runs that train a cell's model, without its `first` and `then` runs."""
        command = recipe_command(self.grid.recipe_of(name))
        return {"distill": self._distill, "refine": self._refine, "finetune": self._finetune}[command](name)

    def _teacher_job(self) -> Job | None:
        return teacher_job(self.grid, self.inputs, self.task_spec, self.seed)

    def _text_job(self, name: str) -> Job | None:
        return text_job(self.grid, self.inputs, name, self.seed)

    def _distill(self, name: str) -> list[Job]:
        grid = self.grid
        inputs = self.inputs
        task_spec = self.task_spec
        refined, from_text = self._teacher_job(), self._text_job(name)
        argv = ["distill", grid.recipe_of(name), "--tasks", task_spec]
        for option, path in (
            ("--teacher", str(refined.out) if refined else inputs.teacher),
            ("--store", inputs.store),
            ("--corpus", inputs.corpus_of(grid.cells[name])),
        ):
            argv += [option, path.replace("{task}", task_spec)] if path else []
        argv += inputs.teacher_labels_options(task_spec) if learns_from_logits(grid, name) else []
        argv += self._common_options(name)
        sets_init = "student.transformer.init" in grid.sets_of(name)
        argv += ["--init", str(from_text.out)] if from_text and not sets_init else []
        unlabelled = inputs.unlabelled_options(task_spec)
        argv += unlabelled if unlabelled and learns_without_labels(grid, name) else []
        return [self._job(name, argv, self.earlier(name))]

    def _refine(self, name: str) -> list[Job]:
        argv = ["refine", "--recipe", self.grid.recipe_of(name), "--tasks", self.task_spec]
        argv += ["--encoder", encoder_to_refine(self.grid, self.inputs, self.task_spec)]
        return [self._job(name, [*argv, *self._common_options(name)], ())]

    def _finetune(self, name: str) -> list[Job]:
        earlier, teacher = self.earlier(name), self.inputs.teacher
        assert earlier or teacher, "`check_inputs` must be called first"
        model = str(earlier[-1].out) if earlier else str(teacher).replace("{task}", self.task_spec)
        step = CellStep(
            recipe=self.grid.recipe_of(name), set=settings_without_length(self.grid, self.inputs, name)
        )
        steps_of = self._steps_of(name)
        options = ["--seed", str(self.seed), *self.inputs.data_options(self.grid.cells[name].limit)]
        options += [] if steps_of else epoch_options(self.grid, self.inputs, name, self.task_spec)
        needs = (*earlier, *steps_of)
        return finetune_jobs(step, self.task_spec, model, options, self._directory(name), needs, steps_of)

    def _job(self, name: str, argv: Sequence[str], earlier: tuple[Job, ...]) -> Job:
        """The job of a command that trains one model on all tasks, with its number of epochs or steps."""
        out, steps_of = self._directory(name), self._steps_of(name)
        if not steps_of:
            length = epoch_options(self.grid, self.inputs, name, self.task_spec)
            return Job((*argv, *length), out, earlier)
        stages = stages_of(self.grid, name, self.task_spec)
        weights = dict(zip((stage.name for stage in stages), stage_weights(stages), strict=True))
        return Job(tuple(argv), out, (*earlier, *steps_of), steps_of, _task_names(self.task_spec), weights)

    def _directory(self, name: str) -> Path:
        return (
            self.inputs.out / "runs" / safe_file_name(name) / f"{safe_file_name(self.task_spec)}-{self.seed}"
        )

    def _common_options(self, name: str) -> list[str]:
        options = ["--seed", str(self.seed), *self.inputs.data_options(self.grid.cells[name].limit)]
        options += setting_options(settings_without_length(self.grid, self.inputs, name))
        return [*options, "--out", str(self._directory(name))]

    def _steps_of(self, name: str) -> tuple[Job, ...]:
        """The runs whose steps a cell's run takes; empty if it has a length of its own.

        If `epochs` is given, these are the reference's runs on the tasks, unless the same number of epochs
        means the same number of steps for the cell.
        """
        if other := self.grid.cells[name].steps_of:
            return tuple(self.main(other)[:1])
        if self.inputs.epochs is None:
            return ()
        reference = self._reference
        if name == reference or self._steps_key(name) == self._steps_key(reference):
            return ()
        task_specs = task_specs_that_train(self.grid.task_specs_of(reference), self.task_spec)
        jobs = [CellJobs(self.grid, self.inputs, task_spec, self.seed) for task_spec in task_specs]
        return tuple(job for cells in jobs for job in cells.main(reference))

    def _steps_key(self, name: str) -> tuple[Any, ...]:
        return steps_key(self.grid, self.inputs, name, self.task_spec)

    @property
    def _reference(self) -> str:
        """The cell that trains for `epochs`: the reference, or the one whose steps the reference takes."""
        cells, row = self.grid.cells, self.grid.reference_row
        reference = row if row in cells else next(iter(cells))
        return cells[reference].steps_of or reference


def finetune_jobs(
    step: CellStep,
    task_spec: str,
    model: str,
    options: Sequence[str],
    prefix: Path,
    needs: tuple[Job, ...],
    steps_of: tuple[Job, ...] = (),
) -> list[Job]:
    """The jobs that fine-tune a model, one for each task.

    Args:
        step: the recipe and its settings.
        model: the directory of the model.
        options: further options of the commands.
        prefix: the run directories are `prefix`-TASK.
        needs, steps_of: see `Job`.
    """
    jobs = []
    for task in task_words(task_spec):
        out = prefix.with_name(f"{prefix.name}-{safe_file_name(task)}")
        argv = ["finetune", "--model", model, "--task", task, "--recipe", step.recipe]
        argv += [*options, *setting_options(step.set), "--out", str(out)]
        jobs.append(Job(tuple(argv), out, needs, steps_of, _task_names(task)))
    return jobs


def _task_names(task_spec: str) -> tuple[str, ...]:
    return tuple(task.name for task in resolve(task_spec))
