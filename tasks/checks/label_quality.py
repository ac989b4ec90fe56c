"""Warnings about the labels of a split, for `mtkd data check` and before training; no text is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.checks.label_balance import Balance
from tasks.common.errors import brief, counted, shorten
from tasks.data.row_checks import Problem
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_types.labels import nearly_equal_labels

# Labels beyond these limits give a warning.
MAX_CLASS_SHARE = 0.9  # share of the rows in one class
MIN_CLASS_ROWS = 5  # rows per class in the training split, and in validation splits
_NOTHING = "these labels carry no information"


def label_problems(task: Task, split: str, path: str, balance: Balance) -> list[Problem]:
    """Warnings for labels from which a model learns little or nothing.

    These are a class that has nearly all rows, labels with too few rows, scores that are all equal, and
    questions without an answer, unless the task expects them. There are none for test splits, and for rows
    with soft labels, since each of these describes all classes.
    """
    if split in task.test or task.has_soft_labels(split):
        return []
    rows = {count.label: count.rows for count in balance.counts()}
    messages = _span_messages(task, rows) if task.type.predicts_spans else _class_messages(task, split, rows)
    if balance.constant_score is not None:
        messages.append(f"all scores are {balance.constant_score:g}, so {_NOTHING}")
    return [Problem(path, task.label, message, "warning") for message in messages]


def _span_messages(task: Task, rows: Mapping[str, int]) -> list[str]:
    without = rows.get("no answer", 0)
    if without and not rows.get("answer"):
        return [f"no row has an answer, so {_NOTHING}"]
    if not without or task.unanswerable:
        return []
    return [
        f"{counted(without, 'row')} {'has' if without == 1 else 'have'} no answer, but the task is not "
        "`unanswerable`, so every prediction for them is wrong"
    ]


def _class_messages(task: Task, split: str, balance: Mapping[str, int]) -> list[str]:
    """Messages about the number of rows of each label; none for `rank` tasks, whose groups are checked."""
    if not task.labels or task.group is not None or not set(task.labels) <= set(balance):
        return []
    messages = []
    rows = {name: balance[name] for name in task.labels}
    largest, total = max(rows, key=lambda name: rows[name]), sum(rows.values())
    if task.type.one_class and rows[largest] == total > 0:
        messages.append(f"all rows have the label {largest!r}, so {_NOTHING}")
    elif task.type.one_class and rows[largest] > MAX_CLASS_SHARE * total:
        share = f"{rows[largest] / total:.1%}"
        messages.append(
            f"{share} of the rows have the label {largest!r}; macro_f1 is more informative than accuracy"
        )
    rare = _rare_classes(rows)
    if rare and split == task.train:
        have = "has" if len(rare) == 1 else "have"
        messages.append(
            f"{len(rare)} of {len(rows)} labels {have} fewer than {MIN_CLASS_ROWS} rows: {shorten(rare)}"
        )
    return messages


def unmeasured_classes(
    task: Task, split: str, path: str, balance: Mapping[str, int], trained: Mapping[str, int]
) -> list[Problem]:
    """A warning for classes of the training split that have too few rows in a validation split.

    Args:
        balance: label -> rows of the validation split; there is no warning for other splits.
        trained: label -> rows of the training split.
    """
    if not task.type.one_class or split not in task.validation:
        return []
    rows = {name: balance.get(name, 0) for name in task.labels if trained.get(name)}
    rare = _rare_classes(rows)
    if not rare:
        return []
    have, them = ("has", "it") if len(rare) == 1 else ("have", "them")
    message = (
        f"{len(rare)} of {len(task.labels)} labels {have} fewer than {MIN_CLASS_ROWS} rows, so the scores on "
        f"this split carry no information about {them}: {shorten(rare)}"
    )
    return [Problem(path, task.label, message, "warning")]


def _rare_classes(rows: Mapping[str, int]) -> list[str]:
    """The classes with too few rows, each with its number of rows, for messages."""
    shown = {name: name if name == name.strip() else repr(name) for name in rows}
    return [f"{shown[name]} ({count})" for name, count in rows.items() if count < MIN_CLASS_ROWS]


def labels_alike(task: Task) -> list[str]:
    """A warning for labels that differ only in case or surrounding spaces, which may be a mistake."""
    pairs = nearly_equal_labels(task.labels)
    if not pairs:
        return []
    shown = shorten(f"{one!r} and {other!r}" for one, other in pairs)
    return [f"labels that differ only in case or surrounding spaces are different classes: {shown}"]


class GroupSizes:
    """The number of candidates in each group of a `rank` task, and of right ones among them."""

    def __init__(self, task: Task):
        self._task = task
        self._numbers: dict[Any, int] = {}  # group -> its row in `_sizes`
        self._sizes = np.zeros((0, 3), np.int64)  # rows, rows with a right candidate, rows without a label

    def add(self, groups: pa.Array, labels: np.ndarray) -> None:
        """Add some rows of the split; those without a group do not count.

        Args:
            labels: (n,) float64 ids, NaN = unlabelled.
        """
        coded = groups.dictionary_encode()
        names = coded.dictionary.to_pylist()
        numbers = np.array([self._numbers.setdefault(n, len(self._numbers)) for n in names], np.int64)
        named = coded.is_valid().to_numpy(zero_copy_only=False)
        group = numbers[coded.indices.drop_null().to_numpy()]
        values = labels[named]
        sizes = np.zeros((len(self._numbers), 3), np.int64)
        sizes[: len(self._sizes)] = self._sizes
        everything = np.ones(len(values), bool)
        for column, rows in enumerate((everything, values == self._task.positive, np.isnan(values))):
            sizes[:, column] += np.bincount(group[rows], minlength=len(sizes))
        self._sizes = sizes

    def problems(self, path: str, name: Callable[[Any], str] = brief) -> list[Problem]:
        """Warnings for groups with one candidate, and for groups without a right one.

        There are none for built-in tasks, whose groups users cannot change.

        Args:
            name: the name of a group in messages.
        """
        if TASKS.get(self._task.name) == self._task:
            return []
        rows, right, unlabelled = self._sizes.T
        names = list(self._numbers)

        def of(chosen: np.ndarray) -> str:
            first = name(names[int(chosen.argmax())])
            return f"{int(chosen.sum()):,} of {counted(len(names), 'group')} (the first is {first})"

        single, none_right = rows == 1, (right == 0) & (unlabelled == 0)
        messages = []
        if single.any():
            messages.append(f"{of(single)} have only one candidate, so there is nothing to rank")
        if none_right.any():
            label = self._task.labels[self._task.positive]
            messages.append(
                f"{of(none_right)} have no candidate with the label {label!r}: nothing is learned from "
                "them, and every ranking of them is wrong"
            )
        return [Problem(path, self._task.group, message, "warning") for message in messages]
