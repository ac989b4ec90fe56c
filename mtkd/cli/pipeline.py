"""`mtkd run`: a whole job from one file."""

from __future__ import annotations

import click

from mtkd.cli.knowledge_store import size_text
from mtkd.cli.options import report_options, show, table


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--set", "sets", multiple=True, metavar="a.b=v", help="override a value of the file")
@click.option("--overwrite", is_flag=True, help="run all steps again")
@click.option("--dry-run", is_flag=True, help="only show which steps would run, and why")
@report_options
def run(file: str, sets: tuple[str, ...], dry_run: bool, overwrite: bool, json_file: str | None) -> None:
    """Run the steps of a pipeline that are not finished; the same command resumes after an interruption.

    FILE is a TOML file, such as `mtkd init` writes (docs/pipelines.md), or demo. A step runs again if its
    options or the files that it reads have changed, or if a step that it needs has run again.
    """
    from mtkd.pipelines.run import StepResult, run_pipeline
    from mtkd.recipes import parse_set

    results = run_pipeline(file, settings=parse_set(sets), overwrite=overwrite, dry_run=dry_run)

    def line(result: StepResult) -> tuple[str, ...]:
        done = "finished before" if result.reason is None else "would run" if dry_run else "ran"
        seconds = "-" if result.seconds is None else f"{result.seconds:.0f}"
        return (
            result.name,
            done,
            seconds,
            "-" if result.bytes is None else size_text(result.bytes),
            result.out,
        )

    def draw() -> None:
        for number, result in enumerate(results if dry_run else (), start=1):
            print(
                f"{number}/{len(results)} {result.name}: {result.reason or 'finished'}\n    {result.command}"
            )
        columns = ("step", "status", "last seconds" if dry_run else "seconds", "size", "output")
        table(columns, list(map(line, results)))

    show([result.to_json() for result in results], json_file, draw)
