"""`mtkd refine`, `mtkd distill`, `mtkd finetune`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mtkd.cli.options import (
    data_option,
    optional_data_option,
    out_option,
    overrides,
    say,
    show,
    table,
    train_options,
    warn,
)
from tasks.errors import UserError


@click.command()
@data_option
@click.option(
    "--tasks", "spec", default="glue", show_default=True, help="tasks, groups or task files, by commas"
)
@click.option("--teacher", default="minilm", show_default=True, help="hub name or directory of an encoder")
@out_option
@click.option("--recipe", default="refine", show_default=True, help="settings to start from")
@train_options
def refine(spec: str, teacher: str, recipe: str, **given: Any) -> None:
    """Train the multi-task teacher: a shared encoder, one head a task.

    `minilm` is the 6-layer encoder that is installed beside mtkd; it needs no network.
    """
    from mtkd.jobs.refine import refine as job

    settings, request, json_file = _unpack("refine", recipe, spec, given)
    _run("refined", request, json_file, lambda: job(request, settings, teacher, warn=warn))


@click.command()
@click.argument("recipe")
@optional_data_option
@click.option("--tasks", "spec", help="tasks, groups or task files, by commas  [default: glue]")
@click.option(
    "--text", type=click.Path(path_type=Path), metavar="FILE|DIR", help="plain text instead of --data"
)
@click.option("--text-column", default="text", show_default=True, help="where rows of --text hold their text")
@click.option("--teacher", metavar="DIR|NAME", help="a run of mtkd refine, or a pretrained encoder")
@click.option("--init", metavar="DIR|NAME", help="what the student starts from: a run, or an encoder")
@click.option(
    "--corpus", type=click.Path(path_type=Path), metavar="DIR", help="a corpus of mtkd augment, added"
)
@click.option(
    "--store", type=click.Path(path_type=Path), metavar="DIR", help="a knowledge store in the teacher's place"
)
@out_option
@train_options
def distill(
    recipe: str,
    spec: str | None,
    text: Path | None,
    text_column: str,
    teacher: str | None,
    corpus: Path | None,
    store: Path | None,
    **given: Any,
) -> None:
    """Train one student for all tasks by RECIPE (`mtkd recipes` lists them), or on plain text.

    Ablations, each one option: --set supervision=labels (no distillation), --tasks rte (single task),
    --tasks nli (task subset), --set student.kind=bilstm (no bi-attention), --set student.vocabulary=word
    (word level), --set terms.NAME.weight=0 (a loss less), --set one_stage=true; without --corpus there is
    no augmentation.
    """
    if text:
        if given["data"] or spec or corpus or store or given["limit"]:
            raise UserError(
                "--text is text without tasks: no --data, --tasks, --corpus, --store or --limit goes with it",
                hint="leave these out, or leave --text out",
            )
        from mtkd.jobs.distill_text import distill_text

        settings, request, json_file = _unpack("distill", recipe, "text", given | {"data": str(text)})
        _run(
            "distilled",
            request,
            json_file,
            lambda: distill_text(request, settings, teacher, text, text_column, warn=warn),
        )
        return
    if not given["data"]:
        raise UserError(
            "mtkd distill needs rows", hint="--data pocket|hub|DIR, or --text FILE for plain text"
        )
    from mtkd.jobs.distill import distill as job

    settings, request, json_file = _unpack("distill", recipe, spec or "glue", given)
    _run(
        "distilled",
        request,
        json_file,
        lambda: job(request, settings, teacher, corpus, store, warn=warn),
    )


@click.command()
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), metavar="DIR", help="what to fine-tune"
)
@click.option("--task", "spec", required=True, help="one task, or a task file")
@data_option
@out_option
@click.option("--recipe", default="finetune", show_default=True, help="settings to start from")
@train_options
def finetune(model: Path, spec: str, recipe: str, **given: Any) -> None:
    """Fine-tune a model on one task's labels; the learning rate is picked by validation loss."""
    from mtkd.jobs.finetune import finetune as job

    settings, request, json_file = _unpack("finetune", recipe, spec, given)
    _run("fine-tuned", request, json_file, lambda: job(request, settings, model, warn=warn))


def _unpack(stage: str, recipe: str, spec: str, given: dict[str, Any]) -> tuple[Any, Any, str | None]:
    """Settings, request and --json from a command's options; everything cheap is checked here."""
    from mtkd.recipes import load_settings

    settings = load_settings(recipe, stage, overrides(given, stage), spec)
    from mtkd.jobs.common import Request

    request = Request(
        data=given["data"],
        tasks=spec,
        out=given["out"],
        limit=given["limit"],
        eval_limit=given["eval_limit"],
        resume=given["resume"],
        overwrite=given["overwrite"],
        device=given["device"],
    )
    return settings, request, given["json_file"]


def _run(what: str, request: Any, json_file: str | None, job: Callable[[], Any]) -> None:
    """Run a job and show its scores; Ctrl-C and SIGTERM leave with a checkpoint and exit code 130 or 143."""
    from accelerate import PartialState

    from mtkd.training.interrupts import Interrupted

    started = time.monotonic()
    try:
        run = job()
    except Interrupted as interrupted:
        say(f"interrupted; a checkpoint is in {request.out}: the same command resumes from there")
        raise SystemExit(interrupted.exit_code) from None
    if not PartialState().is_main_process:
        return
    record = run.record
    if run.finished:
        say(f"this run is finished already: {request.out} (--overwrite runs it again)")
    show(record, json_file, lambda: draw_scores(record))
    if not run.finished:
        say(f"{what} in {time.monotonic() - started:.0f} s: {request.out}")


def draw_scores(record: dict[str, Any]) -> None:
    """Print the validation scores of a run's record."""
    rows = [
        (
            name,
            f"{s['rows']:,}",
            ", ".join(f"{metric} {value:.3f}" for metric, value in (s["metrics"] | s["details"]).items()),
            f"{s['primary']:.3f}",
            "-" if math.isnan(s["majority"]) else f"{s['majority']:.3f}",
        )
        for name, s in record["scores"].items()
    ]
    if rows:
        table(("validation", "rows", "metrics", "score", "majority-class or mean baseline"), rows)
    else:
        print("no scores: this recipe trains no task heads; mtkd finetune does, or --init of another recipe")
    if size := record.get("parameters"):
        print(f"parameters: {size['total']:,}, without embeddings {size['without_embeddings']:,}")
    if "learning_rate" in record:
        tried = ", ".join(f"{rate}: {loss:.4f}" for rate, loss in record["tried"].items())
        print(f"learning rate {record['learning_rate']:g}, by validation loss ({tried})")
