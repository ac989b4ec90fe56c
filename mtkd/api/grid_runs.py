"""`mtkd.compare`: a grid of runs as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import RecordedData, Settings, UnlabelledFiles
from mtkd.api.training_request import paths_as_text
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import NonNegativeInt, PositiveInt, Seed, checked

if TYPE_CHECKING:
    from mtkd.jobs.grid.compare_table import Table


@checked
def compare(
    grid: str | Path,
    *,
    data: RecordedData | Sequence[RecordedData] | None = None,
    out: str | Path,
    teacher: str | Path | None = None,
    teacher_labels: str | Mapping[str, Sequence[str]] | Sequence[str] | None = None,
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
    jobs: PositiveInt = 1,
    say: Callable[[str], None] = print,
) -> Table:
    """Run a grid of recipes x settings x tasks x seeds and gather one table: scores, costs and differences.

    Each run is a process of its own; finished runs are not repeated, and a failed run does
    not stop the others. Each row's differences from a reference have paired bootstrap intervals.

    Args:
        grid: a TOML file, or one of `mtkd.list_grids()` (the papers' tables).
        data: "pocket", "hub" or a directory, or several of these.
        teacher: a run of `refine`, or a fine-tuned checkpoint of transformers; `{task}` in it stands for the
            task. It also replaces the teacher that a grid refines.
        teacher_labels: task -> its labels in the order of the outputs of such a checkpoint, if the checkpoint
            does not name them.
        store: a knowledge store in the teacher's place; corpus: an augmented corpus. `{task}` works here too.
        encoder: the pretrained encoder that the grid refines, and the teacher on plain text; by default the
            grid's, or the one that the teacher started from.
        text: plain text for cells that start from it.
        without: cells to leave out.
        tasks, seeds: in place of the grid's ("rte,stsb" is one run of both tasks).
        epochs: of the reference's runs, divided among their stages; the other cells train for as many steps.
            They do not apply to the teacher, and to runs before (`first`) and after (`then`) a cell's own.
        limit, eval_limit: the maximum number of training and of validation rows per task.
        unlabelled, unlabelled_limit: files of rows without labels, and the maximum number of their rows per
            task (see `distill`), for the cells that can learn from them.
        settings: dotted setting -> value, for every cell.
        reference: the cell that the others are compared with; by default the grid's, or its first.
        baselines: also show the best constant prediction, a linear model on a frozen encoder, and, for pairs
            of texts, the zero-shot cosine (with a fitted threshold for two labels).
        jobs: how many runs at the same time, each with its share of the CPU cores.
        say: called with a line before each run, and with what went wrong.

    Returns:
        The table; `out` also holds it as compare.json and compare.md.

    Raises:
        UserError: no such grid, cell or setting, or something that no cell can do without is missing; or no
            cell can learn from rows without labels of a task of `unlabelled`.
    """
    from mtkd.jobs.grid import compare as job

    loaded, inputs = plan_grid(
        grid,
        data=data,
        out=out,
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
        jobs=jobs,
        say=say,
    )
    return job.run_grid(loaded, inputs, say, jobs)


@remote_paths("data", "teacher", "store", "text", "encoder", "corpus", "tasks", "unlabelled", "settings")
def plan_grid(grid: str | Path, **arguments: Any) -> tuple[Any, Any]:
    """A loaded grid and the inputs of its runs, from the arguments of `compare`."""
    from mtkd.grids import load_grid
    from mtkd.jobs.distillation.teacher_names import parse_labels
    from mtkd.jobs.grid.grid_jobs import GridInputs

    changes: dict[str, Any] = {name: list(arguments[name]) for name in ("tasks", "seeds") if arguments[name]}
    changes |= {} if arguments["reference"] is None else {"reference": arguments["reference"]}
    changes |= {} if arguments["baselines"] else {"baselines": False}
    cells = (arguments["settings"] or {}, arguments["without"])
    loaded = load_grid(str(grid), changes, *cells)
    if loaded.refine and arguments["teacher"]:
        loaded = load_grid(str(grid), changes | {"refine": None}, *cells)
        arguments["say"](f"the grid's [refine] is skipped: its cells use the teacher {arguments['teacher']}")
    names = ("limit", "eval_limit", "unlabelled_limit", "epochs")
    numbers: dict[str, Any] = {name: arguments[name] for name in names}
    models = ("teacher", "encoder", "store", "corpus")
    model_names: dict[str, Any] = {name: str(arguments[name]) if arguments[name] else None for name in models}
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
