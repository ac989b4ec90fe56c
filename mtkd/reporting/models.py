"""The models that a report shows: runs, grouped by what they belong to."""

from __future__ import annotations

import os
import shlex
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from mtkd.evaluation.differences import Splits
from mtkd.reporting.runs import CONTROL, FINETUNED, ROLES, Run, read_run, run_directories
from mtkd.run_record import RUN_FILE, read_run_record
from tasks.common.errors import MtkdWarning, UserError, did_you_mean, shorten
from tasks.common.records import read_record
from tasks.task import Task

GRID_FILE = "compare.json"
Cost = Annotated[float, Field(ge=0, le=1e12)]  # an axis cannot show every number


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A line of the report: one run, or several that differ in their seed or their tasks.

    Attributes:
        ms: the time of a batch in milliseconds, if it was measured.
    """

    name: str
    role: str
    runs: list[Run]
    ms: float | None = None

    @property
    def tasks(self) -> dict[str, Task]:
        """The scored tasks, by name."""
        return {name: run.tasks[name] for run in self.runs for name in run.by_task("primary")}

    def runs_of(self, task: str) -> dict[int, Run]:
        """Seed -> the run that was scored on a task."""
        return {run.seed: run for run in self.runs if task in run.by_task("primary")}

    def scores(self, key: str = "primary") -> dict[str, float]:
        """The recorded scores by task, averaged over splits and seeds."""
        by_task = {
            name: [run.by_task(key)[name] for run in self.runs_of(name).values()] for name in self.tasks
        }
        return {name: statistics.fmean(values) for name, values in by_task.items()}

    def predictions(self, task: str) -> dict[int, Splits]:
        """Seed -> split -> predictions for a task; empty unless all its runs kept them."""
        runs = self.runs_of(task)
        by_seed = {seed: run.predictions[task] for seed, run in runs.items() if task in run.predictions}
        return by_seed if len(by_seed) == len(runs) else {}

    @property
    def parameters(self) -> dict[str, int]:
        """The number of weights: "total", "embeddings" and "without_embeddings"."""
        parameters: dict[str, int] = self.runs[0].record["parameters"]
        return parameters


@dataclass(frozen=True, eq=False)
class Gathered:
    """The runs and models that a report shows.

    Attributes:
        title: the title of the grid, if all runs belong to one grid.
        models: teachers first, then students, controls and fine-tuned models.
        reference: the model that the others are compared with.
        timed: how the times were measured; None if they were not.
    """

    title: str | None
    runs: list[Run]
    models: list[ReportedModel]
    reference: ReportedModel
    timed: str | None = None

    def first(self, role: str) -> ReportedModel | None:
        """The first scored model of a role."""
        return _first(self.models, role)


def _first(models: Iterable[ReportedModel], role: str) -> ReportedModel | None:
    return next((model for model in models if model.role == role and model.tasks), None)


def gather(paths: Sequence[Path], reference: Path | None = None) -> Gathered:
    """Read all runs in some directories, and group them into models.

    Runs of a cell of `mtkd compare` are one model, and so are runs of `mtkd finetune` in the same directory
    that start from the same model. By default the reference is that of the grid, or the first
    control, or the first model.

    Args:
        paths: run directories, or directories that contain some.
        reference: the directory of a run of the model that the others are compared with.

    Raises:
        UserError: there is no finished run, a run that is named is unfinished, or one cannot be read.
    """
    directories = run_directories(paths)
    grid_files = sorted({file.resolve() for path in paths for file in path.rglob(GRID_FILE)})
    directories = _finished(directories, paths)
    where = shorten(map(str, paths))
    if not directories:
        raise UserError(
            f"no run in {where} is finished",
            hint="run the command of a run (or mtkd compare) again to resume it",
        )
    root = Path(os.path.commonpath([path.parent for path in directories]))
    runs = [read_run(path, path.relative_to(root).as_posix()) for path in directories]
    grids = [_read_grid(file) for file in grid_files]
    alone = len(grids) == 1 and all(path.is_relative_to(grids[0].directory) for path in directories)
    models: list[ReportedModel] = []
    used: set[Path] = set()
    for grid in grids:
        prefix = "" if alone else f"{os.path.relpath(grid.directory, root)}/"
        models_of_cells, mentioned = _cells(grid, runs, prefix)
        models += models_of_cells
        used |= mentioned
    models += _models([run for run in runs if run.path not in used])
    if not models:
        raise UserError(
            f"{where} has no run with scores: `scored_runs` in {GRID_FILE} names none",
            hint="run mtkd compare again; finished runs are not repeated",
        )
    models.sort(key=lambda model: ROLES.index(model.role))
    of_models = {run.path: run for model in models for run in model.runs}
    runs = [*of_models.values(), *(run for run in runs if run.path not in of_models)]
    batch = next((next(iter(ms)) for grid in grids for ms in grid.ms.values() if ms), None)
    timed = f"{batch} rows per batch on a CPU, measured by mtkd compare" if batch else None
    chosen = _reference(models, [grid.reference for grid in grids if alone], reference)
    return Gathered(grids[0].title if alone else None, runs, models, chosen, timed)


def _finished(directories: Sequence[Path], paths: Sequence[Path]) -> list[Path]:
    """Leave out unfinished runs, with a warning, except those that are named in `paths`."""
    named = {path.resolve() for path in paths}
    unfinished = [
        path
        for path in directories
        if path not in named and read_run_record(path / RUN_FILE).get("status") != "finished"
    ]
    for path in unfinished:
        warnings.warn(f"the run in {path} is not finished, so it is left out", MtkdWarning, stacklevel=2)
    return [path for path in directories if path not in unfinished]


def _reference(
    models: list[ReportedModel], grid_references: list[str], directory: Path | None
) -> ReportedModel:
    if directory is None:
        in_grid = next((model for model in models if model.name in grid_references), None)
        return in_grid or _first(models, CONTROL) or models[0]
    for model in models:
        if any(run.path == directory.resolve() for run in model.runs):
            return model
    raise _unknown_reference(models, directory)


def _unknown_reference(models: list[ReportedModel], directory: Path) -> UserError:
    """The error for a reference that is not among the runs; it lists them, and suggests the most similar."""
    paths = {model.name: [_short(run.path) for run in model.runs] for model in models}
    listed = [path for of_model in paths.values() for path in of_model]
    name = str(directory)
    hint = f"for the model {name!r}: `reference={paths[name][0]!r}`" if name in paths else None
    return UserError(
        f"`reference={str(directory)!r}` is not one of the runs of the report"
        + ("" if hint else did_you_mean(name, listed)),
        expected=f"the directory of one of them: {shorten(listed, name)}",
        hint=hint,
    )


def _short(path: Path) -> str:
    """A path relative to the working directory, if it is inside it."""
    here = Path().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


class _ComparedRow(TypedDict):
    name: str
    ms: dict[str, Cost]


class _Compared(TypedDict):
    title: str
    reference: str
    commands: dict[str, list[str]]
    rows: list[_ComparedRow]
    scored_runs: NotRequired[dict[str, list[str]]]


@dataclass(frozen=True)
class _Grid:
    """The contents of a compare.json; `ms`: row -> batch size -> milliseconds.

    Attributes:
        commands: for each cell, its commands: their arguments, and the directory that they write.
        scored_runs: cell -> the directories of its scored runs, relative to `directory`; None in a file
            from an earlier version, which does not record them.
    """

    directory: Path
    title: str
    reference: str
    commands: dict[str, list[tuple[list[str], str]]]
    ms: dict[str, dict[str, float]]
    scored_runs: dict[str, list[str]] | None


def _read_grid(file: Path) -> _Grid:
    hint = "run mtkd compare again; finished runs are not repeated"
    grid = read_record(file, _Compared, hint=hint)
    ms = {row["name"]: row["ms"] for row in grid["rows"]}
    commands = {
        cell: [_arguments(line, file, hint) for line in lines] for cell, lines in grid["commands"].items()
    }
    return _Grid(file.parent, grid["title"], grid["reference"], commands, ms, grid.get("scored_runs"))


def _arguments(line: str, file: Path, hint: str) -> tuple[list[str], str]:
    """The arguments of a command line in a compare.json, and the directory that the command writes."""
    try:
        arguments = shlex.split(line)
        return arguments, arguments[arguments.index("--out") + 1]
    except (ValueError, IndexError) as error:
        raise UserError(f"{file}: {line!r} is not a command with --out", hint=hint) from error


def _cells(grid: _Grid, runs: Iterable[Run], prefix: str) -> tuple[list[ReportedModel], set[Path]]:
    """The models of the cells of a grid, and all runs that its commands mention."""
    inside = {run.path: run for run in runs if run.path.is_relative_to(grid.directory)}
    models, mentioned = [], set()
    for cell, commands in grid.commands.items():
        outs = {out for _, out in commands}
        run_paths = {out: path for out in outs for path in inside if _is_output(out, path, grid.directory)}
        mentioned |= set(run_paths.values())
        scored = [path for path in _scored_runs(grid, cell, run_paths) if path in inside]
        if scored:
            name = prefix + cell
            of_cell = [_run_of_cell(inside[path], name, len(scored) > 1) for path in scored]
            ms = next(iter(grid.ms.get(cell, {}).values()), None)
            models.append(ReportedModel(name, of_cell[0].role, of_cell, ms))
    return models, mentioned


def _scored_runs(grid: _Grid, cell: str, run_paths: Mapping[str, Path]) -> list[Path]:
    """The directories of the runs whose scores a cell has.

    An earlier version did not record them. Then they are the runs that no other command of the cell reads,
    which may include a run whose steps a run of the cell takes.

    Args:
        run_paths: output in a command of the cell -> the directory of this run.
    """
    if grid.scored_runs is not None:
        return sorted(grid.directory / path for path in grid.scored_runs.get(cell, ()))
    inputs = {word for arguments, out in grid.commands[cell] for word in arguments if word != out}
    return sorted(path for out, path in run_paths.items() if out not in inputs)


def _is_output(out: str, path: Path, grid_directory: Path) -> bool:
    """Whether a command's output is a run in the directory of a grid, which may have been moved."""
    return f"/{out}".endswith(f"/{path.relative_to(grid_directory).as_posix()}")


def _run_of_cell(run: Run, cell: str, several: bool) -> Run:
    return replace(run, name=f"{cell}, {' '.join(run.tasks)}, seed {run.seed}" if several else cell)


def _models(runs: Iterable[Run]) -> list[ReportedModel]:
    """One model per run; runs of `finetune` beside each other and from the same model are one."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        group_key = run.role == FINETUNED and (run.path.parent, run.identity["model"], run.seed)
        groups.setdefault(group_key or run.path, []).append(run)
    return [
        ReportedModel(group[0].name, group[0].role, group)
        if len(group) == 1
        else ReportedModel(group[0].name.rpartition("/")[0] or group[0].path.parent.name, FINETUNED, group)
        for group in groups.values()
    ]
