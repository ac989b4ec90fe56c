"""The commands of a grid: one per run, with the runs that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.grids import TEACHER, CellStep, Grid
from mtkd.jobs.grid.grid_checks import check_inputs, learns_from_logits, learns_without_labels
from mtkd.jobs.grid.grid_jobs import GridInputs, Job, apportion, file_name, setting_words
from mtkd.models.saved_model import is_saved_model, read_saved
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings, Stage
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_bytes
from tasks.task_names import resolve

_LENGTH = re.compile(r"(^|\.)train\.(epochs|steps)$")


@dataclass(frozen=True)
class PlannedRun:
    """One cell, trained on one entry of the grid's tasks with one seed.

    Attributes:
        jobs: the commands, in an order in which they can run.
        scored: those of them whose scores are the cell's.
        trained: those whose steps and seconds count as the cell's own.
    """

    cell: str
    spec: str
    seed: int
    jobs: tuple[Job, ...]
    scored: tuple[Job, ...]
    trained: tuple[Job, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.cell}, {self.spec}, seed {self.seed}"


def plan_runs(grid: Grid, inputs: GridInputs) -> list[PlannedRun]:
    """All runs of a grid: the teachers that it refines first, then seed by seed and cell by cell.

    Raises:
        UserError: a cell needs plain text, a corpus or a teacher, and none is given; or `epochs` is
            too small.
    """
    return list(_Planner(grid, inputs).runs())


class _Planner:
    def __init__(self, grid: Grid, inputs: GridInputs):
        self.grid, self.inputs = grid, inputs
        check_inputs(grid, inputs)

    def runs(self) -> Iterator[PlannedRun]:
        if self.grid.refine and not self.inputs.store:
            seeds = self.grid.seeds if self.grid.refine.seed == "each" else [self.grid.refine.seed]
            planned = ((task_spec, seed) for seed in seeds for task_spec in self.grid.specs)
            teachers = {job.out: (*run, job) for run in planned for job in self._teacher_jobs(*run)}
            for task_spec, seed, job in teachers.values():
                yield PlannedRun(TEACHER, self.grid.refine.tasks or task_spec, seed, (job,), (job,), (job,))
        for seed in self.grid.seeds:
            for name in self.grid.cells:
                for task_spec in self.grid.specs_of(name):
                    yield self._run(name, task_spec, seed)

    def _run(self, name: str, task_spec: str, seed: int) -> PlannedRun:
        cell = self.grid.cells[name]
        earlier, main = self._earlier(name, task_spec, seed), self._main(name, task_spec, seed)
        needed = [job for other in main for source in other.steps_of for job in _with_needs(source)]
        later: list[Job] = []
        if cell.then:
            out = main[0].out
            needs = (*main[0].needs, main[0])
            label = out.with_name(f"{out.name}-then")
            tasks = cell.then.tasks or task_spec
            later = self._finetune_jobs(cell.then, tasks, seed, str(out), needs, label, self.inputs.rows())
        jobs = dict.fromkeys((*earlier, *needed, *main, *later))
        return PlannedRun(name, task_spec, seed, tuple(jobs), tuple(later or main), (*main, *later))

    def _earlier(self, name: str, task_spec: str, seed: int) -> tuple[Job, ...]:
        """The runs that a cell's run starts from: its teacher's and the one on plain text."""
        text_job = _text_job(self.grid, name, self.inputs, seed)
        return (*self._teacher_jobs(task_spec, seed), *([text_job] if text_job else []))

    def _main(self, name: str, task_spec: str, seed: int) -> list[Job]:
        """The runs that train a cell's model, without those before (`first`) and after (`then`)."""
        command = recipe_command(self.grid.recipe_of(name))
        plan_main = {"distill": self._distill, "refine": self._refine, "finetune": self._finetune}[command]
        return plan_main(name, task_spec, seed, self._earlier(name, task_spec, seed))

    def _steps_of(self, name: str, task_spec: str, seed: int) -> tuple[Job, ...]:
        """The runs whose steps a cell's run takes; empty if it has a length of its own.

        With `epochs`, these are the runs of the reference that train the tasks, unless as many epochs of the
        cell's rows are as many steps.
        """
        if other := self.grid.cells[name].steps_of:
            return tuple(self._main(other, task_spec, seed)[:1])
        if self.inputs.epochs is None:
            return ()
        reference = self.grid.reference_row if self.grid.reference_row in self.grid.cells else None
        reference = reference or next(iter(self.grid.cells))
        reference = self.grid.cells[reference].steps_of or reference
        task_specs = self._covering(self.grid.specs_of(reference), task_spec)
        if name == reference or self._epoch_key(name, task_spec) == self._epoch_key(reference, task_spec):
            return ()
        return tuple(job for spec in task_specs for job in self._main(reference, spec, seed))

    @staticmethod
    def _covering(specs: Sequence[str], task_spec: str) -> list[str]:
        """The entries of tasks that train the tasks of another; empty if they do not train each once."""
        if task_spec in specs:
            return [task_spec]
        wanted = {task.name for task in resolve(task_spec)}
        trained = {spec: [task.name for task in resolve(spec)] for spec in specs}
        found = [task for tasks in trained.values() for task in tasks if task in wanted]
        return [spec for spec, tasks in trained.items() if wanted & {*tasks}] if {*found} == wanted else []

    def _epoch_key(self, name: str, task_spec: str) -> tuple[Any, ...]:
        """Cells with the same key train for the same number of steps in as many epochs of the same tasks."""
        cell, command = self.grid.cells[name], recipe_command(self.grid.recipe_of(name))
        settings = load_settings(self.grid.recipe_of(name), command, self.grid.sets_of(name), task_spec)
        stages: list[Any] = [settings]
        if isinstance(settings, DistillSettings):
            stages = [*settings.resolved_stages()]
        trains = [
            (
                None if stage.train.batch_tokens else stage.train.batch_size,
                stage.train.batch_tokens,
                stage.train.steps_per_epoch,
                stage.train.unlabelled_fraction,
                stage.train.min_confidence,
            )
            for stage in stages
        ]
        lengths: list[Any] = [trains[0]] if len(set(trains)) == 1 else [*trains, _weights(stages)]
        spans = any(task.kind == "span" for task in resolve(task_spec))
        if spans or any(stage.train.batch_tokens for stage in stages):  # tokens count, too
            reader = getattr(settings, "student", settings)
            lengths += [getattr(reader, key, None) for key in ("max_length", "stride", "vocabulary")]
        rows = (cell.limit or self.inputs.limit, self._corpus(name), learns_without_labels(self.grid, name))
        return (*rows, repr(lengths))

    def _corpus(self, name: str) -> str | None:
        corpus = self.grid.cells[name].corpus
        return corpus if isinstance(corpus, str) else self.inputs.corpus if corpus else None

    def _directory(self, name: str, task_spec: str, seed: int) -> Path:
        return self.inputs.out / "runs" / file_name(name) / f"{file_name(task_spec)}-{seed}"

    def _teacher_jobs(self, task_spec: str, seed: int) -> tuple[Job, ...]:
        """The run that refines the teacher of the runs with this seed; empty if the grid refines none."""
        refine = self.grid.refine
        if refine is None or self.inputs.store:
            return ()
        tasks = refine.tasks or task_spec
        argv = [
            "refine",
            *self.inputs.rows(),
            "--tasks",
            tasks,
            "--encoder",
            encoder_to_refine(self.grid, self.inputs, task_spec),
        ]
        out = self.inputs.out / "teacher" / file_name(tasks)
        if refine.seed == "each":
            out = out.with_name(f"{out.name}-{seed}")
        else:
            seed = refine.seed
        argv += ["--recipe", refine.recipe, "--seed", str(seed), *setting_words(refine.set)]
        return (Job((*argv, "--out", str(out)), out),)

    def _common_options(self, name: str, seed: int, out: Path) -> list[str]:
        options = ["--seed", str(seed), *self.inputs.rows(self.grid.cells[name].limit)]
        return [*options, *setting_words(self._settings(name)), "--out", str(out)]

    def _settings(self, name: str) -> dict[str, Any]:
        """The settings of a cell, without those of its length if that is given otherwise."""
        settings = self.grid.sets_of(name)
        if not (self.inputs.epochs or self.grid.cells[name].steps_of):
            return dict(settings)
        return {key: value for key, value in settings.items() if not _LENGTH.search(key)}

    def _distill(self, name: str, task_spec: str, seed: int, earlier: tuple[Job, ...]) -> list[Job]:
        grid, inputs = self.grid, self.inputs
        out = self._directory(name, task_spec, seed)
        teacher_jobs = self._teacher_jobs(task_spec, seed)
        argv = ["distill", grid.recipe_of(name), "--tasks", task_spec]
        teacher = str(teacher_jobs[0].out) if teacher_jobs else inputs.teacher
        for option, path in (
            ("--teacher", teacher),
            ("--store", inputs.store),
            ("--corpus", self._corpus(name)),
        ):
            argv += [option, path.replace("{task}", task_spec)] if path else []
        argv += inputs.teacher_labels_words(task_spec) if learns_from_logits(grid, name) else []
        argv += self._common_options(name, seed, out)
        text_jobs = earlier[len(teacher_jobs) :]
        argv += ["--init", str(text_jobs[0].out)] if text_jobs else []
        unlabelled = inputs.unlabelled_words(task_spec)
        argv += unlabelled if unlabelled and learns_without_labels(grid, name) else []
        if sources := self._steps_of(name, task_spec, seed):
            stages = self._stages(name, task_spec)
            weights = dict(zip((stage.name for stage in stages), _weights(stages), strict=True))
            return [Job(tuple(argv), out, (*earlier, *sources), sources, _names(task_spec), weights)]
        return [Job((*argv, *self._epoch_options(name, task_spec)), out, earlier)]

    def _refine(self, name: str, task_spec: str, seed: int, earlier: tuple[Job, ...]) -> list[Job]:
        out = self._directory(name, task_spec, seed)
        argv = ["refine", "--recipe", self.grid.recipe_of(name), "--tasks", task_spec]
        argv += [
            "--encoder",
            encoder_to_refine(self.grid, self.inputs, task_spec),
            *self._common_options(name, seed, out),
        ]
        if sources := self._steps_of(name, task_spec, seed):
            return [Job(tuple(argv), out, sources, sources, _names(task_spec))]
        return [Job((*argv, *self._epoch_options(name, task_spec)), out)]

    def _finetune(self, name: str, task_spec: str, seed: int, earlier: tuple[Job, ...]) -> list[Job]:
        model = str(earlier[-1].out) if earlier else (self.inputs.teacher or "").replace("{task}", task_spec)
        if not model:
            raise UserError(
                f"the cell {name!r} fine-tunes the teacher, but none is given", hint="pass `teacher=DIR`"
            )
        step = CellStep(recipe=self.grid.recipe_of(name), set=self._settings(name))
        sources = self._steps_of(name, task_spec, seed)
        extra_options = self.inputs.rows(self.grid.cells[name].limit)
        extra_options += [] if sources else self._epoch_options(name, task_spec)
        label = self._directory(name, task_spec, seed)
        needs = (*earlier, *sources)
        return self._finetune_jobs(step, task_spec, seed, model, needs, label, extra_options, sources)

    def _finetune_jobs(
        self,
        step: CellStep,
        task_spec: str,
        seed: int,
        model: str,
        needs: tuple[Job, ...],
        label: Path,
        extra_options: Sequence[str],
        steps_of: tuple[Job, ...] = (),
    ) -> list[Job]:
        """A job for each task, in directories whose names start with that of `label`."""
        jobs = []
        for task in task_words(task_spec):
            out = label.with_name(f"{label.name}-{file_name(task)}")
            argv = ["finetune", "--model", model, "--task", task, "--recipe", step.recipe]
            argv += ["--seed", str(seed), *extra_options, *setting_words(step.set)]
            jobs.append(Job((*argv, "--out", str(out)), out, needs, steps_of, _names(task)))
        return jobs

    def _epoch_options(self, name: str, task_spec: str) -> list[str]:
        """The options that make the stages of a cell's run last `epochs` epochs together."""
        epochs = self.inputs.epochs
        if epochs is None:
            return []
        stages = self._stages(name, task_spec)
        if len(stages) < 2:
            return ["--epochs", str(epochs)]
        if epochs < len(stages):
            raise UserError(
                f"`epochs={epochs}` is less than one epoch for each stage of the cell {name!r}",
                expected=f"{len(stages)} or more",
            )
        options = []
        for stage, share in zip(stages, apportion(_weights(stages), epochs), strict=True):
            if stage.train.steps is not None:
                options += ["--set", f"stages.{stage.name}.train.steps=none"]
            options += ["--set", f"stages.{stage.name}.train.epochs={share}"]
        return options

    def _stages(self, name: str, task_spec: str) -> list[Stage]:
        """The stages of a cell that distils, before `one_stage` merges them; of other cells none."""
        recipe = self.grid.recipe_of(name)
        settings = load_settings(recipe, recipe_command(recipe), self.grid.sets_of(name), task_spec)
        if not isinstance(settings, DistillSettings):
            return []
        return settings.model_copy(update={"one_stage": False}).resolved_stages()


def _with_needs(job: Job) -> Iterator[Job]:
    """A job after all jobs that it needs."""
    for other in job.needs:
        yield from _with_needs(other)
    yield job


def _names(task_spec: str) -> tuple[str, ...]:
    return tuple(task.name for task in resolve(task_spec))


def _weights(stages: Sequence[Stage]) -> list[int]:
    """The proportions in which stages divide epochs or steps."""
    lengths = [stage.train.epochs for stage in stages]
    return [1 if "auto" in lengths else int(length) for length in lengths]


def encoder_to_refine(grid: Grid, inputs: GridInputs, task_spec: str) -> str:
    """The pretrained encoder that becomes the teacher, or that a cell with a recipe for refining trains.

    Raises:
        UserError: none is given.
    """
    name = _encoder(grid, inputs)
    if name is None:
        raise UserError("the grid refines an encoder, but none is given", hint="pass `encoder=NAME`")
    return name.replace("{task}", task_spec)


def _encoder(grid: Grid, inputs: GridInputs) -> str | None:
    """The pretrained encoder that is given; else the grid's, or the one that the teacher started from."""
    if inputs.encoder or grid.refine:
        return inputs.encoder or (grid.refine.encoder if grid.refine else None)
    teacher = inputs.teacher
    if teacher and is_saved_model(Path(teacher)):
        return read_saved(Path(teacher)).info.base or teacher
    return teacher


def task_words(spec: str) -> list[str]:
    """The single tasks of an entry of the grid's tasks; paths of task files stay paths."""
    names: list[str] = []
    for entry in filter(None, map(str.strip, spec.split(","))):
        names += [entry] if entry.endswith(".toml") else [task.name for task in resolve(entry)]
    return names


def _text_job(grid: Grid, name: str, inputs: GridInputs, seed: int) -> Job | None:
    """The run on plain text that a cell starts from; cells with the same settings share it."""
    first = grid.first_of(name)
    if first is None:
        return None
    if inputs.text is None:
        raise UserError("this grid starts students from plain text", hint="pass `text=FILE` with plain text")
    encoder = _encoder(grid, inputs)
    if encoder is None:
        raise UserError(
            "this grid starts students from plain text", hint="pass their teacher as `encoder=NAME`"
        )
    argv = ["distill", first.recipe, "--text", str(inputs.text), "--teacher", encoder]
    argv += ["--seed", str(seed), *setting_words(first.set)]
    out = inputs.out / "first" / f"{Path(first.recipe).stem}-{digest_bytes(*argv)[:12]}"
    return Job((*argv, "--out", str(out)), out)
