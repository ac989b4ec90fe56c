"""Which output of a fine-tuned checkpoint stands for which label of a task, by name and checked on rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tasks.common.errors import UserError, shorten
from tasks.task import Task
from tasks.task_types.labels import label_positions

_NUMBERED = re.compile(r"(label)?[ _-]?\d+", re.IGNORECASE)
# Another order of the labels is only suspected if it fits much better, on enough rows that it is not chance.
_CLEAR_GAIN, _CLEAR_DEVIATIONS = 0.2, 3.0


def label_order(
    who: str, task: Task, names: Sequence[str], user_labels: Sequence[str] | None = None
) -> tuple[tuple[int, ...], str | None]:
    """The output of a checkpoint for each label of a task.

    Args:
        who: how to name the checkpoint in messages.
        names: the checkpoint's own names of its outputs (`id2label`).
        user_labels: the task's labels in the order of the outputs, from the user; None = by name.

    Returns:
        The position of each label among the outputs, and a warning if the order had to be assumed. Both are
        empty for tasks without labels.

    Raises:
        UserError: the numbers of labels differ, or names do not match.
    """
    labels = task.labels
    n_labels = len(labels) or task.type.n_outputs(task)
    if user_labels is not None and (
        len(user_labels) != n_labels or None in label_positions(labels, user_labels) or not labels
    ):
        raise UserError(
            f"`teacher_labels` names {shorten(user_labels) or 'nothing'} for the task {task.name!r}",
            expected=f"each of its labels once: {shorten(labels)}" if labels else "a task with labels",
            hint="list them in the order of the checkpoint's outputs",
        )
    if len(names) != n_labels and not (task.kind == "rank" and len(names) == 1):
        raise UserError(
            f"{who} has {len(names)} outputs ({shorten(names)}), but the task {task.name!r} "
            + (f"has {n_labels} labels ({shorten(labels)})" if labels else f"needs {n_labels}"),
            expected="a checkpoint that was fine-tuned on the same labels",
        )
    if not labels or len(names) == 1:
        return (), None
    positions = label_positions(labels, names if user_labels is None else user_labels)
    order = tuple(position for position in positions if position is not None)
    if len(order) == len(labels):
        return order, None
    if order or not all(_NUMBERED.fullmatch(name) for name in names):
        raise UserError(
            f"the outputs of {who} are named {shorten(names)}, but the labels of the task {task.name!r} are "
            f"{shorten(labels)}",
            hint=f"name the task's labels in the order of the outputs: `teacher_labels={_example(task)}`",
        )
    warning = (
        f"{who} does not name its outputs ({shorten(names)}): they are taken as {shorten(labels)}, in this "
        f"order. If another order is right, pass `teacher_labels={_example(task)}` with the labels "
        "in that order."
    )
    return tuple(range(len(labels))), warning


def _example(task: Task) -> str:
    """The form of the argument, with placeholders: real labels would look like advice to use that order."""
    places = ("FIRST", "SECOND", "THIRD")[: len(task.labels)]
    return f"{task.name}={','.join(places)}" + (",..." if len(task.labels) > len(places) else "")


def check_order(who: str, task: Task, order: Sequence[int], logits: np.ndarray, labels: np.ndarray) -> None:
    """Check that no other order of the outputs agrees clearly better with labelled rows.

    Agreement is counted beyond chance (as in Cohen's kappa), so a checkpoint that always predicts the same
    label is not blamed for its order. "Clearly" means a kappa that is higher by 0.2, and a number of rows
    that is higher by three standard deviations.

    Args:
        order: the output of the checkpoint that was taken for each label.
        logits: (n, C), in the order of the task's labels.
        labels: (n,) class ids or (n, C) zeros and ones, NaN = unlabelled.

    Raises:
        UserError: another order agrees clearly better; the message names it.
    """
    from scipy.optimize import linear_sum_assignment

    size = len(task.labels)
    if size < 2 or logits.shape[1:] != (size,) or not len(logits):
        return
    labelled = ~np.isnan(labels) if labels.ndim == 1 else ~np.isnan(labels).any(axis=1)
    predicted, actual = task.type.decode(task, logits[labelled]), labels[labelled]
    if labels.ndim == 1:
        predicted, actual = (np.eye(size)[part.astype(np.int64)] for part in (predicted, actual))
    counts = predicted.T @ actual  # rows with output j predicted and label k
    chance = np.outer(predicted.sum(0), actual.sum(0)) / max(1, len(actual))
    outputs, best = linear_sum_assignment(chance - counts)
    max_gain = actual.sum() - (actual.sum(0) ** 2).sum() / max(1, len(actual))
    n_assumed, n_better = np.trace(counts), counts[outputs, best].sum()
    gain = ((counts - chance)[outputs, best].sum() - np.trace(counts - chance)) / max(max_gain, 1e-9)
    moved = outputs != best
    differing = (np.diag(counts)[moved] + counts[outputs, best][moved]).sum()
    if gain < _CLEAR_GAIN or n_better - n_assumed < _CLEAR_DEVIATIONS * np.sqrt(differing):
        return
    assumed, better = ([""] * size for _ in range(2))
    for column, label in enumerate(best):
        assumed[order[column]], better[order[column]] = task.labels[column], task.labels[label]
    raise UserError(
        f"the outputs of {who} seem to be in another order: as {', '.join(assumed)}, they agree with "
        f"{n_assumed:.0f} of {actual.sum():.0f} labels of the rows of {task.name!r}; as "
        f"{', '.join(better)}, with {n_better:.0f}",
        hint="check the order of labels that the checkpoint was trained with, and pass it: "
        f"`teacher_labels={task.name}={','.join(better)}`",
    )
