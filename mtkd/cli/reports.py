"""`mtkd report html`, `mtkd report knowledge` and `mtkd report plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import mtkd
from mtkd.cli.option_values import NON_NEGATIVE_INT
from mtkd.cli.options import (
    PATH,
    out_option,
    quiet_option,
    report_options,
    say,
    show,
    table,
    teacher_labels_option,
)

runs_argument = click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUNS...")


@click.group()
def report() -> None:
    """Write a page or plots about finished runs."""


@report.command()
@runs_argument
@click.option("--out", required=True, type=PATH, metavar="FILE", help="the page to write")
@click.option(
    "--reference",
    type=PATH,
    metavar="DIR",
    help="the run that the others are compared with  [default: that of the grid, or the first student that "
    "learned from labels alone]",
)
@click.option(
    "--teacher",
    metavar="DIR|NAME",
    help="a fine-tuned transformers checkpoint, which is scored for the report and shown as the teacher",
)
@teacher_labels_option
@click.option(
    "--data",
    metavar="pocket|hub|DIR",
    help="where the texts of examples are read  [default: where each run read them]",
)
@click.option(
    "--examples",
    default=10,
    type=NON_NEGATIVE_INT,
    metavar="N",
    help="at most N rows on which two models disagree, per task; 0 = none",
)
@click.option("--bench", is_flag=True, help="also time the models, on the CPU")
@click.option("--overwrite", is_flag=True, help="replace FILE")
@quiet_option
def html(runs: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Write a report of finished runs: one HTML page that needs no other file and no network.

    RUNS are run directories, or directories that contain some, such as the output of `mtkd compare`. The page
    shows scores with intervals, differences, size and time, learning curves, calibration and confusion, rows
    on which models disagree, and what is needed to repeat the runs.
    """
    say(f"report: {mtkd.report_html(runs, out, **options)}")


@report.command()
@runs_argument
@out_option
@report_options
def knowledge(runs: tuple[Path, ...], out: Path, json_file: str | None) -> None:
    """Plot the scores of finished runs against the amount of hidden-state knowledge (AHSK) they kept.

    RUNS are run directories, or directories that contain some, such as the output of `mtkd compare`.
    """
    from mtkd.reporting.knowledge_curve import curve, plot_knowledge, read_points

    points = read_points(runs)
    files = plot_knowledge(points, out)
    rows = []
    for model, task in dict.fromkeys((p.model, p.task) for p in points):
        runs_of_pair = [p for p in points if (p.model, p.task) == (model, task)]
        full_ahsk = runs_of_pair[0].full[0] * runs_of_pair[0].full[1]
        for ahsk, mean, best, count in curve(runs_of_pair, "ahsk"):
            scores = f"{100 * mean:.1f}", f"{100 * best:.1f}"
            rows.append((model, task, f"{ahsk:g}", f"{ahsk / full_ahsk:.2%}", str(count), *scores))

    def show_table() -> None:
        table(("student", "task", "AHSK", "of all", "runs", "mean score", "best"), rows)
        say("plots: " + ", ".join(map(str, files)))

    show([point.to_json() for point in points], json_file, show_table)


@report.command()
@click.argument("comparisons", nargs=-1, required=True, type=PATH, metavar="COMPARISONS...")
@click.option("--out", required=True, type=PATH, metavar="FILE", help="the plot to write: .png, .svg or .pdf")
@click.option("--overwrite", is_flag=True, help="replace FILE")
@quiet_option
def plot(comparisons: tuple[Path, ...], out: Path, overwrite: bool) -> None:
    """Plot all models of several finished comparisons: average score against time, size and training time.

    COMPARISONS are the files compare.json that `mtkd compare` writes, or the directories that hold them. They
    must have the same tasks. Rows with the same name get the titles of their comparisons added.
    """
    say(f"plot: {mtkd.report_plot(comparisons, out, overwrite=overwrite)}")
