"""`mtkd.refine`, `mtkd.distill`, `mtkd.finetune`: the training commands as functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import (
    Callbacks,
    Device,
    Engine,
    Losses,
    Model,
    Module,
    MultiTaskModel,
    Recipe,
    Settings,
    Teacher,
    TrainSettings,
    Unlabelled,
)
from mtkd.api.training_request import model_or_path, prepare, warn_caller
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.common.arguments import NonNegativeInt, PositiveFloat, PositiveInt, Seed, checked
from tasks.common.errors import UserError
from tasks.task_names import TaskSpec

if TYPE_CHECKING:
    from mtkd.training.run_directory import RunDirectory


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
            converted to the directory FILE.pt.converted; "minilm" is installed beside mtkd.
        data: "pocket", "hub", a directory, tables such as {"rte": {"train": rows, "validation": rows}}
            (rows: a DataFrame, datasets.Dataset, pyarrow.Table or list of dicts), or a list of these. It can
            be left out if every task is a task file with [files].
        tasks: names, groups, paths of task files, `mtkd.Task` objects, or a list of these.
        out: the run directory. An unfinished run of the same settings that is there is resumed. It may be a
            URL such as "s3://bucket/run", and so may whatever names an input (docs/scale.md).
        recipe: the settings to start from: a name or the path of a .toml file.
        settings: dotted setting -> value, such as {"train.epochs": 3}; `mtkd.show_recipe` lists them.
        train: a `TrainSettings`, of which the fields that were given override the recipe's.
        limit, eval_limit: the maximum number of training and of validation rows per task (a seeded sample).
        epochs, steps, batch, lr, seed: shorthands of train.epochs, train.steps, train.batch_size, train.lr
            and train.seed.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.
        resume: fail unless `out` holds this run, finished or not.
        overwrite: drop what another run left in `out`.
        callbacks: called after steps, evaluations and checkpoints, and at the end (`mtkd.Callback`).

    Returns:
        The trained model; `.scores` has its validation scores.

    Raises:
        UserError: anything wrong with data, encoder or settings, before anything is written.
    """
    options = dict(locals())
    from mtkd.jobs.refine import refine as refine_job

    loaded, request = prepare("refine", recipe, options)
    return _model(refine_job(request, loaded, str(encoder), callbacks=callbacks, warn=warn_caller))


@checked
@remote_paths(
    "data", "tasks", "teacher", "text", "init", "corpus", "store", "unlabelled", "settings", out="out"
)
def distill(
    recipe: Recipe,
    *,
    data: Any = None,
    tasks: TaskSpec | None = None,
    teacher: Teacher | Sequence[Teacher] | Mapping[str, Teacher | Sequence[Teacher]] | None = None,
    teacher_labels: str | Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    out: str | Path,
    student: Model | MultiTaskModel | Module | None = None,
    losses: Losses | None = None,
    text: str | Path | None = None,
    text_column: str = "text",
    init: str | Path | None = None,
    corpus: str | Path | None = None,
    store: str | Path | None = None,
    unlabelled: Unlabelled | None = None,
    settings: Settings | None = None,
    train: TrainSettings | None = None,
    limit: PositiveInt | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    eval_limit: PositiveInt | None = None,
    epochs: PositiveInt | None = None,
    steps: PositiveInt | None = None,
    batch: PositiveInt | None = None,
    lr: PositiveFloat | None = None,
    seed: Seed | None = None,
    device: Device | None = None,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks = (),
) -> Model:
    """Train one student for all tasks by a recipe, or a task-agnostic one on plain text.

    Args:
        recipe: its name (`mtkd.list_recipes()`) or the path of a .toml file.
        data, tasks, out: see `refine`; `tasks` is "glue" by default.
        teacher: a run of `refine`, a model, or a pretrained encoder where no term needs task heads; a
            fine-tuned checkpoint of transformers (a directory or hub name, a pipeline, or a pair of model and
            tokeniser); or a mapping of tasks to these, with lists for tasks that several teach. None also if
            the rows have soft labels.
        teacher_labels: task -> its labels in the order of the outputs of a transformers checkpoint, if the
            checkpoint does not name them.
        student: a model or encoder to train instead of the one that the recipe describes.
        losses: loss terms to train on instead of the recipe's: name -> term, or a list.
        text: a file or directory of plain text, instead of `data`.
        text_column: where the rows of `text` hold it.
        init: what a Transformer student starts from: a run, or an encoder.
        corpus: an augmented corpus, which is added to the training rows.
        store: a knowledge store in the teacher's place.
        unlabelled: task -> text without labels that the teacher labels and the student learns from, too: a
            file or pattern of files, a list of Paths, the name of a split without labels such as "test", or
            rows in memory (see `data`). By default the key "unlabelled" of the data or of the task file.
        unlabelled_limit: the maximum number of rows without labels per task (a seeded sample); 0 = none.
            `limit` counts the other training rows.
        workers, engine, address: processes that compute the teacher's logits, if these are computed before
            training (`teacher.cache_logits`); see `build_store`. They do not train.
        others: as for `refine`.

    Returns:
        The trained student; `.scores` has its validation scores.

    Raises:
        UserError: anything wrong with data, teacher, student or settings, before anything is written.
    """
    options, teacher_source, made_by = (
        dict(locals()),
        model_or_path(teacher),
        Workers(workers, engine, address),
    )
    if text is not None:
        of_tasks = "data tasks corpus store unlabelled limit unlabelled_limit teacher_labels"
        unusable = [name for name in of_tasks.split() if options[name]]
        unusable += ["workers"] if made_by.in_other_processes else []
        if unusable:
            raise UserError(
                f"plain text has no tasks: {', '.join(f'`{name}`' for name in unusable)} cannot be combined "
                "with `text`",
                hint="leave them out, or leave `text` out",
            )
        from mtkd.jobs.distillation.distill_text import distill_text

        loaded, request = prepare("distill", recipe, options | {"data": str(text), "tasks": "text"})
        run = distill_text(
            request, loaded, teacher_source, Path(text), text_column, callbacks=callbacks, warn=warn_caller
        )
        return _model(run)
    if data is None and tasks is None:
        raise UserError(
            "a distillation needs rows", hint="pass `data=pocket|hub|DIR`, or `text=FILE` for plain text"
        )
    from mtkd.jobs.distillation.distill import distill as distill_job
    from tasks.data.unlabelled import UnlabelledRequest

    options["tasks"] = "glue" if tasks is None else tasks
    loaded, request = prepare("distill", recipe, options, teacher_source)
    return _model(
        distill_job(
            dataclasses.replace(request, workers=made_by),
            loaded,
            teacher_source,
            Path(corpus) if corpus else None,
            Path(store) if store else None,
            teacher_labels=teacher_labels,
            unlabelled=UnlabelledRequest({} if unlabelled is None else unlabelled, unlabelled_limit),
            student=_module(student),
            losses=losses,
            callbacks=callbacks,
            warn=warn_caller,
        )
    )


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
        task: one task; a task that the model does not know gets a fresh head.
        lr: train at this rate alone, instead of trying the recipe's `learning_rates`.
        others: as for `refine`.

    Returns:
        The fine-tuned model; `.scores` has its validation scores.

    Raises:
        UserError: anything wrong with data, model or settings, before anything is written.
    """
    options = dict(locals()) | {"tasks": task}
    from mtkd.jobs.finetune import finetune as finetune_job

    start = model_or_path(model)
    loaded, request = prepare("finetune", recipe, options, start)
    start = Path(start) if isinstance(start, str) else start
    return _model(finetune_job(request, loaded, start, callbacks=callbacks, warn=warn_caller))


def _module(student: Any) -> Any:
    from mtkd.api.model import Model

    return student.module if isinstance(student, Model) else student


def _model(run: RunDirectory) -> Model:
    """The model that a finished run left."""
    from mtkd.api.model import Model

    return Model(run.path)
