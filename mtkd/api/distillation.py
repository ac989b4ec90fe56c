"""`mtkd.distill`: train a student from a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.api.argument_types import (
    Callbacks,
    Corpora,
    Device,
    Engine,
    Losses,
    Model,
    Recipe,
    Settings,
    Student,
    Teachers,
    TrainSettings,
    Unlabelled,
)
from mtkd.api.training_request import model_or_path, paths_of, prepare
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.common.arguments import NonNegativeInt, PositiveFloat, PositiveInt, Seed, checked
from tasks.common.errors import UserError, warn_caller
from tasks.task_names import TaskSpec


@checked
@remote_paths(
    "data",
    "tasks",
    "teacher",
    "student",
    "text",
    "init",
    "corpus",
    "store",
    "unlabelled",
    "settings",
    out="out",
)
def distill(
    recipe: Recipe,
    *,
    data: Any = None,
    tasks: TaskSpec | None = None,
    teacher: Teachers | None = None,
    teacher_labels: str | Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    out: str | Path,
    student: Student | None = None,
    losses: Losses | None = None,
    text: str | Path | None = None,
    text_column: str = "text",
    init: str | Path | None = None,
    corpus: Corpora | None = None,
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
    """Train one student for all tasks with a recipe, or a task-agnostic student on plain text.

    Args:
        recipe: the name of a recipe (`mtkd.list_recipes()`) or the path of a .toml file.
        data, tasks, out: see `refine`; `tasks` is "glue" by default.
        teacher: a run of `refine`, a model, or a pretrained encoder where no term needs task heads; a
            fine-tuned checkpoint of transformers (a directory or hub name, a pipeline, or a pair of model and
            tokeniser); or a mapping of tasks to these, with a list where a task has several teachers. Not
            needed if the rows have soft labels.
        teacher_labels: task -> its labels in the order of the outputs of a transformers checkpoint, if the
            checkpoint does not name them; a list, or a comma-separated string.
        student: a model or encoder to train instead of the one that the recipe describes. A copy is trained.
        losses: loss terms to train on instead of the recipe's: name -> term, or a list. A term is an object,
            of which a copy is trained, or settings as in a recipe.
        text: a file or directory of plain text, instead of `data`.
        text_column: the column or key of `text` that holds the text.
        init: the weights that a Transformer student starts from: a run, or an encoder.
        corpus: an augmented corpus, or a list of corpora, whose rows are added to the training rows.
        store: a knowledge store to use instead of the teacher.
        unlabelled: task -> unlabelled rows, which the teacher labels for the student to learn from: a
            file or pattern of files, a list of these, the name of a split without labels such as "test", or
            rows in memory (see `data`). By default the key "unlabelled" of the data or of the task file.
        unlabelled_limit: the maximum number of unlabelled rows per task (a seeded sample); 0 = none.
            `limit` counts the other training rows.
        workers, engine, address: processes that compute the teacher's logits, if these are computed before
            training (`teacher.cache_logits`); see `build_store`. They do not train.
        settings, train, limit, eval_limit, epochs, steps, batch, lr, seed, device, resume, overwrite,
            callbacks: see `refine`.

    Returns:
        The trained student; `.scores` has its validation scores.

    Raises:
        UserError: the data, teacher, student or settings are invalid; nothing is written then.
    """
    processes = Workers(workers, engine, address)
    request: dict[str, Any] = {
        "out": out,
        "init": init,
        "settings": settings,
        "train": train,
        "eval_limit": eval_limit,
        "epochs": epochs,
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "seed": seed,
        "device": device,
        "resume": resume,
        "overwrite": overwrite,
        "callbacks": callbacks,
    }
    if text is not None:
        _require_no_tasks(
            data=data,
            tasks=tasks,
            corpus=corpus,
            store=store,
            unlabelled=unlabelled,
            limit=limit,
            unlabelled_limit=unlabelled_limit,
            teacher_labels=teacher_labels,
            workers=processes.in_other_processes,
        )
        return _distill_text(recipe, Path(text), text_column, model_or_path(teacher), request)
    _require_rows(data, tasks, text_column)
    request |= {"data": data, "tasks": "glue" if tasks is None else tasks, "limit": limit}
    return _distill_rows(
        recipe,
        model_or_path(teacher),
        request,
        processes,
        corpora=paths_of(corpus),
        store=Path(store) if store else None,
        teacher_labels=teacher_labels,
        unlabelled=({} if unlabelled is None else unlabelled, unlabelled_limit),
        student=student,
        losses=losses,
    )


def _distill_text(
    recipe: str, text: Path, text_column: str, teacher: Any, request: Mapping[str, Any]
) -> Model:
    """Train a student on plain text.

    Args:
        request: the arguments of `prepare` that both kinds of distillation share.
    """
    from mtkd.api.model import Model
    from mtkd.jobs.distillation.distill_text import distill_text

    loaded, prepared = prepare("distill", recipe, data=str(text), tasks="text", limit=None, **request)
    callbacks = request["callbacks"]
    run = distill_text(prepared, loaded, teacher, text, text_column, callbacks=callbacks, warn=warn_caller)
    return Model(run.path)


def _distill_rows(
    recipe: str,
    teacher: Any,
    request: Mapping[str, Any],
    workers: Workers,
    *,
    unlabelled: tuple[Any, int | None],
    student: Any,
    **options: Any,
) -> Model:
    """Train a student on the rows of tasks.

    Args:
        request: the arguments of `prepare`.
        unlabelled: the unlabelled rows, and their maximum number.
        options: other arguments of `mtkd.jobs.distillation.distill`.
    """
    from mtkd.api.model import Model
    from mtkd.jobs.distillation.distill import distill as distill_job
    from tasks.data.unlabelled import UnlabelledRequest

    if student is not None or options["losses"] is not None:
        _require_effect(request["settings"] or {}, request["init"], student, options["losses"])
    loaded, prepared = prepare("distill", recipe, model=teacher, **request)
    run = distill_job(
        dataclasses.replace(prepared, workers=workers),
        loaded,
        teacher,
        unlabelled=UnlabelledRequest(*unlabelled),
        student=student._loaded() if isinstance(student, Model) else student,
        callbacks=request["callbacks"],
        warn=warn_caller,
        **options,
    )
    return Model(run.path)


def _require_rows(data: Any, tasks: TaskSpec | None, text_column: str) -> None:
    """Raise UserError if a run without plain text has no rows, or names the column of plain text."""
    if text_column != "text":
        problem = f"`text_column={text_column!r}` has no effect without `text`"
        raise UserError(problem, hint="pass plain text as `text='FILE'`")
    if data is None and tasks is None:
        raise UserError(
            "a distillation needs rows",
            hint="pass `data='DIR'`, `data='pocket'` or `data='hub'`, or `text='FILE'` for plain text",
        )


def _require_effect(settings: Mapping[str, Any], init: Any, student: Any, losses: Any) -> None:
    """Raise UserError for arguments that describe a student or losses which are passed as objects."""
    from mtkd.recipes import dotted

    given = {} if init is None else {"init": init}
    given |= dotted(settings)
    if student is not None:
        for key, value in given.items():
            section, _, rest = key.partition(".")
            if key == "init" or (section == "student" and (rest == "kind" or "." in rest)):
                raise _no_effect(key, value, "student")
    if losses is not None:
        for key, value in given.items():
            if "terms" in key.split("."):
                raise _no_effect(key, value, "losses")


def _no_effect(key: str, value: Any, argument: str) -> UserError:
    return UserError(
        f"`{key}={value!r}` has no effect, because `{argument}` replaces what the recipe says",
        hint=f"leave out one of the two: {key!r} or `{argument}`",
    )


def _require_no_tasks(**arguments: Any) -> None:
    """Raise UserError for arguments that a run on plain text cannot use."""
    if unusable := [f"`{name}`" for name, value in arguments.items() if value]:
        raise UserError(
            f"plain text has no tasks: {', '.join(unusable)} cannot be combined with `text`",
            hint="leave them out, or leave `text` out",
        )
