"""The task types: one class each, and the registry that finds the class for the `kind` of a task."""

from tasks.task_types.registry import (
    ENTRY_POINTS,
    TASK_TYPES,
    check_metrics,
    is_task_type,
    task_type,
    task_type_names,
)
from tasks.task_types.results import LossSum, SplitScores
from tasks.task_types.task_type import TaskType

__all__ = [
    "ENTRY_POINTS",
    "TASK_TYPES",
    "LossSum",
    "SplitScores",
    "TaskType",
    "check_metrics",
    "is_task_type",
    "task_type",
    "task_type_names",
]
