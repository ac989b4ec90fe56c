"""Parse the arguments `teacher` and `teacher_labels`, which name teachers and label orders by task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mtkd.models.multitask import MultiTaskModel
from mtkd.teachers.label_lists import parse_label_list
from tasks.common.errors import UserError, a_type

# A name, a model, a pair (transformers model, tokeniser), or a list or a mapping by task of these.
TeacherSpec = Any
LabelsSpec = Mapping[str, str | Sequence[str]] | Sequence[str] | str | None

_TASK_ASSIGNMENT = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)


def teachers_by_task(spec: TeacherSpec) -> list[tuple[str | None, Any]]:
    """Every teacher as (task, teacher); the task is None if the teacher is for all tasks.

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
    """Return the teacher; raises UserError if its name is empty or lists several directories."""
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
    """A transformers model and its tokeniser, given as a tuple or as a pipeline; None for anything else."""
    pair = teacher if isinstance(teacher, tuple) and len(teacher) == 2 else None
    if pair is None and hasattr(teacher, "model") and hasattr(teacher, "tokenizer"):
        pair = (teacher.model, teacher.tokenizer)
    is_valid = pair is not None and hasattr(pair[0], "base_model") and hasattr(pair[1], "backend_tokenizer")
    return pair if is_valid else None


def describe_teachers(spec: TeacherSpec) -> str | dict[str, list[str]] | None:
    """The names of the teachers for a run's record: one name, or task -> names ("all" = for all tasks)."""
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
    """The name of a model in messages and records: the one that the user gave, or the class of an object."""
    if isinstance(teacher, str | Path):
        return str(teacher)
    pair = as_pair(teacher)
    return type(pair[0] if pair else teacher).__name__


def parse_labels(spec: LabelsSpec) -> dict[str, list[str]]:
    """Task -> labels in the order of a checkpoint's outputs, from a mapping or from strings "TASK=a,b,c".

    The values of a mapping are lists or strings; the labels in a string may also be a JSON list
    (`parse_label_list`).

    Raises:
        UserError: a string does not have this form.
    """
    if isinstance(spec, Mapping):
        items = spec.items()
        return {task: parse_label_list(v, task) if isinstance(v, str) else list(v) for task, v in items}
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
