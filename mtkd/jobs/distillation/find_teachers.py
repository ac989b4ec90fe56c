"""The teachers of a run as users name them: one for all tasks, or one or several for each task."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mtkd.jobs.distillation.python_objects import TeacherObject
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import is_saved_model, model_directory, read_saved
from mtkd.teachers.group import Member, TeacherGroup
from mtkd.teachers.label_lists import parse_label_list
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.transformers_checkpoint import CheckpointRef, checkpoint_directory, refuse_headless
from mtkd.time_trial import current_trial
from mtkd.training.run_directory import RUN_FILE
from mtkd.training.run_record import read_run_record
from tasks.common.errors import UserError, a_type, shorten, unknown
from tasks.common.remote import local
from tasks.model_tasks import require_heads
from tasks.task import Task

# A name, a model, a pair (transformers model, tokeniser), or a list or a mapping by task of these.
TeacherSpec = Any
LabelsSpec = Mapping[str, Sequence[str]] | Sequence[str] | str | None

_TASK_ASSIGNMENT = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)


def teachers_by_task(spec: TeacherSpec) -> list[tuple[str | None, Any]]:
    """Every teacher as (task, teacher); the task is None if it teaches all tasks.

    Args:
        spec: a teacher, `"sst2=DIR,rte=NAME"`, a mapping of tasks to teachers or lists of teachers, or a list
            of teachers.

    Raises:
        UserError: a value is of another type, or a list is empty.
    """
    if isinstance(spec, str) and _TASK_ASSIGNMENT.fullmatch(spec) and not Path(spec).exists():
        matches = [_TASK_ASSIGNMENT.fullmatch(part) for part in re.split(r",(?=[A-Za-z][\w-]*=)", spec)]
        return [(part[1], _not_blank(part[2], part[1])) for part in matches if part]
    if isinstance(spec, Mapping):
        pairs = [(task, teacher) for task, value in spec.items() for _, teacher in teachers_by_task(value)]
    elif isinstance(spec, list):
        pairs = [pair for value in spec for pair in teachers_by_task(value)]
    elif isinstance(spec, str | MultiTaskModel) or as_pair(spec):
        return [(None, _not_blank(spec))]
    else:
        raise UserError(
            f"`teacher` cannot be {a_type(spec)}",
            expected="a directory or name, a model, a pair (transformers model, tokeniser), or a mapping "
            'such as {"sst2": teacher}',
        )
    if not pairs:
        raise UserError("`teacher` is empty", expected="a teacher for each task")
    return pairs


def _not_blank(teacher: Any, task: str | None = None) -> Any:
    """The teacher; raises UserError for several in one name, and for an empty name."""
    of_task = f" for the task {task!r}" if task else ""
    if isinstance(teacher, str) and not teacher.strip():
        raise UserError(f"`teacher` has an empty name{of_task}", expected="a directory or name")
    if isinstance(teacher, str) and "," in teacher and not Path(teacher).exists():
        parts = teacher.split(",")
        if all(part and Path(part).is_dir() for part in parts):
            each = ",".join(f"{task or 'TASK'}={part}" for part in parts)
            raise UserError(
                f"`teacher` names {len(parts)} directories{of_task} in one value: {teacher}",
                hint=f"name the task of each: `teacher={each!r}`",
            )
    return teacher


def as_pair(teacher: Any) -> tuple[nn.Module, Any] | None:
    """A transformers model and its tokeniser, given as a pair or as a pipeline; None for anything else."""
    pair = teacher if isinstance(teacher, tuple) and len(teacher) == 2 else None
    if pair is None and hasattr(teacher, "model") and hasattr(teacher, "tokenizer"):
        pair = (teacher.model, teacher.tokenizer)
    fits = pair is not None and hasattr(pair[0], "base_model") and hasattr(pair[1], "backend_tokenizer")
    return pair if fits else None


def describe_teachers(spec: TeacherSpec) -> str | dict[str, list[str]] | None:
    """How a run's record names its teachers."""
    if spec is None:
        return None
    pairs = teachers_by_task(spec)
    if len(pairs) == 1 and pairs[0][0] is None:
        return teacher_name(pairs[0][1])
    names_by_task: dict[str, list[str]] = {}
    for task, teacher in pairs:
        names_by_task.setdefault(task or "all", []).append(teacher_name(teacher))
    return names_by_task


def teacher_name(teacher: Any) -> str:
    """How messages and records name a model: as the user named it, or by the class of an object."""
    if isinstance(teacher, str | Path):
        return str(teacher)
    pair = as_pair(teacher)
    return type(pair[0] if pair else teacher).__name__


def parse_labels(spec: LabelsSpec) -> dict[str, list[str]]:
    """Task -> labels in the order of a checkpoint's outputs, from a mapping or from texts "TASK=a,b,c".

    The labels of a text may also be a list in JSON (`parse_label_list`).

    Raises:
        UserError: a text is not of that form.
    """
    if isinstance(spec, Mapping):
        return {task: list(labels) for task, labels in spec.items()}
    labels_by_task = {}
    for text in [spec] if isinstance(spec, str) else spec or ():
        match = _TASK_ASSIGNMENT.fullmatch(text)
        if not match:
            raise UserError(
                f"`teacher_labels={text!r}` does not name a task",
                expected="TASK=label,label,...",
                hint=f"`teacher_labels={{'TASK': {parse_label_list(text, 'TASK')}}}`"
                if "=" not in text
                else None,
            )
        labels_by_task[match[1]] = parse_label_list(match[2], match[1])
    return labels_by_task


def find_teachers(
    spec: TeacherSpec, tasks: Sequence[Task], heads: bool, labels: LabelsSpec = None
) -> TeacherRef | None:
    """Find the teachers of a run without loading their weights.

    Tasks with soft labels (`Task.soft_labels`) need no teacher, but a teacher that is named for them is used.

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
    soft = heads and len(tasks_without_teacher) < len(by_name)
    if tasks_without_teacher and all(name is not None for name, _ in pairs) and (pairs or soft):
        raise UserError(
            f"the task {tasks_without_teacher[0]!r} has no teacher",
            expected=f"a teacher for each of {', '.join(by_name)}",
            hint=f"add one (`teacher={{{tasks_without_teacher[0]!r}: 'DIR'}}`), name a column of "
            "soft_labels in its task file, or leave the task out of `tasks`",
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
        n for member in members if isinstance(member.teacher, CheckpointRef) for n in member.tasks
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
        same = (
            known
            for other, known in teachers
            if _is_same_teacher(other, teacher) and not set(known) & set(names)
        )
        if (names_of_same := next(same, None)) is not None:
            names_of_same.extend(names)
        else:
            teachers.append((teacher, list(names)))
    return teachers


def _refuse_repeated(pairs: Sequence[tuple[str | None, Any]], task_names: list[str]) -> None:
    """Raise UserError if a teacher is named twice for a task: its average with itself is no other teacher."""
    for (name, teacher), (other_name, other) in itertools.combinations(pairs, 2):
        if _is_same_teacher(teacher, other) and (name is None or other_name in (None, name)):
            of_task = name or other_name or task_names[0]
            raise UserError(
                f"the teacher {teacher_name(teacher)} is named twice for the task {of_task!r}",
                hint="name it once",
            )


def _is_same_teacher(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one == other or (os.path.exists(one) and os.path.realpath(one) == os.path.realpath(other))
    return one is other


def _members(
    teacher: Any,
    tasks: Sequence[Task],
    heads: bool,
    label_orders: Mapping[str, Sequence[str]],
    tasks_named: bool,
) -> Iterator[Member]:
    """A teacher with the tasks that it teaches; a transformers checkpoint is one teacher per task.

    Args:
        tasks_named: True if the user named the tasks that it teaches.
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
                "for each other",
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


def pretrained_encoder(model: Path) -> str | None:
    """The pretrained encoder that a model, or the teacher of its run, started from; None if unknown."""
    base = read_saved(model).info.base
    record = model_directory(model).parent / RUN_FILE
    if base is None and record.is_file():
        identity = read_run_record(record)["identity"]
        start = identity.get("teacher") or identity.get("model")
        return encoder_of(_find_recorded_model(start, record.parent)) if isinstance(start, str) else None
    return base


def _find_recorded_model(name: str, run: Path) -> str:
    """The path of a model that a run's record names; a relative path is also tried from each folder above."""
    candidates = (parent / name for parent in run.resolve().parents)
    return name if Path(name).is_dir() else next((str(path) for path in candidates if path.is_dir()), name)


def encoder_of(teacher: str) -> str | None:
    """The pretrained encoder that a teacher started from, or the teacher itself if it is one."""
    teacher = local(teacher)
    if is_saved_model(Path(teacher)):
        return pretrained_encoder(Path(teacher))
    return teacher if checkpoint_directory(teacher) is None else None


def logits_directory(teacher: TeacherRef, run: Path) -> Path:
    """The directory of a teacher's cached logits: beside its weights if it is a run, else in `run`.

    Args:
        run: the directory of the student's run.
    """
    if is_saved_model(Path(teacher.name)) and not current_trial():
        beside = model_directory(Path(teacher.name)).parent
        run = beside if (beside / RUN_FILE).is_file() and os.access(beside, os.W_OK) else run
    return run / f"logits-{(teacher.digest or '')[:16]}"
