"""`mtkd data check`."""

from __future__ import annotations

import sys

import click

from mtkd.cli.options import data_option, report_options, show, table


@click.group()
def data() -> None:
    """Look at data before training on it."""


@data.command("check")
@data_option
@click.option("--tasks", "spec", help="tasks, groups or task files [default: all that the data hold]")
@click.option(
    "--list", "most", default=50, show_default=True, help="print at most so many problems (0 = all)"
)
@report_options
def check(data: str, spec: str | None, most: int, json_file: str | None) -> None:
    """Report rows, label balance, lengths, duplicates, overlap with train, and every bad row.

    Leaves with exit code 2 if there are errors.
    """
    from tasks.data_report import report_on as run
    from tasks.registry import resolve
    from tasks.sources import open_data

    source = open_data(data)
    tasks = resolve(spec or "glue,ax,squad")
    report = run(source, tasks if spec else [task for task in tasks if source.splits(task)] or tasks)

    def draw() -> None:
        rows = [
            (
                f"{s.task}/{s.split}",
                f"{s.rows:,}",
                _balance(s),
                " + ".join(f"{w.mean:.0f}/{w.p95:.0f}/{w.max}" for w in s.lengths),
                f"{s.duplicates:,}",
                "-" if s.overlap is None else f"{s.overlap:,}",
            )
            for s in report.splits
        ]
        table(
            ("split", "rows", "labels", "words: mean/p95/max", "duplicate", "in train"),
            rows,
            report.source,
        )
        problems = report.all_problems
        for problem in problems[: most or None]:
            print(f"{problem.level}: {problem}")
        if most and len(problems) > most:
            print(f"... and {len(problems) - most} more (--list 0 prints all)")
        warnings = len(problems) - report.errors
        print(f"{report.errors} errors, {warnings} warnings in {len(report.splits)} splits")

    show(report.to_json(), json_file, draw)
    sys.exit(2 if report.errors else 0)


def _balance(split) -> str:
    return ", ".join(f"{count.label} {count.rows / split.rows:.0%}" for count in split.balance if count.rows)
