"""`mtkd.refine` and `mtkd.finetune`: training on labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtkd.api.argument_types import (
    Callbacks,
    Device,
    Model,
    Recipe,
    Settings,
    TrainSettings,
)
from mtkd.api.training_request import model_or_path, prepare
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import PositiveFloat, PositiveInt, Seed, checked
from tasks.common.errors import warn_caller
from tasks.task_names import TaskSpec


@checked
@remote_paths("encoder", "data", "tasks", "settings", out="out")
def refine(
    encoder: str | Path = "minilm",
    *,
    data: Any = None,
    tasks: TaskSpec = "glue",
    out: str | Path,
    recipe: Recipe = "refine",
    settings: Settings | None = None,
    train: TrainSettings | None = None,
    limit: PositiveInt | None = None,
    eval_limit: PositiveInt | None = None,
    epochs: PositiveInt | None = None,
    steps: PositiveInt | None = None,
    batch: PositiveInt | None = None,
    lr: PositiveFloat | None = None,
    seed: Seed | None = None,
    device: Device | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks = (),
) -> Model:
    """Fine-tune a pretrained encoder on all tasks at once: the multi-task teacher (MKD, section 3.1).

    Args:
        encoder: hub name or directory of a pretrained encoder, or a checkpoint of MT-DNN (FILE.pt), which is
            converted to the directory FILE.pt.converted; "minilm" is installed with mtkd.
        data: "pocket", "hub", a directory, tables such as {"rte": {"train": rows, "validation": rows}}
            (rows: a DataFrame, datasets.Dataset, pyarrow.Table or list of dicts), or a list of these. It can
            be left out if every task is a task file with [files].
        tasks: names, groups, paths of task files, `mtkd.Task` objects, or a list of these.
        out: the run directory. If it holds an unfinished run with the same settings, that run is resumed.
            Outputs and inputs may be URLs such as "s3://bucket/run" (docs/scale.md).
        recipe: the settings to start from: a name or the path of a .toml file.
        settings: dotted setting -> value, such as {"train.epochs": 3}; `mtkd.show_recipe` lists them.
        train: a `TrainSettings`; the fields that were given override the recipe's.
        limit, eval_limit: the maximum number of training and of validation rows per task (a seeded sample).
        epochs, steps, batch, lr, seed: shorthands of train.epochs, train.steps, train.batch_size, train.lr
            and train.seed.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.
        resume: raise an error unless `out` holds this run, finished or unfinished.
        overwrite: replace another run in `out`.
        callbacks: objects that are called after steps, evaluations and checkpoints, and at the end
            (`mtkd.Callback`).

    Returns:
        The trained model; `.scores` has its validation scores.

    Raises:
        UserError: the data, encoder or settings are invalid; nothing is written then.
    """
    from mtkd.api.model import Model
    from mtkd.jobs.refine import refine as refine_job

    loaded, request = prepare(
        "refine",
        recipe,
        data=data,
        tasks=tasks,
        out=out,
        settings=settings,
        train=train,
        limit=limit,
        eval_limit=eval_limit,
        epochs=epochs,
        steps=steps,
        batch=batch,
        lr=lr,
        seed=seed,
        device=device,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
    )
    run = refine_job(request, loaded, str(encoder), callbacks=callbacks, warn=warn_caller)
    return Model(run.path)


@checked
@remote_paths("model", "task", "data", "settings", out="out")
def finetune(
    model: str | Path | Model,
    *,
    task: TaskSpec,
    data: Any = None,
    out: str | Path,
    recipe: Recipe = "finetune",
    settings: Settings | None = None,
    train: TrainSettings | None = None,
    limit: PositiveInt | None = None,
    eval_limit: PositiveInt | None = None,
    epochs: PositiveInt | None = None,
    steps: PositiveInt | None = None,
    batch: PositiveInt | None = None,
    lr: PositiveFloat | None = None,
    seed: Seed | None = None,
    device: Device | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks = (),
) -> Model:
    """Fine-tune a model on one task's labels; the learning rate is chosen on validation rows.

    Args:
        model: a run or model directory, or a model.
        task: one task; if the model has no head for it, it gets a new one.
        lr: the only learning rate to try, instead of the recipe's `learning_rates`.
        data, out, recipe, settings, train, limit, eval_limit, epochs, steps, batch, seed, device, resume,
            overwrite, callbacks: see `refine`.

    Returns:
        The fine-tuned model; `.scores` has its validation scores.

    Raises:
        UserError: the data, model or settings are invalid; nothing is written then.
    """
    from mtkd.api.model import Model
    from mtkd.jobs.finetune import finetune as finetune_job

    start = model_or_path(model)
    loaded, request = prepare(
        "finetune",
        recipe,
        data=data,
        tasks=task,
        out=out,
        settings=settings,
        train=train,
        limit=limit,
        eval_limit=eval_limit,
        epochs=epochs,
        steps=steps,
        batch=batch,
        lr=lr,
        seed=seed,
        device=device,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
        model=start,
    )
    start = Path(start) if isinstance(start, str) else start
    run = finetune_job(request, loaded, start, callbacks=callbacks, warn=warn_caller)
    return Model(run.path)
