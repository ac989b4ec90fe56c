"""What each kind of task does with logits: the hard loss, the answer, the probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.errors import UserError
from tasks.task import Task

_NO_CLASS = -100
Ids = TypeVar("Ids", Tensor, np.ndarray)


@dataclass(frozen=True)
class LossSum:
    """A loss before it is divided.

    Attributes:
        total: scalar float32, the sum of the loss over what it counts.
        count: scalar int64, how many rows (`rank`: groups) are in the sum; it stays on the device.
    """

    total: Tensor
    count: Tensor


def hard_loss(task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
    """The loss against the labels, computed in float32 (MKD, section 3.1; `regress` is its Eq. 2).

    `classify`: cross-entropy. `regress`: squared error. `rank`: for each group with a right candidate,
    -log of the probability that a right one is picked, the softmax being over the group's scores.
    `span`: cross-entropy of the first and of the last token, their mean (BERT, section 4.2).
    Unlabelled rows take no part; where nothing is labelled the total is 0 and still has a gradient.

    Args:
        logits: (B, C), C = 1 for `regress` and `rank`; (B, 2, L) for `span`.
        labels: (B,) float class ids or scores, or (B, 2) tokens (`span`); NaN = unlabelled.
        groups: (B,) integer ids of the candidate groups (`rank`).

    Raises:
        UserError: a `rank` task without groups.
    """
    return _kind(task).loss(task, logits.float(), labels.float(), groups)


def count_labels(task: Task, labels: Tensor, groups: Tensor | None = None) -> int:
    """How many rows (`rank`: groups) `hard_loss` sums over.

    Raises:
        UserError: a `rank` task without groups.
    """
    blank = labels.new_zeros((len(labels), max(1, task.n_outputs)))
    if labels.dim() == 2:
        return int((~labels.isnan()).all(1).sum())
    return int(hard_loss(task, blank, labels, groups).count)


def decode(task: Task, logits: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The answers: (B,) int64 class ids, or float64 scores inside the task's range (`regress`).

    `rank`: the highest scored of each group gets the positive label (the first of equals), the others
    the other label.

    Args:
        logits: (B, C).
        groups: (B,) ids of the candidate groups (`rank`).

    Raises:
        UserError: a `rank` task without groups, or a `span` task (`tasks.span_answers` decodes these).
    """
    return _kind(task).decode(task, np.asarray(logits, dtype=np.float64), groups)


def probabilities(task: Task, logits: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray | None:
    """The probability of each label, (B, n_labels) float64, or None for `regress`, which has none.

    `rank`: the positive label's column is the softmax over the row's group, the other column the rest.

    Raises:
        UserError: a `rank` task without groups, or a `span` task (`tasks.span_answers` decodes these).
    """
    return _kind(task).probabilities(task, np.asarray(logits, dtype=np.float64), groups)


def _classify_loss(task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None) -> LossSum:
    classes = labels.nan_to_num(nan=_NO_CLASS).long()
    total = F.cross_entropy(logits, classes, ignore_index=_NO_CLASS, reduction="sum")
    return LossSum(total, (classes != _NO_CLASS).sum())


def _regress_loss(task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None) -> LossSum:
    known = ~labels.isnan()
    squares = (logits.squeeze(1) - labels.nan_to_num()).square()
    return LossSum((squares * known).sum(), known.sum())


def _rank_loss(task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None) -> LossSum:
    index = torch.unique(_grouped(task, groups), return_inverse=True)[1]
    of_group, _ = _log_sums(logits.squeeze(1), ~labels.isnan(), index)
    of_right, counts = _log_sums(logits.squeeze(1), labels == task.positive, index)
    return LossSum(torch.where(counts, of_group - of_right, 0.0).sum(), counts.sum())


def _span_loss(task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None) -> LossSum:
    known = ~labels.isnan().any(1)
    tokens = torch.where(known.unsqueeze(1), labels, _NO_CLASS).nan_to_num(nan=_NO_CLASS).long()
    total = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=_NO_CLASS, reduction="sum")
    return LossSum(total / 2, known.sum())


def _log_sums(scores: Tensor, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The logsumexp of each group's scores, over the chosen rows only; time and memory are linear in B.

    Args:
        scores: (B,).
        rows: (B,) bool, the rows to sum over.
        index: (B,) each row's group, from 0 up.

    Returns:
        (B,) by group, the slots above the number of groups empty; (B,) bool, whether a slot has rows.
    """
    lowest = torch.finfo(scores.dtype).min
    chosen = scores.masked_fill(~rows, -torch.inf)
    highest = scores.new_full(scores.shape, lowest).scatter_reduce(0, index, chosen.detach(), "amax")
    sums = torch.zeros_like(scores).index_add(0, index, (chosen - highest[index]).exp())
    filled = sums > 0
    return highest + torch.where(filled, sums, 1.0).log(), filled


def _classify_decode(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    return logits.argmax(axis=1)


def _regress_decode(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    return logits[:, 0] if task.range is None else logits[:, 0].clip(*task.range)


def _rank_decode(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    groups = _grouped(task, groups)
    order = np.lexsort((-logits[:, 0], groups))
    answers = np.full(len(groups), 1 - task.positive, dtype=np.int64)
    answers[order[np.unique(groups[order], return_index=True)[1]]] = task.positive
    return answers


def _classify_probabilities(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _rank_probabilities(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    found, index = np.unique(_grouped(task, groups), return_inverse=True)
    highest = np.full(len(found), -np.inf)
    np.maximum.at(highest, index, logits[:, 0])
    powers = np.exp(logits[:, 0] - highest[index])
    right = powers / np.bincount(index, powers)[index]
    by_label = np.stack([1.0 - right, 1.0 - right], axis=1)
    by_label[:, task.positive] = right
    return by_label


def _no_probabilities(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> None:
    return None


def _of_windows(task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    raise UserError(f"task {task.name!r}: answers of span tasks are those of whole examples, not of rows")


@dataclass(frozen=True)
class _Kind:
    """The functions of one kind of task; each takes (task, logits, ..., groups)."""

    loss: Callable[[Task, Tensor, Tensor, Tensor | None], LossSum]
    decode: Callable[[Task, np.ndarray, np.ndarray | None], np.ndarray]
    probabilities: Callable[[Task, np.ndarray, np.ndarray | None], np.ndarray | None]


_KINDS: dict[str, _Kind] = {
    "classify": _Kind(_classify_loss, _classify_decode, _classify_probabilities),
    "regress": _Kind(_regress_loss, _regress_decode, _no_probabilities),
    "rank": _Kind(_rank_loss, _rank_decode, _rank_probabilities),
    "span": _Kind(_span_loss, _of_windows, _of_windows),
}


def _kind(task: Task) -> _Kind:
    if task.kind not in _KINDS:
        raise UserError(
            f"task {task.name!r}: a task of kind {task.kind} has no labels",
            expected=f"kinds {', '.join(_KINDS)}",
            hint="leave the task out of --tasks",
        )
    return _KINDS[task.kind]


def _grouped(task: Task, groups: Ids | None) -> Ids:
    """The groups, which a `rank` task cannot do without."""
    if groups is None:
        raise UserError(
            f"task {task.name!r} ranks candidates, and these rows have no groups",
            hint="name the column whose equal values form a group: `group` in the task's TOML file",
        )
    return groups
