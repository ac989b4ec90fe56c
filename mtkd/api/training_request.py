"""Converting the arguments of `mtkd.refine`, `mtkd.distill` and `mtkd.finetune` to the inputs of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import Model
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.task_names import describe, resolve

if TYPE_CHECKING:
    from mtkd.train_settings import TrainSettings
    from mtkd.training.callbacks import Callback


def prepare(
    command: str,
    recipe: str,
    *,
    data: Any,
    tasks: Any,
    out: Any,
    settings: Any,
    train: TrainSettings | None,
    limit: int | None,
    eval_limit: int | None,
    device: str | None,
    resume: bool,
    overwrite: bool,
    callbacks: Sequence[Callback],
    model: Any = None,
    **shorthands: Any,
) -> tuple[Any, Any]:
    """Validate the arguments of a function; returns the settings of its recipe, and the request for the job.

    Args:
        model: a model or models, whose tasks `tasks` may also name.
        shorthands: see `load_recipe`.
        recipe, data, tasks, out, settings, train, limit, eval_limit, device, resume, overwrite, callbacks:
            see `mtkd.refine`.
    """
    from mtkd.jobs.request import Request
    from mtkd.training.callbacks import require_known_events
    from tasks.data.sources import open_data

    require_known_events(callbacks)
    loaded = load_recipe(command, recipe, tasks, settings, train, **shorthands)
    known_tasks = _tasks_of(model)
    requested_names = {word.strip() for word in describe(tasks).split(",")}
    if not isinstance(tasks, str | Path) or requested_names & {task.name for task in known_tasks}:
        tasks = resolve(tasks, known_tasks, data)
    request = Request(
        data=str(data) if isinstance(data, str | Path) else data if data is None else open_data(data),
        tasks=str(tasks) if isinstance(tasks, str | Path) else tasks,
        out=Path(out),
        limit=limit,
        eval_limit=eval_limit,
        resume=resume,
        overwrite=overwrite,
        device=device,
    )
    return loaded, request


def load_recipe(
    command: str,
    recipe: str,
    tasks: Any,
    settings: Any = None,
    train: TrainSettings | None = None,
    **shorthands: Any,
) -> Any:
    """The validated settings of a recipe, with the changes that a function's arguments make.

    Args:
        settings: dotted setting -> value, or an array of values.
        train: settings of the training loop; only the fields that were given are used.
        shorthands: values for names in `SHORTHANDS`; None = the recipe's value.
    """
    from mtkd.recipes import dotted, load_settings, refuse_contradiction

    plain = {
        key: value.tolist() if hasattr(value, "tolist") else value for key, value in (settings or {}).items()
    }
    plain = dotted(plain)
    changes = _train_changes(command, train, shorthands)
    names = {SHORTHANDS[name]: name for name, value in shorthands.items() if value is not None}
    if command == "finetune" and "train.lr" in names:
        names["learning_rates"] = names["train.lr"]
    for key in changes.keys() & plain.keys():
        refuse_contradiction(names.get(key, key), changes[key], key, plain[key])
    _refuse_epochs_with_steps(changes, plain, names)
    try:
        return load_settings(recipe, command, changes | plain, describe(tasks))
    except UserError as error:
        raise _with_argument(error, shorthands, changes) from error


def _refuse_epochs_with_steps(
    changes: Mapping[str, Any], plain: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Raise UserError if both epochs and steps are given, at least one of them not in `settings`.

    Only settings: no error, since those of a grid and those of its cells are combined.
    """
    steps, epochs = ({**changes, **plain}.get(key) for key in ("train.steps", "train.epochs"))
    if steps in (None, "none") or epochs is None or not changes.keys() & {"train.steps", "train.epochs"}:
        return
    raise UserError(
        f"`{names.get('train.epochs', 'train.epochs')}={epochs}` has no effect together with "
        f"`{names.get('train.steps', 'train.steps')}={steps}`, which sets the length of training",
        hint="leave one of them out",
    )


def _with_argument(error: UserError, shorthands: Mapping[str, Any], changes: Mapping[str, Any]) -> UserError:
    """The same error about the argument that was given, such as `init`, in place of its setting."""
    problem = error.problem
    for name, value in shorthands.items():
        if value is not None and (setting := SHORTHANDS[name]) in changes:
            problem = problem.replace(f"`{setting}={changes[setting]}`", f"`{name}={changes[setting]!r}`")
    return UserError(problem, expected=error.expected, hint=error.hint)


def _tasks_of(model: Any) -> list[Task]:
    """The tasks of a saved or loaded model, or of several, that are not built in."""
    from mtkd.models.multitask import MultiTaskModel
    from mtkd.models.saved_model import is_saved_model, read_saved
    from tasks.glue import TASKS

    tasks: Iterable[Task] = ()
    if isinstance(model, MultiTaskModel):
        tasks = model.tasks.values()
    elif isinstance(model, Mapping | list):
        models = model.values() if isinstance(model, Mapping) else model
        tasks = {task.name: task for one_model in models for task in _tasks_of(one_model)}.values()
    elif isinstance(model, str | Path) and is_saved_model(Path(model)):
        tasks = read_saved(Path(model)).tasks
    return [task for task in tasks if task.name not in TASKS]


# Argument -> the setting that it stands for.
SHORTHANDS = {
    "epochs": "train.epochs",
    "steps": "train.steps",
    "batch": "train.batch_size",
    "lr": "train.lr",
    "seed": "train.seed",
    "init": "student.transformer.init",
}


def _train_changes(
    command: str, train: TrainSettings | None, shorthands: Mapping[str, Any]
) -> dict[str, Any]:
    """Dotted setting -> value of `train` and of the shorthand arguments; UserError if they differ."""
    from mtkd.recipes import refuse_contradiction

    fields = {} if train is None else train.model_dump(exclude_unset=True)
    changes = {f"train.{name}": value for name, value in fields.items()}
    for name, value in shorthands.items():
        if value is not None:
            setting = SHORTHANDS[name]
            if setting in changes:
                refuse_contradiction(name, value, setting, changes[setting])
            changes[setting] = value
    if command == "finetune" and "train.lr" in changes:
        changes["learning_rates"] = [changes.pop("train.lr")]
    if "student.transformer.init" in changes:
        changes["student.transformer.init"] = str(changes["student.transformer.init"])
    return changes


def model_or_path(model: Any) -> Any:
    """Convert a model for a job: to its directory if this holds the model's weights, else to its module.

    Args:
        model: a model, or a list or a mapping of models.
    """
    from mtkd.api.model_arguments import current_source

    if isinstance(model, Mapping):
        return {task: model_or_path(one_model) for task, one_model in model.items()}
    if isinstance(model, list):
        return [model_or_path(one_model) for one_model in model]
    if isinstance(model, Model):
        model = current_source(model)
    return str(model) if isinstance(model, Path) else model


def saved_path(argument: str, model: str | Path | Model) -> str:
    """The name or directory of a model, for a function that records it or reads it in other processes.

    Args:
        argument: the name of the argument, for the error.

    Raises:
        UserError: the weights of the model are only in memory.
    """
    path = model_or_path(model) if isinstance(model, Model) else str(model)
    if isinstance(path, str):
        return path
    raise UserError(
        f"`{argument}` is a model whose weights are only in memory",
        expected="the directory of a model",
        hint=f"save it first: `{argument}=model.save('DIR')`",
    )


def paths_of(value: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The paths in an argument that may be one path or several; none for None and empty text."""
    paths = [value] if isinstance(value, str | Path) else value or []
    return [Path(path) for path in paths if path != ""]


def paths_as_text(
    unlabelled: Mapping[str, str | Path | Sequence[str | Path]] | None,
) -> dict[str, str | list[str]]:
    """Convert the paths in an argument `unlabelled` to text; None becomes an empty mapping."""
    return {
        task: str(files) if isinstance(files, str | Path) else [str(file) for file in files]
        for task, files in (unlabelled or {}).items()
    }
