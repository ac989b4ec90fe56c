"""`mtkd compare`."""

from __future__ import annotations

import re
from typing import Any

import click

from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    PATH,
    data_option,
    echo,
    eval_limit_option,
    limit_option,
    report_options,
    say,
    show,
    table,
    teacher_labels_option,
    unlabelled_limit_option,
    unlabelled_option,
)
from tasks.common.errors import UserError, brief

_ALL = "all"  # given as GRID: all built-in grids


@click.command()
@click.argument("grid", metavar="GRID", required=False)
@data_option
@click.option(
    "--teacher",
    metavar="DIR|NAME",
    help="the teacher, which also replaces one that the grid refines; {task} stands for the name of the task",
)
@teacher_labels_option
@click.option(
    "--encoder",
    metavar="DIR|NAME",
    help="the pretrained encoder that a grid refines, and the teacher for --text  [default: the grid's, or "
    "that of --teacher]",
)
@click.option(
    "--store", metavar="DIR", help="a knowledge store to use instead of the teacher; may also contain {task}"
)
@click.option("--out", metavar="DIR", type=PATH, help="output directory; not needed with --dry-run")
@click.option(
    "--text",
    type=PATH,
    metavar="FILE|DIR",
    help="plain text for cells that are first trained on it",
)
@click.option(
    "--corpus", metavar="DIR", help="an augmented corpus for cells that use one; may also contain {task}"
)
@click.option("--without", multiple=True, metavar="CELL", help="leave a cell out")
@click.option(
    "--tasks",
    multiple=True,
    help="replace the grid's tasks; may be given several times; comma-separated tasks share one student",
)
@click.option("--seeds", help="replace the grid's seeds (comma-separated)")
@click.option(
    "--epochs",
    type=POSITIVE_INT,
    help="epochs of the reference cell, divided among its stages; the other cells train for as many steps "
    "(the table says where steps differ)",
)
@limit_option
@unlabelled_option
@unlabelled_limit_option
@eval_limit_option
@click.option("--set", "sets", multiple=True, metavar="a.b=v", help="override one setting of every cell")
@click.option(
    "--reference",
    metavar="ROW",
    help="the cell that the others are compared with, or another row of the table, such as teacher or "
    "'frozen encoder + linear'  [default: the grid's]",
)
@click.option(
    "--baselines/--no-baselines",
    default=True,
    help="add the best constant prediction, a linear model on a frozen encoder, and, for pairs of texts, the "
    "zero-shot cosine (with a fitted threshold for two labels)",
)
@click.option(
    "--bench/--no-bench",
    default=True,
    help="time the inference of one student of each architecture, after the scores are written",
)
@click.option(
    "--columns",
    type=click.Choice(["primary", "all"]),
    help="all: also print every metric of every split, as the papers do (compare.md in --out always has them)"
    "  [default: all for a built-in grid, else primary]",
)
@click.option(
    "--jobs",
    default=1,
    type=POSITIVE_INT,
    metavar="N",
    help="number of runs at the same time; the CPU cores are divided among them",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="only print the commands, with placeholders such as TEACHER for options that are missing",
)
@report_options
def compare(
    grid: str | None,
    tasks: tuple[str, ...],
    seeds: str | None,
    sets: tuple[str, ...],
    dry_run: bool,
    columns: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Run a grid of cells x tasks x seeds, and print tables: scores, size, speed, differences.

    A cell is a recipe with settings, and becomes a row of these tables. GRID is a TOML file, or the name of a
    built-in grid for a table of a paper, such as mlkd-table-7. docs/compare.md describes the format and lists
    the names. With --dry-run, GRID may be left out to print one command per built-in grid, or be the word all
    to print the commands of all their runs. Finished runs are not repeated, and a run that fails does not
    stop the others. A second table has each cell's difference from the reference with its 95% interval
    (paired bootstrap over rows and seeds).
    """
    from mtkd.api.grid_runs import plan_grid
    from mtkd.cli.comparison_dry_run import print_all_grids, print_grid
    from mtkd.grids import grid_names
    from mtkd.jobs.grid.compare import run_grid
    from mtkd.jobs.grid.compare_table import METRICS_TITLE
    from mtkd.recipes import parse_set

    if dry_run and json_file is not None:
        raise UserError("--json has no effect with --dry-run, which prints commands", hint="leave one out")
    arguments = {**options, "tasks": tasks, "seeds": _numbers(seeds), "settings": parse_set(sets), "say": say}
    if grid == _ALL and not dry_run:
        hint = f"`mtkd compare {_ALL} --dry-run ...`"
        raise UserError("the commands of all built-in grids can only be printed", hint=hint)
    if dry_run and grid in (None, _ALL):
        print_all_grids(arguments, one_command=grid is None)
        return
    if grid is None:
        raise UserError(
            "the argument GRID is missing",
            expected=f"a TOML file, or one of {', '.join(grid_names())}",
            hint="`mtkd compare --dry-run ...` prints a command for each of these",
        )
    if dry_run:
        print_grid(grid, arguments)
        return
    if options["out"] is None:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param=next(p for p in ctx.command.params if p.name == "out"))
    loaded, inputs = plan_grid(grid, **arguments)
    result = run_grid(loaded, inputs, say, options["jobs"])

    def draw() -> None:
        table(result.columns(), result.lines(), result.grid.title)
        if differences := result.difference_lines():
            table(result.difference_columns(), differences, result.difference_title)
        has_more = len(result.metric_columns()) > 1 + len(result.tasks)
        if columns == "all" or (columns is None and grid in grid_names() and has_more):
            table(result.metric_columns(), result.metric_lines(), METRICS_TITLE)
        for note in result.notes:
            echo(note)
        for row in result.rows:
            for run, reason in row.failed.items():
                echo(f"failed: {row.name}, {run}: {reason}")
        say(f"the table and the commands behind it: {options['out']}/compare.md, compare.json")

    show(result.to_json(), json_file, draw)
    if any(row.failed for row in result.rows):
        raise SystemExit(1)


def _numbers(seeds: str | None) -> list[int]:
    """Comma-separated seeds as a list."""
    listed = [] if seeds is None else [seed.strip() for seed in seeds.split(",")]
    if not all(re.fullmatch("[0-9]{1,16}", seed) for seed in listed) or len(set(listed)) < len(listed):
        raise UserError(
            f"--seeds {brief(seeds)} is not valid",
            expected="different numbers, comma-separated, such as 0,1,2",
        )
    return [int(seed) for seed in listed]
