"""`mtkd predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mtkd
from mtkd.cli.measure import batch_option, models_option
from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    PATH,
    THREADS,
    device_option,
    report_options,
    say,
    show,
    table,
    teacher_labels_option,
)
from mtkd.cli.unused_options import refuse_options
from tasks.common.errors import UserError, counted
from tasks.data.text_lines import STANDARD, output_path

if TYPE_CHECKING:
    from mtkd.evaluation.prediction import SubmissionFile

# The parameters that only apply to --in and --out.
_FILE_OPTIONS = (
    *("task", "teacher_labels", "source", "out", "columns", "format"),
    *("block", "threads", "probabilities", "replace"),
)


@click.command()
@models_option
@click.option(
    "--task", help="a task of the model, or a task file  [default: the model's, if it has only one]"
)
@teacher_labels_option
@click.option(
    "--in",
    "source",
    type=PATH,
    metavar="FILE",
    help="rows to predict: .jsonl, .json, .csv, .tsv, .txt with one text per line (or one of these with "
    ".gz), or .parquet; - = standard input",
)
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="the output file, in any format of --in except .txt and .json; - = standard output",
)
@click.option(
    "--columns",
    metavar="A[,B]",
    help="the text columns of --in, in the order of the task's  [default: the names of the task's]",
)
@click.option(
    "--format",
    type=click.Choice(["jsonl", "csv", "tsv", "parquet"]),
    help="the format of standard input and output, and of files without a suffix  "
    "[default: jsonl for standard input, and the format of the input for standard output]",
)
@click.option(
    "--block",
    default=8192,
    type=POSITIVE_INT,
    help="rows read at once, and sorted by length to save padding",
)
@click.option(
    "--threads",
    type=THREADS,
    help="number of CPU threads  [default: all cores for an export, else torch's default]",
)
@click.option("--probabilities/--no-probabilities", default=True, help="also write the probabilities")
@click.option(
    "--replace",
    is_flag=True,
    help="replace columns of the input that have the name of an added column, such as prediction",
)
@click.option("--data", metavar="pocket|hub|DIR", help="the source of the test rows (--glue-submission)")
@click.option(
    "--glue-submission",
    "folder",
    type=PATH,
    metavar="DIR",
    help="write GLUE's submission files here",
)
@batch_option
@device_option
@report_options
def predict(
    models: tuple[str, ...],
    task: str | None,
    source: Path | None,
    out: Path | None,
    data: str | None,
    folder: Path | None,
    batch: int,
    device: str | None,
    columns: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """Predict rows of a file (--task, --in, --out), or write a GLUE submission (--data, --glue-submission).

    Files of any length are read part by part. The model may be a fine-tuned transformers checkpoint. With an
    exported model, torch is not needed.

    With several models, each task of a submission is predicted by the first model that was trained on it.
    """
    if folder and data:
        refuse_options(_FILE_OPTIONS, "with --glue-submission")
        files = mtkd.glue_submission(models, data, folder, batch=batch, device=device)
        show([vars(f) for f in files], json_file, lambda: _draw_submission(files, folder))
        return
    if not (source and out) or len(models) != 1:
        raise UserError(
            "mtkd predict needs one --model with --in and --out, or --data with --glue-submission",
            hint="mtkd predict --help",
        )
    if folder or data:
        given, missing = ("--glue-submission", "--data") if folder else ("--data", "--glue-submission")
        raise UserError(
            f"{given} has no effect without {missing}",
            expected="--in and --out for rows of a file, or --data and --glue-submission",
            hint=f"leave {given} out",
        )
    if json_file == "-" and output_path(out) == STANDARD:
        raise UserError("--json and --out - both write to standard output", expected="--json FILE")
    options["columns"] = columns.split(",") if columns else ()
    count = mtkd.predict(models[0], task, source, out, batch=batch, device=device, **options)
    show(
        {"rows": count, "out": str(out)}, json_file, lambda: say(f"{counted(count, 'row')} predicted: {out}")
    )


def _draw_submission(files: list[SubmissionFile], folder: Path) -> None:
    rows = [
        (
            f.file,
            f.task,
            f"{f.rows:,} of {f.expected:,}",
            f"CONSTANT: {f.filled}" if f.filled else "the model",
        )
        for f in files
    ]
    table(("file", "task", "rows", "predicted by"), rows)
    incomplete = sum(f.rows != f.expected for f in files)
    if incomplete:
        say(f"{incomplete} of {len(files)} files are incomplete: GLUE would reject them")
    else:
        say(f"zip the files in {folder} and submit them")
