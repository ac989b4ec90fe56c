"""Which output of a fine-tuned checkpoint stands for which label of a task, by name and checked on rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from tasks.common.errors import UserError, counted, shorten
from tasks.data.label_agreement import BetterOrder, better_order
from tasks.task import Task
from tasks.task_types.labels import is_number, label_positions

_NUMBERED = re.compile(r"(label)?[ _-]?\d+", re.IGNORECASE)


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
    shown = shorten(name if name.isprintable() else repr(name) for name in names)
    n_labels = len(labels) or task.type.n_outputs(task)
    if user_labels is not None and (
        len(user_labels) != n_labels or None in label_positions(labels, user_labels) or not labels
    ):
        raise UserError(
            f"`teacher_labels` lists {shorten(user_labels) or 'nothing'} for the task {task.name!r}",
            expected=f"each of its labels once: {shorten(labels)}" if labels else "a task with labels",
            hint="list them in the order of the checkpoint's outputs",
        )
    if len(names) != n_labels and not (task.kind == "rank" and len(names) == 1):
        raise UserError(
            f"{who} has {counted(len(names), 'output')} ({shown}), but the task {task.name!r} "
            + (f"has {counted(n_labels, 'label')} ({shorten(labels)})" if labels else f"needs {n_labels}"),
            expected="a checkpoint that was fine-tuned on the same labels",
            hint=_hint_of_different_labels(task, names),
        )
    if not labels or len(names) == 1:
        return (), None
    positions = label_positions(labels, names if user_labels is None else user_labels)
    order = tuple(position for position in positions if position is not None)
    if len(order) == len(labels):
        return order, None
    if order or not all(map(is_unnamed, names)):
        raise UserError(
            f"the outputs of {who} are named {shown}, but the labels of the task {task.name!r} are "
            f"{shorten(labels)}",
            hint=hint_for_numbers(task.name, labels, names)
            or f"name the task's labels in the order of the outputs: {_example(task)}",
        )
    warning = (
        f"{who} does not name its outputs ({shown}): they are taken as {shorten(labels)}, in this "
        f"order. If another order is right, pass {_example(task)} with the labels "
        "in that order."
    )
    return tuple(range(len(labels))), warning


def _hint_of_different_labels(task: Task, names: Sequence[str]) -> str | None:
    """What to do if a task has other labels than a checkpoint has outputs; None if these have no names."""
    if not task.labels or all(map(is_unnamed, names)):
        return None
    known = respelled(task.labels, names)
    positions = zip(task.labels, label_positions(task.labels, names), strict=True)
    surplus = [label for label, at in positions if at is None and label not in known]
    unused = [name for name, at in zip(names, label_positions(names, task.labels), strict=True) if at is None]
    unused = [name for name in unused if name not in known.values()]
    if surplus:
        return f"no output is named {shorten(surplus)}: change or leave out the rows with such labels"
    if unused:
        return f"no row is labelled {shorten(unused)}: list all outputs as `labels` in a task file"
    return "some labels differ only in case or punctuation: write each of them in one way"


def hint_for_numbers(task: str, labels: Sequence[str], names: Sequence[str]) -> str | None:
    """The hint for labels that are numbers, if the outputs have names; None for other labels.

    Args:
        task: the name of the task.
        names: the names of the outputs, of which there may be more than labels.
    """
    numbers = [str(number) for number in range(len(names))]
    if not set(labels) <= set(numbers) or all(map(is_unnamed, names)):
        return None
    meaning = shorten(f"{number} stands for {name}" for number, name in zip(numbers, names, strict=True))
    argument = _labels_argument(task, ", ".join(map(repr, numbers)))
    return f"numbers are not matched with names: if {meaning}, pass {argument}, else another order"


def is_unnamed(name: str) -> bool:
    """True for the name of an output that only numbers it, such as LABEL_0."""
    return _NUMBERED.fullmatch(name) is not None


def respelled(labels: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """The labels that are names apart from their spelling -> the names.

    Differences in spelling are upper and lower case, blanks, `_`, `-`, quotation marks, and for numbers the
    word "label" and decimals: LABEL_0, 0 and 0.0 are the same. A label that several names could mean is one
    only if it is spelt like it.
    """
    by_spelling: dict[str, list[str]] = {}
    for name in names:
        by_spelling.setdefault(_spelling(name), []).append(name)
    found = {label: [label] if label in names else by_spelling.get(_spelling(label), []) for label in labels}
    return {label: same[0] for label, same in found.items() if len(same) == 1}


def _spelling(name: str) -> str:
    """A name without what `respelled` ignores."""
    plain = re.sub(r"^label(?=\d+$)", "", re.sub(r"[\s_\"'-]", "", name.casefold()))
    number = name if is_number(name) else plain  # the sign counts
    return str(float(number)) if is_number(number) else plain


def _example(task: Task) -> str:
    """The form of the argument, with placeholders: real labels would look like advice to use that order."""
    places = ", ".join(map(repr, ("FIRST", "SECOND", "THIRD")[: len(task.labels)]))
    return _labels_argument(task.name, places + (", ..." if len(task.labels) > 3 else ""))


def _labels_argument(task: str, names: str) -> str:
    """The argument as Python code; the command line turns it into an option (`mtkd.cli.flags`)."""
    return f"`teacher_labels={{{task!r}: [{names}]}}`"


def check_order(who: str, task: Task, order: Sequence[int], logits: np.ndarray, labels: np.ndarray) -> None:
    """Check that no other order of the outputs agrees clearly better with labelled rows (`better_order`).

    Args:
        order: the output of the checkpoint that was taken for each label.
        logits: (n, C), in the order of the task's labels.
        labels: (n,) class ids or (n, C) zeros and ones, NaN = unlabelled.

    Raises:
        UserError: another order agrees clearly better; the message names it.
    """
    better = better_order(task, logits, labels)
    if better is not None and better.is_clear:
        raise UserError(
            f"the outputs of {who} seem to be in another order: {_compared(task, order, better)}",
            hint="check the order of labels that the checkpoint was trained with, and pass it: "
            f"{_argument(task, order, better)}",
        )


def possible_order(task: Task, order: Sequence[int], logits: np.ndarray, labels: np.ndarray) -> str | None:
    """A remark on another order that agrees better with labelled rows, though on too few to be sure, or None.

    The arguments are those of `check_order`.
    """
    better = better_order(task, logits, labels)
    if better is None:
        return None
    return (
        f"its outputs may be in another order: {_compared(task, order, better)}. These are too few rows to "
        "be sure: check the order of labels that the checkpoint was trained with, and pass it: "
        f"{_argument(task, order, better)}"
    )


def order_warnings(
    who: str, task: Task, order: Sequence[int], logits: np.ndarray, labels: np.ndarray
) -> list[str]:
    """What `check_order` and `possible_order` find, as warnings."""
    try:
        check_order(who, task, order, logits, labels)
    except UserError as error:
        return [f"{error.problem}; {error.hint}"]
    remark = possible_order(task, order, logits, labels)
    return [f"{who}: {remark}"] if remark else []


def _compared(task: Task, order: Sequence[int], better: BetterOrder) -> str:
    assumed = _by_output(task.labels, order)
    agreeing = f"{better.agreeing_as_assumed:,} of {better.total:,} labels of the rows of {task.name!r}"
    return (
        f"as {', '.join(assumed)}, they agree with {agreeing}; "
        f"as {', '.join(_by_output(better.labels, order))}, with {better.agreeing:,}"
    )


def _argument(task: Task, order: Sequence[int], better: BetterOrder) -> str:
    return _labels_argument(task.name, ", ".join(map(repr, _by_output(better.labels, order))))


def _by_output(labels: Sequence[str], order: Sequence[int]) -> list[str]:
    """Labels in the order of the checkpoint's outputs; `order`: the output of each label of the task."""
    by_output = [""] * len(labels)
    for output, label in zip(order, labels, strict=True):
        by_output[output] = label
    return by_output
