"""The labels of the teacher for `mtkd init`: rows may spell them in another way, or lack some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mtkd.pipelines.init_data import Part
from mtkd.pipelines.init_task import guess_from_splits
from tasks.common.errors import UserError, counted, shorten
from tasks.guess import Guess
from tasks.guess_labels import guessed_texts, row_labels, without_label
from tasks.task import UNLABELLED, Task


def with_teacher_labels(
    task: Task,
    guess: Guess,
    splits: Mapping[str, Part],
    teacher: str,
    order: Sequence[str] | None,
) -> tuple[Guess, dict[str, Part], list[str]]:
    """Use the labels of the teacher, if those of the rows are some of them, perhaps in another spelling.

    Nothing changes if the labels fit, or if one of them is not one of the teacher's labels (`plan_student`
    refuses them).

    Args:
        task: the task that was guessed from the rows.
        splits: split -> its rows.
        teacher: a run of mtkd or a checkpoint.
        order: the labels in the order of the checkpoint's outputs, from the user; None = by name.

    Returns:
        The guess with the labels of the teacher, the rows with labels in its spelling, and notes.
    """
    names = _other_labels_of_teacher(task, teacher, order)
    if names is None or len(set(names)) < len(names):
        return guess, dict(splits), []
    spelling = _respelled(guess.labels, names)
    if order is None:
        _require_names(task.name, task.labels, teacher, names, spelling)
    if set(spelling) != set(guess.labels):
        return guess, dict(splits), []
    changed = {label: name for label, name in spelling.items() if label != name}
    notes = []
    if changed:
        shown = shorten(f"{label!r} as {name!r}" for label, name in changed.items())
        notes.append(f"labels are respelt to match the teacher: {shown}")
    labelled = {split: part for split, part in splits.items() if split != UNLABELLED}
    respelled_parts = {split: _respelled_part(part, guess, names) for split, part in labelled.items()}
    return replace(guess, labels=tuple(names)), {**splits, **respelled_parts}, notes


def _require_names(
    task: str, labels: Sequence[str], teacher: str, names: Sequence[str], spelling: Mapping[str, str]
) -> None:
    """Raise UserError if the rows lack the labels of some outputs, and none of theirs is the name of one.

    This is not an error if they are words, as are the names.

    Args:
        task: the name of the task.
        labels: the labels of the rows.
        spelling: the labels that are nevertheless known -> the names of their outputs.
    """
    from mtkd.teachers.label_order import hint_for_numbers, is_unnamed

    if spelling or len(names) <= len(labels):
        return
    if all(map(is_unnamed, names)):
        have = counted(len(labels), "label")
        raise UserError(
            f"the teacher {teacher} does not name its {len(names)} outputs ({shorten(names)}), and the rows "
            f"have only {have} ({shorten(labels)})",
            expected="a label for each output",
            hint="name the labels of all outputs, in their order: "
            f"`teacher_labels={{{task!r}: ['FIRST', 'SECOND', 'THIRD', ...]}}`",
        )
    if hint := hint_for_numbers(task, labels, names):
        raise UserError(
            f"the outputs of the teacher {teacher} are named {shorten(names)}, but the labels of the rows "
            f"are {shorten(labels)}",
            hint=hint,
        )


def _respelled(labels: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    from mtkd.teachers.label_order import respelled  # importing torch takes seconds

    return respelled(labels, names)


def guess_for_teacher(
    splits: Mapping[str, Part],
    columns: Sequence[str],
    label: str | None,
    kind: str | None,
    teacher: str | None,
    task: str,
    order: Sequence[str] | None,
) -> Guess:
    """Like `guess_from_splits`, but rows for a teacher may have only one of its labels.

    Ratings are classes for a checkpoint that predicts classes.

    Args:
        task: the name of the task.
        order: the labels in the order of the checkpoint's outputs, from the user; None = by name.
    """
    least = 1 if teacher else 2
    guess = guess_from_splits(splits, columns, label, kind, least)
    if kind is None and guess.kind == "regress" and teacher and _is_classifier(teacher):
        guess = guess_from_splits(splits, columns, label, "classify", least)
    if teacher and len(guess.labels) == 1:
        return replace(guess, labels=_with_other_labels(guess.labels[0], task, teacher, order))
    return guess


def _with_other_labels(label: str, task: str, teacher: str, order: Sequence[str] | None) -> tuple[str, ...]:
    """The labels of the teacher, in its order, for rows that all have the same label.

    Raises:
        UserError: the teacher has no other label, or does not have this one.
    """
    names = list(order) if order else _labels_of_teacher(teacher, task) or []
    spelling = _respelled([label], names)
    if order is None:
        _require_names(task, [label], teacher, names, spelling)
    if len(set(names)) < 2 or not spelling:
        known = f"has the labels {shorten(names)}" if names else f"has no labels for the task {task!r}"
        raise UserError(
            f"all rows have the label {label!r}, and the teacher {teacher} {known}",
            expected="a teacher that predicts this label and others, or rows with two labels or more",
            hint="name another label column with `label='COLUMN'`, or the task of the teacher with "
            "`name='TASK'`",
        )
    return tuple(label if name == spelling[label] else name for name in names)


def _is_classifier(teacher: str) -> bool:
    """True if the teacher is a transformers checkpoint that predicts one of several classes."""
    from mtkd.teachers.checkpoint_config import checkpoint_config
    from mtkd.teachers.transformers_checkpoint import checkpoint_directory

    if not (directory := checkpoint_directory(teacher)):
        return False
    config = checkpoint_config(directory)
    kinds = ("regression", "multi_label_classification")
    return config.num_labels > 1 and getattr(config, "problem_type", None) not in kinds


def _other_labels_of_teacher(task: Task, teacher: str, order: Sequence[str] | None) -> list[str] | None:
    """The labels of the teacher, by output; None if it has none, or if those of the task already fit."""
    from mtkd.teachers.label_order import label_order
    from mtkd.teachers.transformers_checkpoint import checkpoint_directory

    labels = _labels_of_teacher(teacher, task.head) if task.labels else None
    if labels is None or not checkpoint_directory(teacher):
        return None if labels == list(task.labels) else labels
    try:
        label_order(f"the checkpoint {teacher}", task, labels, order)
    except UserError:
        return labels if order is None else list(order)
    return None


def _labels_of_teacher(teacher: str, head: str) -> list[str] | None:
    """The names of the outputs of a checkpoint, or the labels of a head of a run of mtkd; None if unknown."""
    from mtkd.models.saved_model import is_saved_model
    from mtkd.teachers.checkpoint_config import checkpoint_config, output_names
    from mtkd.teachers.teacher_ref import TeacherRef
    from mtkd.teachers.transformers_checkpoint import checkpoint_directory

    if directory := checkpoint_directory(teacher):
        return output_names(checkpoint_config(directory))
    if not is_saved_model(Path(teacher)):
        return None
    saved = TeacherRef.find(teacher, heads=True).saved
    heads = {known.head: list(known.labels) for known in saved.tasks} if saved else {}
    return heads.get(head)


def _respelled_part(part: Part, guess: Guess, names: Sequence[str]) -> Part:
    """Rows with the labels in the spelling of the teacher; the same part if they already are."""
    table = part.raw.table
    if guess.label not in table.column_names:
        return part
    column = table[guess.label]
    spelling = _respelled(sorted({label for row in row_labels(column, guess.kind) for label in row}), names)
    if all(label == name for label, name in spelling.items()):
        return part
    if guess.kind == "multilabel":
        rows = zip(row_labels(column, guess.kind), without_label(column, guess.kind).to_pylist(), strict=True)
        lists = [
            None if is_missing else [*dict.fromkeys(spelling.get(text, text) for text in row)]
            for row, is_missing in rows
        ]
        labels = pa.array(lists, pa.list_(pa.string()))
    else:
        texts = guessed_texts(column).to_pylist()
        labels = pa.array([spelling.get(text, text) for text in texts], pa.string())
    position = table.column_names.index(guess.label)
    table = table.set_column(position, guess.label, labels).replace_schema_metadata(None)
    return Part(replace(part.raw, table=table))
