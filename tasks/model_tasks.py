"""Which tasks the heads of a model predict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tasks.errors import UserError, shorten
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve


def task_of_model(spec: TaskSpec | None, known: Collection[Task]) -> Task:
    """The one task to predict: one of the model's own by name, or a task file or record.

    Args:
        spec: None = the model's task, if it has only one.
        known: the tasks that the model has heads for.

    Raises:
        UserError: not exactly one task is named, or the model has no head for it.
    """
    tasks = list(known) if spec is None else resolve(spec, known)
    if len(tasks) != 1:
        raise UserError(
            "no task is named" if spec is None else f"{len(tasks)} tasks are named",
            expected=f"one task; the model knows {shorten(task.name for task in known) or 'none'}",
        )
    require_heads({task.head: task for task in known}, tasks, "the model")
    return tasks[0]


def require_heads(known: Mapping[str, Task], tasks: Iterable[Task], what: str) -> None:
    """Check that there is a matching head for each task.

    Args:
        known: head name -> the task that the head was trained on.
        what: how to name the model in the error ("the teacher ...").

    Raises:
        UserError: a head is missing, or was trained on another task type or other labels.
    """
    for task in tasks:
        trained = known.get(task.head)
        if trained is None:
            raise UserError(
                f"{what} has no head for the task {task.name!r}",
                expected=f"tasks it was trained on: {shorten(known, task.name) or 'none'}",
                hint="leave the task out of `tasks`, or use a model that was trained on it",
            )
        if (trained.kind, trained.labels) != (task.kind, task.labels):
            raise UserError(
                f"{what} was trained on {task.name!r} as {trained.kind} with labels "
                f"{shorten(trained.labels) or 'none'}, but the task is now {task.kind} with labels "
                f"{shorten(task.labels) or 'none'}"
            )
