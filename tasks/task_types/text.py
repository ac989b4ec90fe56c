"""`text`: unlabelled rows of plain text, the training data of task-agnostic recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tasks.common.errors import UserError
from tasks.data.raw_table import RawTable
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels
from tasks.task_types.results import LossSum
from tasks.task_types.task_type import Metrics, TaskType

if TYPE_CHECKING:
    from torch import Tensor


class PlainText(TaskType):
    """Plain text, which has no labels, head or predictions."""

    metrics: ClassVar[Metrics] = {}
    default_metrics = ()
    has_head = False
    outputs = "no labels"

    def n_outputs(self, task: Task) -> int:
        return 0

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        raise _no_labels(task)

    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        raise _no_labels(task)

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        raise _no_labels(task)

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        raise _no_labels(task)


def _no_labels(task: Task) -> UserError:
    return UserError(f"task {task.name!r} is of type {task.kind}, which has no labels", hint="leave it out")
