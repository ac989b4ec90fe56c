"""The student of a pipeline that `mtkd init` writes: its recipe, its teacher, and the control without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.common.errors import UserError
from tasks.task import Task

if TYPE_CHECKING:
    from mtkd.models.encoders.encoder import StudentSettings
    from mtkd.settings import DistillSettings
    from mtkd.teachers.teacher_ref import TeacherRef
    from tasks.tokens.tokeniser import Tokeniser

DEFAULT_RECIPE, ENCODER = "layerwise-3", "minilm"


@dataclass(frozen=True)
class StudentPlan:
    """The steps `student` and `control` of a pipeline; paths are as the pipeline names them.

    Attributes:
        recipe: the recipe of both steps.
        teacher: the teacher; None if a step of the pipeline trains one.
        teacher_labels: the task's labels in the order of the teacher's outputs; None = matched by name.
        is_run: True if the teacher is a run of mtkd, which a report can show.
        shared: settings of both student and control: sizes that fit the teacher, or the encoder that they
            start from.
        control: the settings that only the control needs.
        control_teacher: the model from which the control takes its initial weights and its vocabulary; None =
            the student's teacher.
        encoder_option: if the encoder that the teacher was fine-tuned from is unknown, the option of the
            control with which the user can name it; "" if it is known or not needed.
        own_encoder: the pretrained encoder that student and control start from, if the student uses its
            tokeniser; "" if it uses the teacher's.
        tokeniser: the student's, which reads the rows; None = that of the default encoder.
        notes: remarks for the user.
    """

    recipe: str = DEFAULT_RECIPE
    teacher: str | None = None
    teacher_labels: Sequence[str] | None = None
    is_run: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    control: Mapping[str, Any] = field(
        default_factory=lambda: {"supervision": "labels", "student.transformer.init": "encoder"}
    )
    control_teacher: str | None = None
    encoder_option: str = ""
    own_encoder: str = ""
    tokeniser: Tokeniser | None = None
    notes: tuple[str, ...] = ()


def plan_student(
    task: Task, recipe: str, teacher: str | None, labels: Sequence[str] | None, as_named: Callable[[str], str]
) -> StudentPlan:
    """Check that recipe, teacher and task fit together, and find the settings of the control.

    Args:
        recipe: a name or a file.
        teacher: an mtkd run or a fine-tuned transformers checkpoint; None if the pipeline trains a teacher.
        labels: the task's labels in the order of the checkpoint's outputs; None = matched by name.
        as_named: returns the name of a recipe or model in the pipeline; its paths are relative to the
            pipeline.

    Raises:
        UserError: the recipe or the teacher is unknown, or they do not fit; the teacher lacks its tokeniser;
            or the recipe has no control that learns without a teacher.
    """
    if recipe == DEFAULT_RECIPE and teacher is None:
        return StudentPlan()  # known to fit; importing torch takes seconds
    from mtkd.jobs.distillation.validate import validate_run
    from mtkd.jobs.model_origin import encoder_of_teacher
    from mtkd.models.encoders.pretrained_config import locate
    from mtkd.recipes import load_settings
    from mtkd.recipes.control import control_settings
    from mtkd.run_record import RUN_FILE
    from mtkd.teachers.transformers_checkpoint import CheckpointRef
    from tasks.tokens.tokeniser import Tokeniser

    orders = {task.name: list(labels)} if labels else None
    settings, sizes = _load_settings(recipe, task, teacher, orders)
    control = control_settings(settings)
    validated = validate_run(
        settings, _teacher_to_train(task) if teacher is None else teacher, [task], teacher_labels=orders
    )
    student = validated.settings.student
    reads_own_tokens = student.vocabulary == "encoder"
    own_encoder = student.pretrained_encoder(validated.init_spec) or "" if reads_own_tokens else ""
    tokeniser = validated.teacher.tokeniser() if teacher and validated.teacher else None
    if own_encoder:
        tokeniser = Tokeniser.load(locate(own_encoder))
    if not validated.stages[-1][1].student_need.logits:
        raise UserError(
            f"the recipe {recipe} trains no task heads, so its student cannot be compared with a control",
            hint="use `mtkd.distill` with `text='FILE'`, then start another recipe from its result: "
            "`init='DIR'`",
        )
    encoder = encoder_of_teacher(teacher) if teacher else ENCODER
    controls = load_settings(recipe, "distill", sizes | control, task.name)
    student = controls.student.model_copy(update={"init_heads": "random"})  # a control copies no heads
    control_teacher = encoder if student.needs_teacher_weights else None
    validate_run(controls, control_teacher or teacher or ENCODER, [task])
    checkpoint = validated.teacher if isinstance(validated.teacher, CheckpointRef) else None
    encoder_option = _encoder_option(student, encoder, is_checkpoint=checkpoint is not None)
    notes = [checkpoint.warning] if checkpoint and checkpoint.warning else []
    notes += _encoder_notes(teacher, own_encoder, is_unknown=bool(encoder_option))
    if recipe == DEFAULT_RECIPE and validated.teacher and not task.type.predicts_spans:
        notes += _size_notes(validated.teacher)
    return StudentPlan(
        recipe=as_named(recipe),
        teacher=as_named(teacher) if teacher else None,
        teacher_labels=labels,
        is_run=bool(teacher) and (Path(str(teacher)) / RUN_FILE).is_file(),
        shared={**sizes, "student.transformer.init": as_named(own_encoder)} if own_encoder else sizes,
        control=control,
        control_teacher=as_named(control_teacher) if control_teacher else None,
        encoder_option=encoder_option,
        own_encoder=own_encoder,
        tokeniser=tokeniser,
        notes=tuple(notes),
    )


def _load_settings(
    recipe: str, task: Task, teacher: str | None, orders: dict[str, list[str]] | None
) -> tuple[DistillSettings, dict[str, Any]]:
    """The settings of the student, and those of them that it needs to fit the width of the teacher.

    Args:
        orders: the argument `labels` of `plan_student`, by task.
    """
    from mtkd.models.encoders.static import StaticStudentSettings, width_settings
    from mtkd.recipes import load_settings
    from mtkd.teachers.find_teachers import find_teachers

    settings = load_settings(recipe, "distill", {}, task.name)
    if not teacher or not isinstance(settings.student, StaticStudentSettings):
        return settings, {}
    ref = find_teachers(teacher, [task], heads=True, labels=orders)
    sizes = dict(width_settings(settings.student.static, ref.config.spec)) if ref else {}
    return load_settings(recipe, "distill", sizes, task.name), sizes


def _encoder_option(control: StudentSettings, encoder: str | None, *, is_checkpoint: bool) -> str:
    """The `encoder_option` of a `StudentPlan`.

    Args:
        control: the student settings of the control.
        encoder: the encoder that the teacher was fine-tuned from; None = unknown.
        is_checkpoint: True if the teacher is a transformers checkpoint.
    """
    from mtkd.models.encoders.transformer_student import TransformerStudentSettings

    if control.needs_teacher_weights and encoder is None:
        return "teacher"
    from_encoder = isinstance(control, TransformerStudentSettings) and control.transformer.init == "encoder"
    return "set.student.transformer.init" if is_checkpoint and from_encoder else ""


def _encoder_notes(teacher: str | None, own_encoder: str, *, is_unknown: bool) -> list[str]:
    """Notes on the encoders that teacher, student and control start from.

    Args:
        own_encoder: see `StudentPlan`.
        is_unknown: True if the encoder that the teacher was fine-tuned from is needed, but unknown.
    """
    notes = []
    if is_unknown:
        notes.append(
            f"the encoder that {teacher} was fine-tuned from is not recorded, so the control starts from the "
            "teacher's weights, and may score better than a student that learns from labels alone: name that "
            "encoder in the step `control` of the pipeline"
        )
    if teacher is None and own_encoder == ENCODER:
        notes.append(
            f"teacher and student start from the same encoder, {ENCODER}: write the name of a larger one "
            "into the first step of the pipeline, or give your model as `teacher='MODEL'`"
        )
    return notes


def _size_notes(teacher: TeacherRef) -> list[str]:
    """A note on the recipe `pretrained`, if a teacher is larger than the default encoder."""
    from mtkd.models.encoders.pretrained_config import exceeds_default_encoder

    if not exceeds_default_encoder(teacher.config.spec):
        return []
    return [
        f"{teacher.name} is larger than {ENCODER}: with `recipe='pretrained'`, the student starts from "
        f"{ENCODER} instead of from layers of the teacher, which was faster and scored higher on SST-2 "
        "(docs/results.md#a-base-size-teacher)"
    ]


def _teacher_to_train(task: Task) -> TeacherRef:
    """What is known of the teacher that the pipeline will train."""
    from mtkd.models.encoders.pretrained_config import pretrained_config
    from mtkd.models.saved_model import ModelInfo, SavedModel
    from mtkd.teachers.teacher_ref import TeacherRef

    config = pretrained_config(ENCODER)
    saved = SavedModel(config.model_dump(), [task], ModelInfo(base=ENCODER))
    return TeacherRef("the teacher of the pipeline", saved, config)
