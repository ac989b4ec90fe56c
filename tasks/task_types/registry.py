"""The registry of task types: `kind` of a task -> the object that handles tasks of this type."""

from __future__ import annotations

from functools import cache

from tasks.common.errors import UserError, unknown
from tasks.common.plugins import load_plugin, load_plugins
from tasks.task import Task
from tasks.task_types.classification import Classification
from tasks.task_types.multilabel import MultiLabel
from tasks.task_types.ranking import Ranking
from tasks.task_types.regression import Regression
from tasks.task_types.span import Span
from tasks.task_types.task_type import TaskType
from tasks.task_types.text import PlainText

ENTRY_POINTS = "mtkd.task_types"
"""Entry point group under which other packages register task types."""

TASK_TYPES: dict[str, type[TaskType]] = {
    "classify": Classification,
    "regress": Regression,
    "rank": Ranking,
    "span": Span,
    "multilabel": MultiLabel,
    "text": PlainText,
}


@cache
def task_type(kind: str) -> TaskType:
    """The task type of this name, built in or from an installed package.

    Raises:
        UserError: unknown task type, or that of a package which cannot be loaded.
    """
    type_class = _find(kind)
    if type_class is None:
        raise unknown("task type", kind, task_type_names())
    return type_class()


def check_metrics(task: Task) -> None:
    """Check that the metrics of a task exist and suit its type.

    Raises:
        UserError: the task has no metrics, or one is unknown or does not suit the task.
    """
    allowed = task.type.metric_names(task)
    if not task.metrics:
        raise UserError(f"task {task.name!r} has no metrics", expected=", ".join(allowed))
    for name in task.metrics:
        if name in allowed:
            continue
        if not any(name in task_type(kind).metrics for kind in task_type_names()):
            raise unknown(f"metric in `metrics` of the task {task.name!r}:", name, allowed)
        raise UserError(
            f"metric {name!r} does not suit task {task.name!r} ({task.kind}, {len(task.labels)} labels)",
            expected=", ".join(allowed),
        )


def is_task_type(name: str) -> bool:
    """True if a task type of this name exists, built in or from an installed package."""
    return _find(name) is not None


@cache
def _find(kind: str) -> type[TaskType] | None:
    return TASK_TYPES.get(kind) or load_plugin(ENTRY_POINTS, kind, TaskType)  # type: ignore[type-abstract]


def task_type_names() -> list[str]:
    """The names of the types that a task may have (its `kind`), including those of installed packages."""
    return [kind for kind, type_class in (TASK_TYPES | installed_types()).items() if type_class.has_head]


@cache
def installed_types() -> dict[str, type[TaskType]]:
    """The task types of installed packages, by name."""
    return load_plugins(ENTRY_POINTS, TASK_TYPES, TaskType)  # type: ignore[type-abstract]
