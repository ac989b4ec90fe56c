"""Prepare a validated distillation: load the teachers and build the student."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from mtkd.jobs.distillation.python_objects import copy_of_student
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.models.encoders.encoder_registry import build_student
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.initialisation import InitContext
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance
from mtkd.models.saved_model import ModelInfo
from mtkd.teachers.teacher_cache import token_vector_directory
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError, shorten
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.common.progress import say
from tasks.heads import Head, SANHead
from tasks.task import Task
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser


@dataclass(frozen=True)
class LoadedTeacher:
    """A loaded teacher, and the names of the tasks that it teaches."""

    ref: TeacherRef
    model: MultiTaskModel
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class PreparedRun:
    """The loaded student and teachers.

    Attributes:
        teachers: each teacher with its `TeacherRef` and tasks; empty if the student learns from labels or
            from a knowledge store.
        not_copied: the names of the student's heads for which `student.init_heads=auto` found no teacher's
            head to copy.
    """

    student: MultiTaskModel
    teachers: tuple[LoadedTeacher, ...]
    not_copied: tuple[str, ...] = ()


def prepare_run(
    validated: ValidatedRun,
    texts: Sequence[pa.StringArray] = (),
    importance: Callable[[MultiTaskModel], Importance] | None = None,
    *,
    student: nn.Module | None = None,
    check: Callable[[Sequence[LoadedTeacher]], None] | None = None,
) -> PreparedRun:
    """Load the teacher and build the student.

    Args:
        texts: the training texts, one array per column, from which the student's own vocabulary is built.
        importance: measures the importance of the teacher's parts, for a student that is pruned from it.
        student: a model, or an encoder that reads the teacher's tokens, instead of one built from the
            settings; a copy of it is trained.
        check: called with the teachers before the student is built from them, which may take long.

    Raises:
        UserError: teacher and student must read the same tokens, but do not; or a model is damaged.
    """
    settings, from_store = validated.settings, validated.manifest is not None
    teachers: tuple[LoadedTeacher, ...] = ()
    if not from_store or (student is None and validated.needs_teacher_weights):
        teachers = _load_teachers(validated)
    first_teacher = teachers[0].model if teachers else None
    used_teachers = teachers if settings.supervision == "teacher" and not from_store else ()
    if check:
        check(used_teachers)
    if first_teacher:
        teacher_tokeniser = first_teacher.tokeniser
    elif validated.teacher:
        teacher_tokeniser = validated.teacher.tokeniser()
    else:
        teacher_tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))
    tasks = [task for task in validated.tasks if task.type.has_head]
    torch.manual_seed(settings.train.seed)
    not_copied: tuple[str, ...] = ()
    if student is not None:
        student = copy_of_student(student)
    if isinstance(student, MultiTaskModel):
        student.require_heads([task for task in tasks if task.head in student.tasks], "the student")
        student.set_tasks(tasks)
        model = student
    else:
        cache = token_vector_directory(teachers[0].ref) if teachers else None
        model, not_copied = _build_student(
            validated, student, first_teacher, teacher_tokeniser, texts, importance, cache
        )
    _check_readers(validated, model.reader, teachers, teacher_tokeniser)
    return PreparedRun(model, used_teachers, not_copied)


def _check_readers(
    validated: ValidatedRun,
    student_reader: Reader,
    teachers: Sequence[LoadedTeacher],
    teacher_tokeniser: Tokeniser,
) -> None:
    """Raise UserError if the student reads other tokens than a teacher to which the losses align it."""
    if validated.manifest and validated.teacher:
        length = validated.manifest.contents.max_length
        reader = validated.teacher.config.reader(teacher_tokeniser, validated.tasks, length)
        compared = [(task, reader) for task in validated.tasks if validated.aligned]
    else:
        aligned = [teacher for teacher in teachers if validated.aligned_with(teacher.tasks)]
        by_name = {task.name: task for task in validated.tasks}
        compared = [
            (by_name[name], teacher.model.reader_of(by_name[name]))
            for teacher in aligned
            for name in teacher.tasks
        ]
    for task, reader in compared:
        teacher_reader, read_by_student = reader.for_task(task.name), student_reader.for_task(task.name)
        if not read_by_student.reads_like(teacher_reader, len(task.columns)):
            raise UserError(
                f"a term of {validated.settings.name} compares teacher and student token by token, but on "
                f"{task.name} the teacher reads {_describe_reader(teacher_reader)}, and the student "
                f"{_describe_reader(read_by_student)}",
                hint="use a Transformer student with the teacher's vocabulary and "
                "`student.transformer.pairs=auto`, or a teacher that was refined with "
                "`settings={'pairs': 'cross-encoder'}`, or remove the term",
            )


def _load_teachers(validated: ValidatedRun) -> tuple[LoadedTeacher, ...]:
    """Load the teachers.

    A teacher that the student is compared with token by token gets the student's `max_length`.
    """
    teachers = []
    for member in validated.members:
        length = validated.settings.student.max_length if validated.aligned_with(member.tasks) else None
        teachers.append(LoadedTeacher(member.teacher, member.teacher.load(length), member.tasks))
    return tuple(teachers)


def _build_student(
    validated: ValidatedRun,
    encoder: Any,
    teacher: MultiTaskModel | None,
    teacher_tokeniser: Tokeniser,
    texts: Sequence[pa.StringArray],
    importance: Callable[[MultiTaskModel], Importance] | None,
    cache: Path | None,
) -> tuple[MultiTaskModel, tuple[str, ...]]:
    """Build the student around a given encoder, or from the settings.

    Args:
        encoder: an encoder passed as an object; None = build one from the settings.
        teacher_tokeniser: the teacher's tokeniser, or the default one if there is no teacher.
        cache: see `InitContext`.

    Returns:
        The student, and the names of its heads for which `student.init_heads=auto` found none to copy.
    """
    settings, student_settings = validated.settings, validated.settings.student
    tasks = [task for task in validated.tasks if task.type.has_head]
    info = ModelInfo(
        student_settings.max_length,
        student_settings.head_hidden_size,
        student_settings.dropout,
        stride=student_settings.stride,
    )
    if encoder is not None:
        return MultiTaskModel(encoder, tasks, teacher_tokeniser, info), ()
    tokeniser, kept_tokens = teacher_tokeniser, None
    if student_settings.vocabulary == "word":
        tokeniser = Tokeniser.word_level(texts, student_settings.vocabulary_size)
    elif student_settings.vocabulary == "encoder":
        name = student_settings.pretrained_encoder(validated.init_spec)
        assert name is not None, "`resolved` refuses other students"
        tokeniser = Tokeniser.load(locate(name))
    elif student_settings.vocabulary == "pruned":
        tokeniser, kept_tokens = prune_vocabulary(teacher_tokeniser, texts, student_settings.vocabulary_size)
        say(f"the student keeps {len(kept_tokens):,} of the {teacher_tokeniser.vocab_size:,} tokens")
    torch.manual_seed(settings.train.seed)
    measured_importance = None
    if student_settings.needs_importance:
        if importance is None or teacher is None:
            raise UserError(
                "pruning the teacher into a student needs labelled rows, but plain text has no labels",
                hint="use `student.transformer.prune=false`, or train on tasks",
            )
        measured_importance = importance(teacher)
        torch.manual_seed(settings.train.seed)
    source = teacher.encoder if teacher else None
    context = InitContext(
        tokeniser,
        source,
        teacher_tokeniser,
        validated.init_spec,
        measured_importance,
        texts,
        kept_tokens,
        cache,
    )
    student = MultiTaskModel(build_student(student_settings, context), tasks, tokeniser, info)
    heads = student_settings.init_heads
    where_possible = heads == "auto" and settings.supervision == "teacher"
    reads_other_features = where_possible and validated.other_encoder is not None
    not_copied = list(student.heads)
    if teacher and (measured_importance or heads == "teacher" or where_possible) and not reads_other_features:
        not_copied = _copy_heads(student, teacher, optional=heads != "teacher")
    return student, tuple(not_copied) if where_possible else ()


def _copy_heads(student: MultiTaskModel, teacher: MultiTaskModel, optional: bool) -> list[str]:
    """Initialise the student's task heads from the teacher's.

    Args:
        optional: True to skip heads that cannot be copied, instead of raising an error.

    Returns:
        The names of the heads that were skipped.

    Raises:
        UserError: the teacher lacks a head, or its size or its labels differ.
    """
    not_copied = []
    for name, head in student.heads.items():
        weights = teacher.heads[name].state_dict() if name in teacher.heads else {}
        same_size = all(
            key in weights and weights[key].shape == w.shape for key, w in head.state_dict().items()
        )
        order = _output_order(head, student.tasks[name], teacher.tasks[name]) if same_size else None
        if order is not None:
            head.load_state_dict(
                {key: w[order] if order and key.startswith("output.") else w for key, w in weights.items()}
            )
        elif optional:
            not_copied.append(name)
        elif name not in teacher.heads:
            raise UserError(
                f"student.init_heads=teacher: the (first) teacher has no head for {name!r} to copy",
                expected="an mtkd run that was trained on all tasks",
                hint="use `student.init_heads=random`",
            )
        elif same_size:
            raise UserError(
                f"student.init_heads=teacher: the teacher's head for {name!r} predicts other labels: "
                f"{shorten(teacher.tasks[name].labels) or 'none'} ({teacher.tasks[name].kind})",
                expected=f"{shorten(student.tasks[name].labels) or 'none'} ({student.tasks[name].kind})",
                hint="use `student.init_heads=random`",
            )
        else:
            raise UserError(
                f"student.init_heads=teacher: the teacher's head for {name!r} has another size",
                expected="the same width, and the same `head_hidden_size` as the teacher's",
                hint="use `student.init_heads=random`, or `student.head_hidden_size=0`",
            )
    return not_copied


def _output_order(head: nn.Module, task: Task, trained: Task) -> list[int] | None:
    """The index of a trained head's output for each label of a task.

    Args:
        trained: the task that the head was trained on.

    Returns:
        The indices; empty if the outputs are in the right order already; None if the head does not fit.
    """
    if (task.kind, task.labels) == (trained.kind, trained.labels):
        return []
    one_output_each = isinstance(head, Head | SANHead) and task.type.n_outputs(task) == len(task.labels)
    same = one_output_each and task.kind == trained.kind and set(task.labels) == set(trained.labels)
    return [trained.labels.index(label) for label in task.labels] if same else None


def _describe_reader(reader: Reader) -> str:
    """What a model reads, for an error message."""
    texts = {
        "joined": "both texts in one sequence",
        "side-by-side": "two texts side by side (a bi-encoder)",
    }.get(reader.input_format, "each text separately")
    vocabulary = f"{reader.tokeniser.vocab_size} ids (digest {reader.tokeniser.digest[:8]})"
    return f"{texts}, {vocabulary}, at most {reader.max_length} tokens"
