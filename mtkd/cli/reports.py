"""`mtkd report knowledge`."""

from __future__ import annotations

from pathlib import Path

import click

from mtkd.cli.options import out_option, report_options, say, show, table


@click.group()
def report() -> None:
    """Plots and tables over many runs."""


@report.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS...")
@out_option
@report_options
def knowledge(runs: tuple[Path, ...], out: Path, json_file: str | None) -> None:
    """Plot the scores of finished runs against the amount of hidden-state knowledge (AHSK) they kept.

    RUNS are run directories, or directories that contain some, such as the output of `mtkd compare`.
    """
    from mtkd.evaluation.knowledge_curve import curve, draw, gather

    points = gather(runs)
    files = draw(points, out)
    rows = []
    for model, task in dict.fromkeys((p.model, p.task) for p in points):
        runs_of_pair = [p for p in points if (p.model, p.task) == (model, task)]
        full = runs_of_pair[0].full[0] * runs_of_pair[0].full[1]
        for units, mean, best, count in curve(runs_of_pair, "units_kept"):
            scores = f"{100 * mean:.1f}", f"{100 * best:.1f}"
            rows.append((model, task, f"{units:g}", f"{units / full:.2%}", str(count), *scores))

    def show_table() -> None:
        table(("student", "task", "AHSK", "of all", "runs", "mean score", "best"), rows)
        say("plots: " + ", ".join(map(str, files)))

    show([point.to_json() for point in points], json_file, show_table)
