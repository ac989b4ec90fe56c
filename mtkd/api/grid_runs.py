"""`mtkd.compare`: run a grid and gather its results in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import Model, RecordedData, Settings, UnlabelledFiles
from mtkd.api.training_request import paths_as_text, saved_path
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import NonNegativeInt, PositiveInt, Seed, checked
from tasks.common.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

    from mtkd.jobs.grid.compare_table import Table
    from mtkd.jobs.grid.grid_plan import PlannedRun


@checked
def compare(
    grid: str | Path,
    *,
    data: RecordedData | Sequence[RecordedData] | None = None,
    out: str | Path | None = None,
    teacher: str | Path | Model | None = None,
    teacher_labels: str | Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    store: str | Path | None = None,
    text: str | Path | None = None,
    encoder: str | Path | None = None,
    corpus: str | Path | None = None,
    without: Sequence[str] = (),
    tasks: Sequence[str] = (),
    seeds: Sequence[Seed] = (),
    epochs: PositiveInt | None = None,
    limit: PositiveInt | None = None,
    unlabelled: UnlabelledFiles | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    eval_limit: PositiveInt | None = None,
    settings: Settings | None = None,
    reference: str | None = None,
    baselines: bool = True,
    bench: bool = True,
    jobs: PositiveInt = 1,
    dry_run: bool = False,
    say: Callable[[str], None] = print,
) -> Table | DataFrame:
    """Run a grid of recipes x settings x tasks x seeds and gather one table: scores, costs and differences.

    Each run is a separate process. Finished runs are not repeated, and a failed run does not stop the others.
    Differences from a reference have paired bootstrap intervals.

    Args:
        grid: a TOML file, or one of `mtkd.list_grids()` (the papers' tables).
        data: "pocket", "hub" or a directory, or several of these.
        out: the output directory; not needed with `dry_run`.
        teacher: a run of `refine`, a model, or a fine-tuned checkpoint of transformers; `{task}` in a path
            stands for the task. It also replaces the teacher that a grid refines.
        teacher_labels: task -> its labels in the order of the outputs of such a checkpoint, if the checkpoint
            does not name them.
        store: a knowledge store to use instead of the teacher; may also contain `{task}`.
        corpus: an augmented corpus for cells that use one; may also contain `{task}`.
        encoder: the pretrained encoder that the grid refines, and the teacher on plain text; by default the
            grid's, or the one that the teacher started from.
        text: plain text for cells that are first trained on it.
        without: cells to leave out.
        tasks, seeds: replace those of the grid ("rte,stsb" is one run on both tasks).
        epochs: epochs of the reference cell, divided among its stages; the other cells train for as many
            steps. They do not apply to the teacher, nor to the runs before (`first`) and after (`then`) a
            cell's own run.
        limit, eval_limit: the maximum number of training and of validation rows per task.
        unlabelled, unlabelled_limit: files of unlabelled rows, and the maximum number of their rows per
            task (see `distill`), for the cells that can learn from them.
        settings: dotted setting -> value, for every cell.
        reference: the cell that the others are compared with, or another row of the table, such as
            "teacher"; by default the grid's, or its first cell.
        baselines: also show the best constant prediction, a linear model on a frozen encoder, and, for pairs
            of texts, the zero-shot cosine (with a fitted threshold for two labels).
        bench: also time the inference of one student of each architecture, after the scores are written. If
            False, times that an earlier call has measured for the same models are kept.
        jobs: the number of runs at the same time; the CPU cores are divided among them.
        dry_run: run nothing, and return the commands. Placeholders such as TEACHER stand for missing inputs.
        say: called with each line of progress, such as the start or failure of a run.

    Returns:
        The table; `out` also holds it as compare.json and compare.md. With `dry_run`, a DataFrame with a row
        for each command, in an order in which they can run, and the columns "cell" (the first that needs
        it), "tasks", "seed", "command" and "finished".

    Raises:
        UserError: there is no such grid, cell or setting; an input that every cell needs is missing; no cell
            can learn from the rows of `unlabelled`; or `out` holds other files than those of a comparison.
    """
    from mtkd.jobs.grid import compare as job

    arguments = dict(
        data=data,
        teacher=teacher,
        teacher_labels=teacher_labels,
        store=store,
        text=text,
        encoder=encoder,
        corpus=corpus,
        without=without,
        tasks=tasks,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        unlabelled=unlabelled,
        unlabelled_limit=unlabelled_limit,
        eval_limit=eval_limit,
        settings=settings,
        reference=reference,
        baselines=baselines,
        bench=bench,
        jobs=jobs,
        say=say,
    )
    if dry_run:
        return _plan_as_frame(str(grid), out, arguments)
    if out is None:
        raise UserError(
            "`out` is missing", expected="a directory", hint="`dry_run=True` returns the commands without it"
        )
    loaded, inputs = plan_grid(grid, out=out, **arguments)
    return job.run_grid(loaded, inputs, say, jobs)


def _plan_as_frame(grid: str, out: str | Path | None, arguments: Mapping[str, Any]) -> DataFrame:
    """The commands of a grid's runs, each with the first cell that needs it; placeholders are explained."""
    from pandas import DataFrame

    from mtkd.jobs.grid.placeholders import placeholder_notes

    planned, hints = plan_dry_run(grid, arguments, out=Path(out or Path(grid).stem), only_grid=True)
    records = {
        job: (run.cell, run.task_spec, run.seed, job.command_line, job.finished)
        for run in reversed(planned)
        for job in run.jobs
    }
    jobs = dict.fromkeys(job for run in planned for job in run.jobs)
    frame = DataFrame(
        [records[job] for job in jobs], columns=["cell", "tasks", "seed", "command", "finished"]
    )
    for note in placeholder_notes(frame["command"], hints, without_out=out is None):
        arguments["say"](note)
    return frame


def plan_dry_run(
    grid: str, arguments: Mapping[str, Any], *, out: Path, only_grid: bool = False
) -> tuple[list[PlannedRun], dict[str, str]]:
    """The runs of a grid, and for each missing input the hint that says how to pass it.

    Args:
        arguments: the arguments of `compare`, except `dry_run`.
        only_grid: whether an input that this grid does not use is an error.
    """
    from mtkd.jobs.grid.grid_checks import check_given_paths, refuse_unused
    from mtkd.jobs.grid.grid_plan import plan_runs
    from mtkd.jobs.grid.placeholders import fill_placeholders

    loaded, inputs = plan_grid(grid, **{**arguments, "out": out})
    check_given_paths(loaded, inputs)
    if only_grid:
        refuse_unused(loaded, inputs)
    inputs, hints = fill_placeholders(loaded, inputs)
    return plan_runs(loaded, inputs), hints


@remote_paths("data", "teacher", "store", "text", "encoder", "corpus", "tasks", "unlabelled", "settings")
def plan_grid(grid: str | Path, **arguments: Any) -> tuple[Any, Any]:
    """Load a grid with the arguments of `compare`; returns the grid and the inputs of its runs."""
    from mtkd.grids import load_grid
    from mtkd.jobs.grid.grid_jobs import GridInputs
    from mtkd.teachers.teacher_names import parse_labels

    changes: dict[str, Any] = {name: list(arguments[name]) for name in ("tasks", "seeds") if arguments[name]}
    changes |= {} if arguments["reference"] is None else {"reference": arguments["reference"]}
    changes |= {} if arguments["baselines"] else {"baselines": False}
    changes |= {} if arguments["bench"] else {"bench": {"batches": []}}
    cells = (arguments["settings"] or {}, arguments["without"])
    has_teacher = bool(arguments["teacher"])
    models = ("teacher", "encoder", "store", "corpus")
    model_names: dict[str, Any] = {
        name: saved_path(name, arguments[name]) if arguments[name] else None for name in models
    }
    loaded = load_grid(str(grid), changes, *cells, has_teacher=has_teacher)
    if loaded.refine and arguments["teacher"]:
        loaded = load_grid(str(grid), changes | {"refine": None}, *cells, has_teacher=has_teacher)
        arguments["say"](
            f"the grid's [refine] is skipped: its cells use the teacher {model_names['teacher']}"
        )
    names = ("limit", "eval_limit", "unlabelled_limit", "epochs")
    numbers: dict[str, Any] = {name: arguments[name] for name in names}
    text = Path(arguments["text"]) if arguments["text"] else None
    data = [] if arguments["data"] is None else arguments["data"]
    data_names = str(data) if isinstance(data, str | Path) else [str(source) for source in data]
    files = paths_as_text(arguments["unlabelled"])
    return loaded, GridInputs(
        data_names,
        out=Path(arguments["out"]),
        text=text,
        unlabelled=files,
        teacher_labels=parse_labels(arguments["teacher_labels"]),
        **numbers,
        **model_names,
    )
