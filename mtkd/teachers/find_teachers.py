"""Find the teachers of a run: one for all tasks, or one or several for each task."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.models.multitask import MultiTaskModel
from mtkd.teachers.group import Member, TeacherGroup
from mtkd.teachers.teacher_names import (
    LabelsSpec,
    TeacherSpec,
    as_pair,
    parse_labels,
    teacher_name,
    teachers_by_task,
)
from mtkd.teachers.teacher_ref import TeacherObject, TeacherRef
from mtkd.teachers.transformers_checkpoint import CheckpointRef, checkpoint_directory, refuse_headless
from tasks.common.errors import UserError, shorten, unknown
from tasks.common.reading import real_path
from tasks.model_tasks import require_heads
from tasks.task import Task


def find_teachers(
    spec: TeacherSpec, tasks: Sequence[Task], heads: bool, labels: LabelsSpec = None
) -> TeacherRef | None:
    """Find the teachers of a run without loading their weights.

    Tasks with soft labels (`Task.soft_labels`) need no teacher; if one is named for them, it is used too.

    Args:
        spec: see `teachers_by_task`; None = no teacher.
        heads: True if the teachers' logits are needed.
        labels: see `parse_labels`.

    Returns:
        The teacher; a `TeacherGroup` if there are several.

    Raises:
        UserError: a task has no teacher, a teacher is named for a task that is not trained, or a teacher does
            not exist or does not fit its task.
    """
    label_orders = parse_labels(labels)
    by_name = {task.name: task for task in tasks}
    if unknown_names := [name for name in label_orders if name not in by_name]:
        raise unknown("task in `teacher_labels`", unknown_names[0], by_name)
    pairs = [] if spec is None else teachers_by_task(spec)
    for name, teacher in pairs:
        if name is not None and name not in by_name:
            raise UserError(
                f"the teacher {teacher_name(teacher)} is named for the task {name!r}, which is not trained",
                expected=f"a task of the run: {shorten(by_name, name)}",
                hint="add it to `tasks`, or leave the teacher out",
            )
    _refuse_repeated(pairs, list(by_name))
    with_teacher = {name for name, _ in pairs if name is not None}
    tasks_without_teacher = [
        name for name, task in by_name.items() if name not in with_teacher and not task.soft_labels
    ]
    others_are_taught = bool(pairs) or (heads and len(tasks_without_teacher) < len(by_name))
    if tasks_without_teacher and all(name is not None for name, _ in pairs) and others_are_taught:
        raise UserError(
            f"the task {tasks_without_teacher[0]!r} has no teacher",
            expected=f"a teacher for each of {', '.join(by_name)}",
            hint=f"add one (`teacher={{{tasks_without_teacher[0]!r}: 'DIR'}}`), name its column of soft "
            "labels as `soft_labels` in its task file, or leave the task out of `tasks`",
        )
    members = [
        member
        for teacher, names in _tasks_by_teacher(pairs, list(by_name))
        for member in _members(
            teacher,
            [by_name[name] for name in names],
            heads,
            label_orders,
            tasks_named=(None, teacher) not in pairs,
        )
    ]
    checkpoint_tasks = {
        name for member in members if isinstance(member.teacher, CheckpointRef) for name in member.tasks
    }
    if extra := [name for name in label_orders if name not in checkpoint_tasks]:
        raise UserError(
            f"`teacher_labels` gives the order of labels for {extra[0]!r}, but the teacher of this task is "
            "not a transformers checkpoint",
            hint="leave it out: an mtkd run knows its labels",
        )
    return TeacherGroup.of(members, tasks) if members else None


def _tasks_by_teacher(
    pairs: Sequence[tuple[str | None, Any]], task_names: list[str]
) -> list[tuple[Any, list[str]]]:
    """Each teacher with the names of its tasks; a teacher that is named for several tasks occurs once."""
    teachers: list[tuple[Any, list[str]]] = []
    for name, teacher in pairs:
        names = [name] if name is not None else task_names
        for other, other_names in teachers:
            if _is_same_teacher(other, teacher) and not set(other_names) & set(names):
                other_names.extend(names)
                break
        else:
            teachers.append((teacher, list(names)))
    return teachers


def _refuse_repeated(pairs: Sequence[tuple[str | None, Any]], task_names: list[str]) -> None:
    """Raise UserError if a teacher is named twice for a task: averaging it with itself changes nothing."""
    for (name, teacher), (other_name, other) in itertools.combinations(pairs, 2):
        if _is_same_teacher(teacher, other) and (name is None or other_name in (None, name)):
            of_task = name or other_name or task_names[0]
            raise UserError(
                f"the teacher {teacher_name(teacher)} is named twice for the task {of_task!r}",
                hint="name it once",
            )


def _is_same_teacher(one: Any, other: Any) -> bool:
    """True for the same object, and for names of the same model or directory."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other or (os.path.exists(one) and real_path(one) == real_path(other))
    return one is other


def _members(
    teacher: Any,
    tasks: Sequence[Task],
    heads: bool,
    label_orders: Mapping[str, Sequence[str]],
    tasks_named: bool,
) -> Iterator[Member]:
    """A teacher with the tasks that it teaches; a transformers checkpoint yields one member per task.

    Args:
        tasks_named: True if the user named the tasks that it teaches.

    Raises:
        UserError: the teacher does not exist or does not fit a task, or it is a checkpoint for one task, but
            the run has several.
    """
    source: Any = as_pair(teacher)
    if source is None and isinstance(teacher, str) and heads:
        source = checkpoint_directory(teacher)
        if source is None:
            refuse_headless(Path(teacher))
    if source is not None:
        if len(tasks) > 1 and not tasks_named:
            raise UserError(
                f"the transformers checkpoint {teacher_name(teacher)} is for one task, but the run has "
                f"{', '.join(task.name for task in tasks)}",
                hint=f"name the task that it teaches, `teacher={{{tasks[0].name!r}: 'DIR'}}`, and a teacher "
                "for each other task",
            )
        for task in tasks:
            ref = CheckpointRef.of(teacher_name(teacher), source, task, label_orders.get(task.name))
            yield Member(ref, (task.name,))
        return
    model = isinstance(teacher, MultiTaskModel)
    teacher_ref = TeacherObject.of(teacher) if model else TeacherRef.find(teacher, heads)
    if heads and teacher_ref.saved is not None:
        heads_of_teacher = {task.head: task for task in teacher_ref.saved.tasks}
        require_heads(heads_of_teacher, tasks, f"the teacher {teacher_ref.name}")
    yield Member(teacher_ref, tuple(task.name for task in tasks))
