"""Validate a distillation before any weights are loaded: recipe, teacher, student, losses and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mtkd.jobs.distillation.python_objects import require_loadable
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.knowledge_store.store_checks import (
    check_ranking,
    check_selection,
    check_store,
    teacher_of_store,
)
from mtkd.losses.compatibility import unread_cls
from mtkd.losses.loss_term import ModelPair
from mtkd.losses.objective import Objective, Term, build_objective, teacher_need_of
from mtkd.models.encoders.encoder_registry import encoder_classes, student_config
from mtkd.models.encoders.transformer_student import TransformerStudentSettings
from mtkd.models.initialisation import InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.group import TeacherGroup
from mtkd.teachers.teacher_names import LabelsSpec, TeacherSpec
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.torch_state import isolated
from tasks.common.errors import UserError
from tasks.model_tasks import require_heads
from tasks.task import Task


def settings_of_student(settings: DistillSettings, student: MultiTaskModel) -> DistillSettings:
    """The settings with the lengths and head sizes of a student that is passed as an object."""
    info = student.info
    copied_settings = ("max_length", "stride", "head_hidden_size", "dropout")
    changed = settings.student.model_copy(update={name: getattr(info, name) for name in copied_settings})
    return settings.model_copy(update={"student": changed})


@isolated
def validate_run(
    settings: DistillSettings,
    teacher: TeacherSpec | TeacherRef,
    tasks: list[Task],
    store: Path | None = None,
    *,
    teacher_labels: LabelsSpec = None,
    student: nn.Module | None = None,
    losses: Mapping[str, Term] | None = None,
) -> ValidatedRun:
    """Check that recipe, teacher, student and tasks fit together.

    Args:
        teacher: see `mtkd.teachers.teacher_names.teachers_by_task`; or a `TeacherRef`, also of a
            teacher that has not been trained yet.
        teacher_labels: see `mtkd.teachers.teacher_names.parse_labels`.
        store: a knowledge store instead of the teacher; `teacher` may then be None.
        student: a model or an encoder passed as an object, instead of one built from the settings.
        losses: loss terms instead of those of the settings.

    Returns:
        The validated run. If the settings named alternatives for the student's initialisation, those of the
            validated run name the one that was chosen.

    Raises:
        UserError: incompatible terms or sizes, an unknown teacher, or a store that lacks a needed output.
    """
    stages = settings.resolved_stages()
    if losses is not None:
        stages = [Stage("", {}, stages[-1].train)]
    teacher_ref = _teacher_ref(teacher, tasks, store, _needs_logits(stages, losses), teacher_labels)
    warnings: list[str] = []
    if student is None:
        chosen, warnings = settings.student.resolved(_init_spec(teacher_ref))
        settings = settings.model_copy(update={"student": chosen.for_tasks(tasks)})
    spec = _student_spec(settings, teacher_ref, student, tasks)
    _check_spans(tasks, spec)
    from_labels = settings.supervision == "labels"
    if student is None:
        warnings += _check_initialisation(settings)
    teacher_spec = None if from_labels or not teacher_ref else teacher_ref.config.spec_for(tasks)
    torch.manual_seed(settings.train.seed)
    objectives = [
        (
            stage,
            build_objective(
                stage.terms if losses is None else losses,
                spec,
                teacher_spec,
                tasks,
                settings.slow_build,
                settings.train.seed,
            ),
        )
        for stage in stages
    ]
    _require_losses(tasks, [objective for _, objective in objectives])
    models = ModelPair(spec, teacher_spec or spec, tuple(tasks))
    warnings += _unread_cls([objective for _, objective in objectives], models, has_settings=losses is None)
    validated = ValidatedRun(settings, tasks, teacher_ref, spec, objectives, warnings)
    _check_needed_outputs(validated, store, own_losses=losses is not None)
    return validated


def _require_losses(tasks: Sequence[Task], objectives: Sequence[Objective]) -> None:
    """Raise UserError if no loss of any stage applies to one of the tasks."""
    for task in tasks:
        if not any(objective.trains(task) for objective in objectives):
            raise UserError(
                f"no loss applies to the task {task.name!r} ({task.kind}), so nothing could learn it",
                expected="a loss with a weight above 0 whose `task_types`, if it has any, include "
                f"{task.kind!r}",
                hint="add such a loss, or leave the task out of `tasks`",
            )


def _needs_logits(stages: Sequence[Stage], losses: Mapping[str, Term] | None) -> bool:
    """True if a term needs the teacher's logits; `losses` replace the terms of the stages."""
    of_stages = [term for stage in stages for term in stage.terms.values()]
    return any(teacher_need_of(term).logits for term in (of_stages if losses is None else losses.values()))


def _teacher_ref(
    teacher: TeacherSpec | TeacherRef, tasks: list[Task], store: Path | None, heads: bool, labels: LabelsSpec
) -> TeacherRef | None:
    """The teacher, or the one whose outputs are in the store; None if there is neither.

    Args:
        heads: True if the teacher must have heads for the tasks.
    """
    if isinstance(teacher, TeacherRef):
        return teacher
    if store is None:
        return find_teachers(teacher, tasks, heads, labels)
    return _stored_teacher(teacher, store, tasks, heads)


def _check_needed_outputs(validated: ValidatedRun, store: Path | None, *, own_losses: bool) -> None:
    """Check that the teacher or the store has what the terms need, for the tokens that the student reads.

    Args:
        own_losses: True if the terms were passed as objects.
    """
    settings = validated.settings
    need = validated.teacher_need
    teacher_ref = validated.teacher
    _check_teacher_kinds(validated)
    if need.selection is not None:
        check_selection(need.selection, settings)
    if store is not None and teacher_ref is not None and teacher_ref.manifest is not None:
        check_store(settings, need, validated.aligned, store, teacher_ref.manifest, own_losses=own_losses)
        if need.selection and getattr(teacher_ref.config, "pairs", "cross-encoder") != "cross-encoder":
            check_ranking(need.selection, store, teacher_ref.manifest)
    if settings.student.vocabulary != "teacher" and validated.aligned:
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, but with "
            f"student.vocabulary={settings.student.vocabulary}, the student reads other tokens",
            hint="use a recipe whose student reads the teacher's tokens, such as `layerwise-3`"
            if any(task.type.predicts_spans for task in validated.tasks)
            else "use `student.vocabulary=teacher`, or remove the term",
        )


def _unread_cls(objectives: Sequence[Objective], models: ModelPair, *, has_settings: bool) -> list[str]:
    """The warnings of `unread_cls` about the terms of all stages, one per term."""
    terms: dict[str, Any] = {name: term for objective in objectives for name, term in objective.terms.items()}
    texts = [unread_cls(name, term, models, has_settings=has_settings) for name, term in terms.items()]
    return [text for text in texts if text]


def _stored_teacher(teacher: TeacherSpec, store: Path, tasks: list[Task], heads: bool) -> TeacherRef:
    """The teacher of a store; UserError if `teacher` is another one, or if a needed head is missing."""
    if teacher is not None and not isinstance(teacher, str):
        raise UserError("a knowledge store replaces the teacher", hint="pass a store or a model, not both")
    teacher_ref = teacher_of_store(store, teacher, heads)
    if heads and teacher_ref.saved:
        heads_of_teacher = {task.head: task for task in teacher_ref.saved.tasks}
        require_heads(heads_of_teacher, tasks, f"the teacher {teacher_ref.name}")
    return teacher_ref


def _check_initialisation(settings: DistillSettings) -> list[str]:
    """A warning if a student that learns from labels alone starts from the teacher's weights.

    Raises:
        UserError: the heads should start from a linear probe, but are not linear.
    """
    student = settings.student
    if student.init_heads == "linear-probe" and student.head_hidden_size:
        raise UserError(
            "student.init_heads=linear-probe fits linear heads, but student.head_hidden_size="
            f"{student.head_hidden_size}",
            hint="use `student.head_hidden_size=0` or `student.init_heads=random`",
        )
    layers = isinstance(student, TransformerStudentSettings) and student.transformer.init == "teacher"
    if settings.supervision == "teacher" or not (layers or student.init_heads == "teacher"):
        return []
    start = "layers" if layers else "heads"
    return [
        f"the student learns from labels alone, but starts from the teacher's {start}, so it is not a valid "
        "control: a control needs student.transformer.init=encoder and student.init_heads=auto"
    ]


def _check_teacher_kinds(validated: ValidatedRun) -> None:
    """Check that several teachers, or soft labels in the data, provide all outputs that the losses need."""
    if isinstance(validated.teacher, TeacherGroup):
        validated.teacher.check_can_provide(validated.teacher_need)
    need = replace(validated.teacher_need, logits=False)
    if validated.soft_labelled and need != OutputSpec():
        raise UserError(
            f"the losses of {validated.settings.name} compare more than logits, but the task "
            f"{validated.soft_labelled[0]!r} has no teacher, only soft labels",
            hint="name a teacher for it, or choose a recipe that learns from logits alone (mkd-lstm, "
            "mkd-transformer)",
        )


def _student_spec(
    settings: DistillSettings, teacher_ref: TeacherRef | None, student: nn.Module | None, tasks: list[Task]
) -> EncoderSpec:
    """The sizes of the student, and the outputs that it offers for the tasks."""
    if student is not None:
        encoder: Any = student.encoder if isinstance(student, MultiTaskModel) else student
        require_loadable(encoder)
        spec: EncoderSpec = encoder.config.spec_for(tasks)
        return spec
    return student_config(settings.student, _init_spec(teacher_ref)).spec_for(tasks)


def _init_spec(teacher_ref: TeacherRef | None) -> InitSpec:
    return teacher_ref.init_spec if teacher_ref else InitSpec(None, None)


def _check_spans(tasks: list[Task], student: EncoderSpec) -> None:
    """Raise UserError if a task predicts spans, but the student has no vector for each token."""
    spans = [task.name for task in tasks if task.type.predicts_spans]
    if spans and not student.offers.sequence:
        fitting = [kind for kind, encoder in encoder_classes().items() if encoder.Config.gives_sequence]
        raise UserError(
            f"the answers of task {spans[0]!r} are spans of the context, but the student ({student.family}) "
            "has no vector for each token",
            expected=f"one of the student kinds {', '.join(fitting)}",
            hint="use the recipe `layerwise-3`, or another one of a Transformer (`mtkd.list_recipes()`)",
        )
