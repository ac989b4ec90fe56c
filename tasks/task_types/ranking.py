"""`rank`: the right candidate of each group of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow.compute as pc

from tasks.common.errors import UserError, counted
from tasks.data.raw_table import RawTable
from tasks.scoring import metrics
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.task_types.classification import Classification
from tasks.task_types.labels import ParsedLabels, RowProblem
from tasks.task_types.results import LossSum
from tasks.task_types.task_type import Metrics

if TYPE_CHECKING:
    from torch import Tensor

Ids = TypeVar("Ids")


class Ranking(Classification):
    """One score per row, compared within groups; logits (B, 1), labels (B,) class ids of right and wrong."""

    metrics: ClassVar[Metrics] = {
        "accuracy": metrics.accuracy,
        "macro_f1": metrics.macro_f1,
        "matthews": metrics.matthews,
        "group_accuracy": metrics.group_accuracy,
        "mrr": metrics.mrr,
    }
    default_metrics = ("mrr",)
    fields = ("labels", "group", "positive")
    baseline = "giving all candidates the same score"
    one_class = False

    def check(self, task: Task) -> None:
        super().check(task)
        if task.group is None:
            raise UserError("rank tasks need the key 'group'", expected="a column name")
        if len(task.labels) != 2:
            raise UserError(
                f"a rank task has {counted(len(task.labels), 'label')}", expected="two: right and wrong"
            )
        if task.positive not in (0, 1):
            raise UserError(
                f"positive = {task.positive} is not valid",
                expected="0 or 1, the id of the label of right candidates",
            )

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        """Parse labels like classes, and check that each row has a group."""
        parsed = super().read_labels(task, split, table)
        assert task.group is not None, "checked with the task"
        for row in np.flatnonzero(pc.is_null(table.table[task.group].combine_chunks())).tolist():
            parsed.problems.append(RowProblem(row, task.group, "null instead of a group"))
        return parsed

    def n_outputs(self, task: Task) -> int:
        return 1

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """For each group with a right candidate, the negative log-probability that a right one is picked.

        The softmax is over the scores of the group; `count` is the number of groups (MKD, section 3.1).

        Raises:
            UserError: no groups.
        """
        import torch

        index = torch.unique(_require_groups(task, groups), return_inverse=True)[1]
        scores, labels = logits.float().squeeze(1), labels.float()
        of_group, _ = _log_sums(scores, ~labels.isnan(), index)
        of_right, counts = _log_sums(scores, labels == task.positive, index)
        return LossSum(torch.where(counts, of_group - of_right, 0.0).sum(), counts.sum())

    def count_items(self, task: Task, labels: Tensor, groups: Tensor | None = None) -> int:
        """The number of groups with a right candidate."""
        return int(self.loss(task, labels.new_zeros((len(labels), 1)), labels, groups).count)

    def softmax_logits(self, logits: Tensor) -> Tensor | None:
        """None: a batch may contain only part of a group, so scores are compared directly."""
        return None

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        """(n,) int64: the positive label for the highest score of each group (the first one of a tie)."""
        groups = _require_groups(task, groups)
        order = np.lexsort((-np.asarray(logits, np.float64)[:, 0], groups))
        predictions = np.full(len(groups), 1 - task.positive, dtype=np.int64)
        predictions[order[np.unique(groups[order], return_index=True)[1]]] = task.positive
        return predictions

    def probabilities(self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """(n, 2) float64; the column of the positive label is the softmax over the row's group."""
        logits = np.asarray(logits, np.float64)
        distinct, index = np.unique(_require_groups(task, groups), return_inverse=True)
        highest = np.full(len(distinct), -np.inf)
        np.maximum.at(highest, index, logits[:, 0])
        powers = np.exp(logits[:, 0] - highest[index])
        right = powers / np.bincount(index, powers)[index]
        by_label = np.stack([1.0 - right, 1.0 - right], axis=1)
        by_label[:, task.positive] = right
        return by_label

    def predictions_problem(self, task: Task, rows: RowPredictions) -> str | None:
        """Each row has the id of a label, a group and a score."""
        if rows.groups is None or rows.scores is None or rows.groups.ndim + rows.scores.ndim != 2:
            return "it has no columns 'group' and 'score' of numbers"
        return super().predictions_problem(task, rows)

    def constant_predictions(self, task: Task, labels: np.ndarray) -> list[Any]:
        """All candidates wrong, and all candidates right."""
        return [0.0, 1.0]


def _log_sums(scores: Tensor, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The logsumexp of the scores of each group, over selected rows, in time and memory linear in B.

    Args:
        scores: (B,).
        rows: (B,) bool, the rows to sum over.
        index: (B,) the group of each row, counted from 0.

    Returns:
        (B,) values by group, where slots beyond the number of groups are unused; (B,) bool, True for slots
        with rows.
    """
    import torch

    lowest = torch.finfo(scores.dtype).min
    chosen = scores.masked_fill(~rows, -torch.inf)
    highest = scores.new_full(scores.shape, lowest).scatter_reduce(0, index, chosen.detach(), "amax")
    sums = torch.zeros_like(scores).index_add(0, index, (chosen - highest[index]).exp())
    filled = sums > 0
    return highest + torch.where(filled, sums, 1.0).log(), filled


def _require_groups(task: Task, groups: Ids | None) -> Ids:
    if groups is None:
        raise UserError(
            f"task {task.name!r} ranks candidates, but these rows have no groups",
            hint="name the column whose equal values form a group: `group` in the task's TOML file",
        )
    return groups
