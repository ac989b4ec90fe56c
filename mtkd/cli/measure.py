"""`mtkd evaluate`, `mtkd bench inference`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mtkd
from mtkd.cli.flags import as_options
from mtkd.cli.option_values import POSITIVE_INT
from mtkd.cli.options import (
    PATH,
    data_option,
    device_option,
    report_options,
    show,
    table,
    teacher_labels_option,
    warn,
)
from tasks.common.arguments import MAX_BATCH, MAX_ROUNDS, MAX_TOKENS
from tasks.common.text_format import score_text

if TYPE_CHECKING:
    from mtkd.evaluation.class_report import ClassReport

model_option = click.option(
    "--model",
    required=True,
    type=PATH,
    metavar="DIR|NAME",
    help="a run, a model directory, or a model on the hub",
)
models_option = click.option(
    "--model",
    "models",
    required=True,
    multiple=True,
    metavar="DIR|NAME",
    help="a run, a model directory, or a model on the hub; may be given several times",
)
MAX_CLASSES = 20  # in the printed table of classes
CONFUSION_CLASSES = 8  # in the printed confusion matrix
batch_option = click.option("--batch", default=64, type=POSITIVE_INT, help="rows per forward pass")


@click.command()
@model_option
@data_option
@click.option(
    "--tasks", help="tasks of the model, groups of tasks or task files  [default: all that the model knows]"
)
@teacher_labels_option
@click.option("--split", help="the split to score instead of validation; 'test' includes test_de, ...")
@click.option("--limit", type=POSITIVE_INT, metavar="N", help="at most N rows per split")
@click.option("--report", is_flag=True, help="also print scores per class (--json always has them)")
@click.option(
    "--against",
    type=PATH,
    metavar="DIR|NAME",
    help="another model, or a fine-tuned transformers checkpoint, to compare with, row by row",
)
@click.option(
    "--baselines",
    is_flag=True,
    help="compare with the best constant prediction, a linear model on a frozen encoder, and, for pairs of "
    "texts, the zero-shot cosine (with a fitted threshold for two labels)",
)
@click.option(
    "--encoder",
    metavar="DIR|NAME",
    help="the pretrained encoder of --baselines  [default: that of the model, or of its teacher]",
)
@click.option(
    "--predictions",
    type=PATH,
    metavar="DIR",
    help="write each row's label and prediction to DIR/TASK/SPLIT.parquet",
)
@batch_option
@device_option
@report_options
def evaluate(
    model: Path, data: Any, tasks: str | None, report: bool, json_file: str | None, **options: Any
) -> None:
    """Score an mtkd model or a fine-tuned transformers checkpoint on labelled data.

    Differences from --against and --baselines have 95% intervals: a paired bootstrap over the rows. They are
    marked better, worse, or tied if the interval contains 0.

    Tasks without labelled rows are skipped with a warning; it is an error if none has any.
    """
    from mtkd.cli.train import draw_scores
    from mtkd.evaluation.baselines import LINEAR
    from mtkd.jobs.validation_scores import scores_record

    evaluation = mtkd.evaluate(model, data, tasks, **options)
    skipped = [f"{name} is skipped: {reason}" for name, reason in evaluation.skipped.items()]
    record = {
        "scores": scores_record(evaluation.scores),
        "details": {name: classes.to_json() for name, classes in evaluation.reports.items()},
        "skipped": evaluation.skipped,
        "warnings": evaluation.warnings,
        "differences": {
            name: {task: gap.to_json() for task, gap in gaps.items()}
            for name, gaps in evaluation.differences.items()
        },
    }

    def draw() -> None:
        draw_scores(record)
        for name, gaps in evaluation.differences.items():
            rows = [(task, *gap.columns()) for task, gap in gaps.items()]
            headings = ("task", "score", "reference", "difference", "95% interval", "")
            limit = f"{evaluation.baseline_rows or 0:,} labelled rows per task"
            fitted = f" fitted to up to {limit}," if name == LINEAR else ","
            table(headings, rows, f"Compared with {name}{fitted} in points")
        if evaluation.differences:
            click.echo("If the best epoch was chosen on these rows, the intervals do not cover that choice.")
        for name, classes in evaluation.reports.items() if report else ():
            _draw_classes(name, classes)

    show(record, json_file, draw)
    if skipped or evaluation.warnings:
        warn(as_options("\n\n".join([*skipped, *evaluation.warnings])))


def _draw_classes(name: str, report: ClassReport) -> None:
    """Print the scores of each class (of many, the worst), and the confusion of a few classes."""
    order = list(range(len(report.classes)))
    title = f"{name}, class by class"
    if len(order) > MAX_CLASSES:
        order = sorted(order, key=lambda index: report.classes[index].f1)[:MAX_CLASSES]
        title += f": the {MAX_CLASSES} of {len(report.classes)} with the lowest F1 (--json has all)"
    shown = [(report.classes[index], report.confused_with(index)) for index in order]
    rows = [
        (c.label, *map(score_text, (c.precision, c.recall, c.f1)), f"{c.support:,}", confused)
        for c, confused in shown
    ]
    table(("class", "precision", "recall", "F1", "rows", "most often predicted instead"), rows, title)
    if len(report.classes) <= CONFUSION_CLASSES:
        labels = [c.label for c in report.classes]
        counts = [
            (label, *(f"{n:,}" for n in row)) for label, row in zip(labels, report.confusion, strict=True)
        ]
        title = f"{name}, confusion matrix: one line per label, one column per predicted class"
        table(("label", *labels), counts, title)


@click.group()
def bench() -> None:
    """Time models against each other."""


@bench.command()
@models_option
@click.option("--seq-len", default=128, type=click.IntRange(4, MAX_TOKENS), help="tokens per row")
@click.option("--batch", default=128, type=click.IntRange(1, MAX_BATCH), help="rows per forward pass")
@click.option("--rounds", default=10, type=click.IntRange(1, MAX_ROUNDS), help="timed batches per model")
@click.option(
    "--warmup", default=2, type=click.IntRange(0, MAX_ROUNDS), help="untimed batches per model before that"
)
@click.option(
    "--precision", default="fp32", type=click.Choice(["fp32", "bf16"]), help="bf16: automatic mixed precision"
)
@device_option
@report_options
def inference(
    models: tuple[str, ...],
    seq_len: int,
    batch: int,
    rounds: int,
    warmup: int,
    precision: str,
    device: str | None,
    json_file: str | None,
) -> None:
    """Time models in turn in one run, with warm-up: median and range, parameters, disk, peak memory.

    Ratios are relative to the first model. A model may be a fine-tuned transformers checkpoint. For models
    that encode the two texts of a row one by one (static, BiLSTM), --seq-len is divided between them.
    """
    results = mtkd.bench_inference(
        models,
        seq_len=seq_len,
        batch=batch,
        rounds=rounds,
        warmup=warmup,
        precision=precision,  # type: ignore[arg-type]
        device=device,
    )

    def draw() -> None:
        table(
            BENCH_COLUMNS,
            [bench_row(r) for r in results],
            f"{batch} rows of {seq_len} tokens, {rounds} repetitions; the models alone, without tokenising",
        )

    show([r.to_json() for r in results], json_file, draw)


BENCH_COLUMNS = (
    "model",
    "ms per batch (min-max)",
    "rows/s",
    "speed",
    "parameters",
    "w/o embeddings",
    "disk MB",
    "peak memory MB",
)


def bench_row(result: Any) -> tuple[str, ...]:
    """One model's line of the inference table."""
    size = result.parameters
    return (
        result.name,
        f"{result.ms:.1f} ({result.fastest:.1f}-{result.slowest:.1f})",
        f"{result.rows_per_second:,.0f}",
        result.speed_text,
        f"{size.total:,}",
        f"{size.without_embeddings:,}",
        f"{result.disk_bytes / 1e6:.1f}",
        f"{result.peak_bytes / 1e6:.0f}" if result.peak_bytes else "-",
    )
