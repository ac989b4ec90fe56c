"""`mtkd run` runs a pipeline from one file; `mtkd init` writes such a file for your data."""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import Any

import click

from mtkd.cli.flags import as_options
from mtkd.cli.options import echo, out_option, report_options, show, table, teacher_labels_option
from tasks.common.arguments import MAX_TOKENS
from tasks.common.errors import UserError
from tasks.common.progress import is_quiet
from tasks.common.reading import real_path
from tasks.common.text_format import size_text


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--set", "sets", multiple=True, metavar="a.b=v", help="override a value of the file")
@click.option("--overwrite", is_flag=True, help="run all steps again")
@click.option("--dry-run", is_flag=True, help="only show which steps would run, and why")
@click.option(
    "--estimate", is_flag=True, help="as --dry-run, and time a few batches of the steps that have never run"
)
@report_options
def run(file: str, sets: tuple[str, ...], json_file: str | None, **options: bool) -> None:
    """Run the steps of a pipeline that are not finished; the same command resumes after an interruption.

    FILE is a TOML file, such as `mtkd init` writes (docs/pipelines.md), or demo. A step runs again if its
    options or the files that it reads have changed, or if a step that it needs has run again.
    """
    from mtkd.pipelines.pipeline_runner import StepResult
    from mtkd.pipelines.run import record_file, run_pipeline
    from mtkd.recipes import parse_set

    if json_file not in (None, "-"):
        record = record_file(file, parse_set(sets))
        if real_path(str(json_file)) == real_path(record):
            raise UserError(f"--json {json_file} is the pipeline's own record", expected="another file")
    with contextlib.redirect_stdout(sys.stderr if json_file == "-" else sys.stdout):
        results = run_pipeline(file, settings=parse_set(sets), **options)
    dry_run = options["dry_run"] or options["estimate"]

    def line(result: StepResult) -> tuple[str, ...]:
        status = "finished before" if result.reason is None else "would run" if dry_run else "ran"
        about = "about " if result.estimated else ""
        seconds = "-" if result.seconds is None else f"{about}{result.seconds:.0f}"
        size = "-" if result.bytes is None else about + size_text(result.bytes)
        return (result.name, status, seconds, size, result.out)

    def draw() -> None:
        for number, result in enumerate(results if dry_run else (), start=1):
            note = f"\n    ({result.note})" if result.note else ""
            reason = result.reason or "finished"
            echo(f"{number}/{len(results)} {result.name}: {reason}\n    {result.command}{note}")
        table(("step", "status", "seconds", "size", "output"), list(map(line, results)))
        times = [result.seconds for result in results if result.reason]
        if dry_run and any(times):
            without = f", and {times.count(None)} of unknown time" if None in times else ""
            echo(f"the steps that would run take about {sum(filter(None, times)):.0f} s{without}")

    show([result.to_json() for result in results], json_file, draw)


@click.command()
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@out_option
@click.option("--name", help="the name of the task  [default: that of the data]")
@click.option("--columns", metavar="A[,B]", help="the text columns")
@click.option("--label", metavar="COLUMN", help="the label column")
@click.option("--kind", metavar="K", help="the task type: classify, regress, multilabel or span")
@click.option("--validation", metavar="FILE", help="validation rows")
@click.option("--unlabelled", multiple=True, metavar="FILE", help="unlabelled text")
@click.option(
    "--validation-fraction",
    type=float,
    help="part of the training rows to use for validation if there are no validation rows  [default: 0.1]",
)
@click.option(
    "--max-length",
    type=click.IntRange(8, MAX_TOKENS),
    help="tokens per row; longer rows are truncated  [default: enough for 95% of the rows]",
)
@click.option("--recipe", default="layerwise-3", metavar="NAME|FILE", help="the recipe of the student")
@click.option(
    "--teacher",
    metavar="DIR|NAME",
    help="a run of mtkd, or a fine-tuned transformers checkpoint  [default: the pipeline trains a teacher]",
)
@teacher_labels_option
@click.option("--overwrite", is_flag=True, help="replace the files of an earlier mtkd init")
@click.option("--dry-run", is_flag=True, help="only show what is guessed, and which files would be written")
@report_options
def init(columns: str | None, json_file: str | None, **options: Any) -> None:
    """Guess a task from DATA and write a task file and a pipeline for `mtkd run`.

    DATA are CSV, TSV, JSONL, JSON or parquet files, whose names (such as dev.csv, test.csv or
    unlabelled.csv) say what they hold, or a data set on the hub, as NAME or NAME:CONFIGURATION. Unlabelled
    text may also be a .txt file with one text per line. For question answering, each line is a paragraph
    about which the pipeline generates questions.
    """
    from mtkd.pipelines.init_pipeline import init_pipeline

    result = init_pipeline(columns=columns.split(",") if columns else (), **options)
    task = result.task

    def draw() -> None:
        if is_quiet():
            return
        table(("guessed", ""), list(result.guessed.items()))
        for note in result.notes:
            echo(f"note: {as_options(note)}")
        if options["dry_run"]:
            echo(f"would write to {options['out']}: {', '.join(result.files)}")
            return
        echo(f"If a guess is wrong, correct {result.task_file}, or run mtkd init again with --overwrite and")
        echo("--columns, --label, --kind or --max-length.")
        if options["recipe"] == "layerwise-3" and task.kind != "span":
            echo("--recipe static and --recipe mkd-lstm make much faster students (docs/which-student.md).")
        echo(f"next: mtkd run {shlex.quote(str(result.pipeline))}")

    record: dict[str, Any] = {"pipeline": str(result.pipeline), "task_file": str(result.task_file)}
    record |= {"files": list(result.files), "task": task.to_json(), "rows": result.rows}
    record |= {"max_length": result.max_length, "notes": list(result.notes)}
    show(record, json_file, draw)
