"""`mtkd refine`, `mtkd distill`, `mtkd finetune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtkd.cli.options import (
    PATH,
    command_line,
    corpora_option,
    data_option,
    echo,
    finetune_options,
    interruptible,
    one_or_several,
    out_option,
    say,
    show,
    table,
    teacher_labels_option,
    teacher_workers_options,
    train_options,
    train_settings,
    unlabelled_limit_option,
    unlabelled_option,
)
from tasks.common.text_format import score_text
from tasks.common.urls import url_of

if TYPE_CHECKING:
    from mtkd.api.model import Model


@click.command()
@data_option
@click.option(
    "--tasks",
    help="tasks, groups of tasks or task files, comma-separated  [default: glue, which is all GLUE tasks]",
)
@click.option(
    "--encoder",
    default="minilm",
    metavar="DIR|NAME",
    help="the pretrained encoder to fine-tune, or a checkpoint of MT-DNN (.pt)",
)
@out_option
@click.option("--recipe", default="refine", help="settings to start from: a name or a .toml file")
@train_options
def refine(json_file: str | None, **options: Any) -> None:
    """Fine-tune the teacher on all tasks: a shared encoder with one head per task.

    `minilm` is the 6-layer encoder that is installed with mtkd; it needs no network.
    """
    from mtkd.api.training import refine as job

    if options["tasks"] is None:
        options["tasks"] = _all_of_glue()
    _run("refined", options["out"], json_file, lambda: job(**train_settings(options)))


@click.command()
@click.argument("recipe")
@data_option
@click.option(
    "--tasks",
    help="tasks, groups of tasks or task files, comma-separated  [default: glue, which is all GLUE tasks]",
)
@click.option("--text", type=PATH, metavar="FILE|DIR", help="plain text to train on, instead of --data")
@click.option("--text-column", default="text", help="column or key of --text that holds the text")
@click.option(
    "--teacher",
    multiple=True,
    metavar="[TASK=]DIR|NAME",
    callback=one_or_several,
    help="a run of mtkd refine, a fine-tuned transformers checkpoint, or a pretrained encoder; "
    "sst2=DIR,rte=NAME for one teacher per task; several teachers of one task are averaged",
)
@teacher_labels_option
@click.option("--init", metavar="DIR|NAME", help="what the student starts from: a run, or an encoder")
@corpora_option
@click.option("--store", metavar="DIR", help="a knowledge store to use instead of the teacher")
@unlabelled_option
@unlabelled_limit_option
@teacher_workers_options
@out_option
@train_options
def distill(json_file: str | None, **options: Any) -> None:
    """Train one student for all tasks with RECIPE, or on plain text.

    RECIPE is a name (`mtkd recipes` lists them) or a .toml file.

    Ablations are settings, such as --set supervision=labels (no distillation) or --set terms.NAME.weight=0
    (without one of the losses); docs/methods.md lists them.
    """
    from mtkd.api.distillation import distill as job

    if options["tasks"] is None and options["text"] is None and options["data"] is not None:
        options["tasks"] = _all_of_glue()
    _run("distilled", options["out"], json_file, lambda: job(**train_settings(options)))


@click.command()
@click.option("--model", required=True, metavar="DIR|NAME", help="the run or model to fine-tune")
@click.option("--task", required=True, help="one task, or a task file")
@data_option
@out_option
@click.option("--recipe", default="finetune", help="settings to start from: a name or a .toml file")
@finetune_options
def finetune(json_file: str | None, **options: Any) -> None:
    """Fine-tune a model on one task's labels; the learning rate is chosen on validation rows."""
    from mtkd.api.training import finetune as job

    _run("fine-tuned", options["out"], json_file, lambda: job(**train_settings(options)))


def _all_of_glue() -> str:
    """Print that --tasks has its default, all GLUE tasks, and return it."""
    from tasks.task_names import GROUPS

    say(f"no --tasks given: training on all GLUE tasks ({', '.join(GROUPS['glue'])})")
    return "glue"


def _run(done: str, out: Path, json_file: str | None, job: Callable[[], Model]) -> None:
    """Run a job and print the scores of its model.

    Args:
        done: the verb of the closing line, such as "refined".
    """
    from accelerate import PartialState

    from mtkd.run_record import kept_weights
    from mtkd.training import run_directory

    run_directory.recorded_command.set(command_line())
    started, time_before = time.monotonic(), _record_time(out)
    with interruptible(out):
        model = job()
    if not PartialState().is_main_process:
        return
    record = model.record
    show(record, json_file, lambda: draw_scores(record))
    for sentence in kept_weights(record):
        say(sentence)
    if _record_time(out) != time_before and not url_of(out):  # else the job or the upload prints such a line
        say(f"{_verb(done, record)} in {time.monotonic() - started:.0f} s: {out}")


def _verb(done: str, record: Mapping[str, Any]) -> str:
    """The verb of the closing line: a student that learned from labels alone was not distilled."""
    from_labels = record["identity"]["settings"].get("supervision") == "labels"
    return "trained" if done == "distilled" and from_labels else done


def _record_time(out: Path) -> int | None:
    """When a run's record was written, in nanoseconds; None if there is no record."""
    record = out / "run.json"
    return record.stat().st_mtime_ns if record.is_file() else None


def draw_scores(record: dict[str, Any]) -> None:
    """Print the validation scores of a run's record."""
    from mtkd.evaluation.scoring import TaskScores, averages
    from mtkd.run_record import start_scores

    over_splits = averages(TaskScores(**scores) for scores in record["scores"].values())
    scored = record["scores"] | {f"{average.task}/average": average.to_json() for average in over_splits}
    rows = [
        (
            name,
            f"{s['rows']:,}",
            ", ".join(
                [f"{metric} {score_text(value, metric)}" for metric, value in s["metrics"].items()]
                + [f"{name} {value:.3f}" for name, value in s.get("details", {}).items()]
            ),
            score_text(s["primary"]),
            score_text(s["majority"]),
        )
        for name, s in scored.items()
    ]
    if rows:
        table(("validation", "rows", "metrics", "score", "best constant prediction"), rows)
    else:
        echo("no scores: this recipe trains no task heads; use mtkd finetune, or --init of another recipe")
    if start := start_scores(record):
        scores = ", ".join(f"{name} {score_text(value)}" for name, value in start.items())
        echo(f"scores before training: {scores}")
    if size := record.get("parameters"):
        echo(f"parameters: {size['total']:,}, without embeddings {size['without_embeddings']:,}")
    if "learning_rate" in record:
        metric = record["identity"]["settings"]["train"]["metric"]
        tried = ", ".join(f"{rate}: {score_text(v, metric, 2)}" for rate, v in record["tried"].items())
        criterion = f"the validation {metric}" if metric in ("loss", "score") else metric
        echo(f"learning rate {record['learning_rate']:g}, chosen by {criterion} ({tried})")
