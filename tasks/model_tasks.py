"""Which tasks the heads of a model predict, and the predictions of a head for a task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.checks.truncated_rows import TruncatedRows
from tasks.common.errors import UserError, counted, shorten, unknown
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader


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
            "no task was given" if spec is None else f"{len(tasks)} tasks were given",
            expected=f"one task; the model knows {shorten(task.name for task in known) or 'none'}",
            hint="pass one of them as `task='NAME'`" if known else None,
        )
    require_heads({task.head: task for task in known}, tasks, "the model")
    return tasks[0]


def with_text_columns(task: Task, columns: Sequence[str]) -> Task:
    """The task with its texts in columns of other names.

    Args:
        columns: one name for each text; () = those of the task.

    Raises:
        UserError: these are more or fewer names than the task has texts, or one is given twice.
    """
    if len(columns) not in (0, len(task.columns)):
        raise UserError(
            f"`columns={list(columns)}` has {counted(len(columns), 'name')}",
            expected=f"one for each text of the task {task.name!r}: {', '.join(task.columns)}",
        )
    if len(set(columns)) < len(columns):
        raise UserError(
            f"`columns={list(columns)}` names {columns[0]!r} twice", expected="another column for each text"
        )
    return replace(task, columns=tuple(columns) or task.columns)


def require_heads(known: Mapping[str, Task], tasks: Iterable[Task], what: str) -> None:
    """Check that there is a matching head for each task.

    Args:
        known: head name -> the task that the head was trained on.
        what: how to name the model in the error ("the teacher ...").

    Raises:
        UserError: a head is missing, or was trained on another task type, on another number of texts, or on
            other labels and `Task.map` does not say what each of them becomes.
    """
    for task in tasks:
        trained = known.get(task.head)
        if trained is None:
            head = f" ({task.head!r})" if task.head != task.name else ""
            raise UserError(
                f"{what} has no head for the task {task.name!r}{head}",
                expected=f"tasks it was trained on: {shorten(known, task.name) or 'none'}",
                hint="name one of these, or use a model that was trained on it",
            )
        labels = task.labels
        if task.map and trained.kind == task.kind:
            _check_map(task, trained)
            labels = trained.labels
        if (trained.kind, trained.labels) != (task.kind, labels):
            new = [repr(label) for label in task.labels if label not in trained.labels]
            gone = [repr(label) for label in trained.labels if label not in task.labels]
            only = (("the model", gone), ("the task", new))
            differences = [f"only {side} has {shorten(names)}" for side, names in only if names]
            raise UserError(
                f"{what} was trained on {task.head!r} as {trained.kind} with labels "
                f"{shorten(trained.labels) or 'none'}, but the task is now {task.kind} with labels "
                f"{shorten(task.labels) or 'none'}",
                expected=f"the same labels in the same order; {'; '.join(differences)}".removesuffix("; "),
                hint="name the label of the task that each of them becomes: `map` in the task file"
                if task.head != task.name
                else "correct the labels of the task, or train on these labels",
            )
        if len(trained.columns) != len(task.columns):
            raise UserError(
                f"{what} reads {counted(len(trained.columns), 'text')} per row of {task.head!r}, but "
                f"{'the task' if task.head == task.name else repr(task.name)} has {len(task.columns)}",
                expected=f"as many text columns as {', '.join(map(repr, trained.columns))}",
                hint="correct the columns of the task, or train on these columns",
            )


def _check_map(task: Task, trained: Task) -> None:
    where = f"`map` of task {task.name!r}"
    for label in task.map:
        if label not in trained.labels:
            raise unknown(f"label of the head {task.head!r} in the {where}:", label, trained.labels)
    if unmapped := [label for label in trained.labels if label not in task.map]:
        raise UserError(
            f"the {where} lacks the label {unmapped[0]!r} of the head {task.head!r}",
            expected=f"one of {shorten(task.labels)} for each of {shorten(trained.labels)}",
        )


def mapped_logits(task: Task, trained: Task, logits: np.ndarray) -> np.ndarray:
    """The logits (B, K) of a task's labels, from those (B, C) of the head that predicts it.

    Without a `map`, they are the same. With one, the logit of a label is the logsumexp of the logits that
    become it, so that its probability is the sum of theirs.

    Args:
        trained: the task that the head was trained on.
    """
    if not task.map:
        return logits
    columns = ([task.map[name] == label for name in trained.labels] for label in task.labels)
    return np.stack([np.logaddexp.reduce(logits[:, mask], axis=1) for mask in columns], axis=1)


def recorded_threshold(thresholds: Mapping[str, Any], task: Task, heads: Mapping[str, Task]) -> Any:
    """The best threshold (`TaskType.best_threshold`) on the validation rows of the task that the head was
    trained on, or None.

    Args:
        thresholds: task -> its recorded threshold, for the tasks of a model that have one.
        heads: head name -> the task that it was trained on.
    """
    if not task.type.has_threshold(task):
        return None
    names = heads.get(task.head, task).name, task.head  # an export can name the head after another task
    return next((thresholds[name] for name in names if name in thresholds), None)


def prediction_records(
    task: Task,
    reader: Reader,
    encoded: Encoded,
    logits: np.ndarray,
    threshold: Any,
    truncated: TruncatedRows | None = None,
) -> Iterable[dict[str, Any]]:
    """One record per row, with `prediction` and the other values of the task's type (`TaskType.records`).

    Args:
        reader: what converted the rows to token ids.
        threshold: the threshold tuned on validation rows; None = the default of the type.
        truncated: where to count truncated rows, for one warning about many parts; by default, warn of them.
    """
    of_these_rows = TruncatedRows()
    (truncated or of_these_rows).add(reader, encoded)
    of_these_rows.warn()
    return task.type.records(task, encoded, logits, reader.layout(len(task.columns)), threshold)
