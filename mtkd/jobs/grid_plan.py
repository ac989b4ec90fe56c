"""The commands of a grid: one per run, with the runs that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.grids import TEACHER, Cell, CellStep, Grid
from mtkd.jobs.grid_checks import check_inputs, learns_without_labels
from mtkd.jobs.grid_jobs import GridInputs, Job, file_name, setting_words
from mtkd.models.saved_model import is_saved_model, read_saved
from mtkd.recipes import load_settings, recipe_command
from mtkd.settings import DistillSettings
from tasks.errors import UserError
from tasks.files import digest_bytes
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
            planned = ((spec, seed) for seed in seeds for spec in self.grid.specs)
            teachers = {job.out: (*run, job) for run in planned for job in self._teacher(*run)}
            for spec, seed, job in teachers.values():
                yield PlannedRun(TEACHER, self.grid.refine.tasks or spec, seed, (job,), (job,), (job,))
        for seed in self.grid.seeds:
            for name in self.grid.cells:
                for spec in self.grid.specs_of(name):
                    yield self._run(name, spec, seed)

    def _run(self, name: str, spec: str, seed: int) -> PlannedRun:
        cell = self.grid.cells[name]
        teacher = self._teacher(spec, seed)
        first = _text_job(self.grid, cell, self.inputs, seed)
        before = (*teacher, *([first] if first else []))
        command = recipe_command(self.grid.recipe_of(name))
        main = {"distill": self._distill, "refine": self._refine, "finetune": self._finetune}[command](
            name, spec, seed, before
        )
        needed = [job for last in main if last.steps_of for job in (*last.steps_of.needs, last.steps_of)]
        after: list[Job] = []
        if cell.then:
            out = main[0].out
            needs = (*main[0].needs, main[0])
            label = out.with_name(f"{out.name}-then")
            tasks = cell.then.tasks or spec
            after = self._finetuned(cell.then, tasks, seed, str(out), needs, label, self.inputs.rows())
        jobs = dict.fromkeys((*before, *needed, *main, *after))
        return PlannedRun(name, spec, seed, tuple(jobs), tuple(after or main), (*main, *after))

    def _out(self, name: str, spec: str, seed: int) -> Path:
        return self.inputs.out / "runs" / file_name(name) / f"{file_name(spec)}-{seed}"

    def _teacher(self, spec: str, seed: int) -> tuple[Job, ...]:
        """The run that refines the teacher of the runs with this seed; empty if the grid refines none."""
        refine = self.grid.refine
        if refine is None or self.inputs.store:
            return ()
        tasks = refine.tasks or spec
        words = [
            "refine",
            *self.inputs.rows(),
            "--tasks",
            tasks,
            "--encoder",
            encoder_to_refine(self.grid, self.inputs, spec),
        ]
        out = self.inputs.out / "teacher" / file_name(tasks)
        if refine.seed == "each":
            out = out.with_name(f"{out.name}-{seed}")
        else:
            seed = refine.seed
        words += ["--recipe", refine.recipe, "--seed", str(seed), *setting_words(refine.set)]
        return (Job((*words, "--out", str(out)), out),)

    def _common(self, name: str, seed: int, out: Path) -> list[str]:
        words = ["--seed", str(seed), *self.inputs.rows(self.grid.cells[name].limit)]
        return [*words, *setting_words(self._sets(name)), "--out", str(out)]

    def _sets(self, name: str) -> dict[str, Any]:
        """The settings of a cell, without those of its length if that is given otherwise."""
        sets, given = self.grid.sets_of(name), self.inputs.epochs or self.grid.cells[name].steps_of
        return {key: value for key, value in sets.items() if not (given and _LENGTH.search(key))}

    def _distill(self, name: str, spec: str, seed: int, before: tuple[Job, ...]) -> list[Job]:
        grid, inputs, cell = self.grid, self.inputs, self.grid.cells[name]
        out = self._out(name, spec, seed)
        teacher = self._teacher(spec, seed)
        words = ["distill", grid.recipe_of(name), "--tasks", spec]
        corpus = inputs.corpus if cell.corpus else None
        taught = str(teacher[0].out) if teacher else inputs.teacher
        for option, path in (("--teacher", taught), ("--store", inputs.store), ("--corpus", corpus)):
            words += [option, path.replace("{task}", spec)] if path else []
        words += self._common(name, seed, out)
        first = before[len(teacher) :]
        words += ["--init", str(first[0].out)] if first else []
        more = inputs.unlabelled_words(spec)
        words += more if more and learns_without_labels(grid, name) else []
        other = None
        if cell.steps_of:
            (other,) = self._run(cell.steps_of, spec, seed).trained[:1]
        else:
            words += self._epochs(name, spec)
        return [Job(tuple(words), out, (*before, *([other] if other else [])), other)]

    def _refine(self, name: str, spec: str, seed: int, before: tuple[Job, ...]) -> list[Job]:
        out = self._out(name, spec, seed)
        words = ["refine", "--recipe", self.grid.recipe_of(name), "--tasks", spec]
        words += [
            "--encoder",
            encoder_to_refine(self.grid, self.inputs, spec),
            *self._common(name, seed, out),
            *self._epochs(name, spec),
        ]
        return [Job(tuple(words), out)]

    def _finetune(self, name: str, spec: str, seed: int, before: tuple[Job, ...]) -> list[Job]:
        model = str(before[-1].out) if before else (self.inputs.teacher or "").replace("{task}", spec)
        if not model:
            raise UserError(
                f"the cell {name!r} fine-tunes the teacher, but none is given", hint="pass `teacher=DIR`"
            )
        step = CellStep(recipe=self.grid.recipe_of(name), set=self._sets(name))
        more = [*self.inputs.rows(self.grid.cells[name].limit), *self._epochs(name, spec)]
        return self._finetuned(step, spec, seed, model, before, self._out(name, spec, seed), more)

    def _finetuned(
        self,
        step: CellStep,
        spec: str,
        seed: int,
        model: str,
        needs: tuple[Job, ...],
        label: Path,
        more: Sequence[str],
    ) -> list[Job]:
        """A job for each task, in directories whose names start with that of `label`."""
        found = []
        for task in task_words(spec):
            out = label.with_name(f"{label.name}-{file_name(task)}")
            words = ["finetune", "--model", model, "--task", task, "--recipe", step.recipe]
            words += ["--seed", str(seed), *more, *setting_words(step.set)]
            found.append(Job((*words, "--out", str(out)), out, needs))
        return found

    def _epochs(self, name: str, spec: str) -> list[str]:
        """The words that make the stages of a cell's run last `epochs` epochs together."""
        epochs, recipe = self.inputs.epochs, self.grid.recipe_of(name)
        if epochs is None:
            return []
        command = recipe_command(recipe)
        settings = load_settings(recipe, command, self.grid.sets_of(name), spec)
        stages = settings.resolved_stages() if isinstance(settings, DistillSettings) else []
        if len(stages) < 2:
            return ["--epochs", str(epochs)]
        if epochs < len(stages):
            raise UserError(
                f"`epochs={epochs}` is less than one epoch for each stage of the cell {name!r}",
                expected=f"{len(stages)} or more",
            )
        words = []
        lengths = [part.train.epochs for part in stages]
        weights = [1 if "auto" in lengths else int(length) for length in lengths]
        for part, share in zip(stages, _shares(weights, epochs), strict=True):
            if part.train.steps is not None:
                words += ["--set", f"stages.{part.name}.train.steps=none"]
            words += ["--set", f"stages.{part.name}.train.epochs={share}"]
        return words


def encoder_to_refine(grid: Grid, inputs: GridInputs, spec: str) -> str:
    """The pretrained encoder that becomes the teacher, or that a cell with a recipe for refining trains.

    Raises:
        UserError: none is given.
    """
    name = _encoder(grid, inputs)
    if name is None:
        raise UserError("the grid refines an encoder, but none is given", hint="pass `encoder=NAME`")
    return name.replace("{task}", spec)


def _encoder(grid: Grid, inputs: GridInputs) -> str | None:
    """The pretrained encoder that is given; else the grid's, or the one that the teacher started from."""
    if inputs.encoder or grid.refine:
        return inputs.encoder or (grid.refine.encoder if grid.refine else None)
    teacher = inputs.teacher
    if teacher and is_saved_model(Path(teacher)):
        return read_saved(Path(teacher)).info.base or teacher
    return teacher


def _shares(weights: Sequence[int], number: int) -> list[int]:
    """`number` as a sum of whole parts in proportion to the weights, each at least 1."""
    exact = [weight / sum(weights) * number for weight in weights]
    parts = [max(1, int(part)) for part in exact]
    while sum(parts) != number:
        step = 1 if sum(parts) < number else -1
        able = [i for i in range(len(parts)) if parts[i] + step >= 1]
        parts[max(able, key=lambda i: step * (exact[i] - parts[i]))] += step
    return parts


def task_words(spec: str) -> list[str]:
    """The single tasks of an entry of the grid's tasks; paths of task files stay paths."""
    words = [word.strip() for word in spec.split(",") if word.strip()]
    named = [[word] if word.endswith(".toml") else [task.name for task in resolve(word)] for word in words]
    return [name for names in named for name in names]


def _text_job(grid: Grid, cell: Cell, inputs: GridInputs, seed: int) -> Job | None:
    """The run on plain text that a cell starts from; cells with the same settings share it."""
    if cell.first is None:
        return None
    if inputs.text is None:
        raise UserError("this grid starts students from plain text", hint="pass `text=FILE` with plain text")
    encoder = _encoder(grid, inputs)
    if encoder is None:
        raise UserError(
            "this grid starts students from plain text", hint="pass their teacher as `encoder=NAME`"
        )
    words = ["distill", cell.first.recipe, "--text", str(inputs.text), "--teacher", encoder]
    words += ["--seed", str(seed), *setting_words(cell.first.set)]
    out = inputs.out / "first" / f"{Path(cell.first.recipe).stem}-{digest_bytes(*words)[:12]}"
    return Job((*words, "--out", str(out)), out)
