"""Validating a distillation before any weights are loaded, and preparing its student and teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from mtkd.jobs.objects import TeacherObject
from mtkd.jobs.store_checks import check_selection, check_store, teacher_of_store
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm
from mtkd.losses.objective import Objective, build_objective
from mtkd.models.encoders.encoder_registry import build_student, encoder_classes, student_config
from mtkd.models.encoders.pretrained_config import DEFAULT_TEACHER, locate
from mtkd.models.init import InitContext, InitSpec
from mtkd.models.multitask import MultiTaskModel, require_heads
from mtkd.models.pruning import Importance
from mtkd.models.saved_model import ModelInfo
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.settings import DistillSettings, Stage
from mtkd.store.store_manifest import StoreManifest
from mtkd.teachers.reference import TeacherRef
from tasks.errors import UserError
from tasks.reader import Reader
from tasks.task import Task
from tasks.tokeniser import Tokeniser


@dataclass(frozen=True)
class ValidatedRun:
    """A validated request; no weights are loaded yet.

    Attributes:
        teacher: the reference to the teacher; None if the student learns from labels.
        student: the sizes of the student.
        stages: each stage with its objective.
    """

    settings: DistillSettings
    tasks: list[Task]
    teacher: TeacherRef | None
    student: EncoderSpec
    stages: list[tuple[Stage, Objective]]

    @property
    def need(self) -> OutputSpec:
        """All outputs that the teacher and the student must provide in any stage."""
        need = self.teacher_need
        for _, objective in self.stages:
            need = need | objective.student_need
        return need

    @property
    def teacher_need(self) -> OutputSpec:
        """All outputs that the teacher must provide in any stage."""
        need = OutputSpec()
        for _, objective in self.stages:
            need = need | objective.teacher_need
        return need

    @property
    def aligned(self) -> bool:
        """True if the student must read the same tokens as the teacher."""
        of_tokens = self.teacher_need.logits and any(task.type.predicts_spans for task in self.tasks)
        return self.need.tokens or of_tokens

    @property
    def manifest(self) -> StoreManifest | None:
        """The manifest of the knowledge store that replaces the teacher; None if the teacher is run."""
        return self.teacher.manifest if self.teacher else None


@dataclass(frozen=True)
class PreparedRun:
    """The loaded student and teacher.

    Attributes:
        teacher: None if the student learns from labels or from a knowledge store.
    """

    validated: ValidatedRun
    student: MultiTaskModel
    teacher: MultiTaskModel | None


def settings_of_student(settings: DistillSettings, student: MultiTaskModel) -> DistillSettings:
    """The settings with the lengths and head sizes of a student that is passed as an object."""
    info = student.info
    same = ("max_length", "stride", "head_hidden", "dropout")
    changed = settings.student.model_copy(update={name: getattr(info, name) for name in same})
    return settings.model_copy(update={"student": changed})


def validate_run(
    settings: DistillSettings,
    teacher: str | MultiTaskModel | None,
    tasks: list[Task],
    store: Path | None = None,
    *,
    student: nn.Module | None = None,
    losses: Mapping[str, LossTerm] | None = None,
) -> ValidatedRun:
    """Check that recipe, teacher, student and tasks fit together.

    Args:
        store: a knowledge store instead of the teacher; `teacher` may then be None.
        student: a model or an encoder passed as an object, instead of one built from the settings.
        losses: loss terms instead of those of the settings.

    Raises:
        UserError: incompatible terms or sizes, an unknown teacher, or a store that lacks a needed output.
    """
    stages = settings.resolved_stages()
    if losses is None:
        found = [loss_class(term.loss) for stage in stages for term in stage.terms.values()]
        heads = any(loss.teacher_need.logits for loss in found)
    else:
        stages = [Stage("", {}, stages[-1].train)]
        heads = any(term.teacher_need.logits for term in losses.values())
    reference = _reference(teacher, store, heads)
    if reference is not None and heads and reference.saved:
        known = {task.head: task for task in reference.saved.tasks}
        require_heads(known, tasks, f"the teacher {reference.name}")
    spec = _student_spec(settings, reference, student)
    _check_spans(tasks, spec)
    from_labels = settings.supervision == "labels"
    teacher_spec = None if from_labels or not reference else reference.config.shape
    torch.manual_seed(settings.train.seed)
    built = [
        (
            stage,
            build_objective(
                stage.terms if losses is None else losses, spec, teacher_spec, tasks, settings.slow_build
            ),
        )
        for stage in stages
    ]
    validated = ValidatedRun(settings, tasks, reference, spec, built)
    if (selection := validated.teacher_need.selection) is not None:
        check_selection(selection, settings)
    if store is not None and reference is not None and reference.manifest is not None:
        need = validated.teacher_need
        check_store(settings, need, validated.aligned, store, reference.manifest)
    if settings.student.vocabulary == "word" and validated.aligned:
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, but a student with its "
            "own vocabulary reads other tokens",
            hint="set `student.vocabulary=wordpiece`, or remove the term",
        )
    return validated


def _reference(teacher: str | MultiTaskModel | None, store: Path | None, heads: bool) -> TeacherRef | None:
    if store is not None:
        if isinstance(teacher, MultiTaskModel):
            raise UserError(
                "a knowledge store replaces the teacher", hint="pass a store or a model, not both"
            )
        return teacher_of_store(store, teacher, heads)
    if isinstance(teacher, MultiTaskModel):
        return TeacherObject.of(teacher)
    return None if teacher is None else TeacherRef.find(teacher, heads)


def _student_spec(
    settings: DistillSettings, reference: TeacherRef | None, student: nn.Module | None
) -> EncoderSpec:
    """The sizes of the student."""
    if student is not None:
        encoder: Any = student.encoder if isinstance(student, MultiTaskModel) else student
        spec: EncoderSpec = encoder.shape
        return spec
    return student_config(settings.student, reference.init_spec if reference else InitSpec(None, None)).shape


def _check_spans(tasks: list[Task], student: EncoderSpec) -> None:
    spans = [task.name for task in tasks if task.type.predicts_spans]
    if spans and not student.offers.sequence:
        fitting = [kind for kind, encoder in encoder_classes().items() if encoder.Config.gives_sequence]
        raise UserError(
            f"the answers of task {spans[0]!r} are spans of the context, but the student ({student.family}) "
            "has no vector for each token",
            expected=f"one of the student kinds {', '.join(fitting)}",
            hint="set `student.kind=transformer`, or choose another recipe (mtkd recipes)",
        )


def prepare_run(
    validated: ValidatedRun,
    texts: Sequence[pa.StringArray] = (),
    importance: Callable[[MultiTaskModel], Importance] | None = None,
    *,
    student: nn.Module | None = None,
) -> PreparedRun:
    """Load the teacher and build the student.

    Args:
        texts: the training texts, one array per column, for building a word-level vocabulary.
        importance: measures the importance of the teacher's parts, for a student that is pruned from it.
        student: a model, or an encoder that reads the teacher's tokens, instead of one built from the
            settings.

    Raises:
        UserError: teacher and student must read the same tokens but do not; or a model is damaged.
    """
    settings, wanted = validated.settings, validated.settings.student
    aligned = validated.aligned
    teacher = None
    if validated.teacher and (not validated.manifest or (wanted.needs_teacher_weights and student is None)):
        teacher = validated.teacher.load(wanted.max_length if aligned else None)
    if teacher or not validated.teacher:
        teacher_tokeniser = teacher.tokeniser if teacher else Tokeniser.load(locate(DEFAULT_TEACHER))
    else:
        teacher_tokeniser = validated.teacher.tokeniser()
    tasks = [task for task in validated.tasks if task.type.has_head]
    torch.manual_seed(settings.train.seed)
    if isinstance(student, MultiTaskModel):
        student.require([task for task in tasks if task.head in student.tasks], "the student")
        student.keep(tasks)
        made = student
    else:
        made = _build_student(validated, student, teacher, teacher_tokeniser, texts, importance)
    reads = teacher.reader if teacher else None
    if validated.manifest:
        teacher, reads = None, Reader(teacher_tokeniser, "joined", validated.manifest.contents.max_length)
    if aligned and reads and not made.reader.reads_like(reads):
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, but the teacher reads "
            f"{_describe_reader(reads)}, and the student {_describe_reader(made.reader)}",
            hint="use a Transformer student with the teacher's vocabulary, or remove the term",
        )
    return PreparedRun(validated, made, teacher if settings.supervision == "teacher" else None)


def _build_student(
    validated: ValidatedRun,
    encoder: Any,
    teacher: MultiTaskModel | None,
    teacher_tokeniser: Tokeniser,
    texts: Sequence[pa.StringArray],
    importance: Callable[[MultiTaskModel], Importance] | None,
) -> MultiTaskModel:
    """Build the student around a given encoder, or from the settings.

    Args:
        teacher_tokeniser: the teacher's tokeniser, or the default one if there is no teacher.
    """
    settings, wanted = validated.settings, validated.settings.student
    tasks = [task for task in validated.tasks if task.type.has_head]
    info = ModelInfo(wanted.max_length, wanted.head_hidden, wanted.dropout, stride=wanted.stride)
    if encoder is not None:
        return MultiTaskModel(encoder, tasks, teacher_tokeniser, info)
    tokeniser = (
        Tokeniser.word_level(texts, wanted.vocabulary_size)
        if wanted.vocabulary == "word"
        else teacher_tokeniser
    )
    torch.manual_seed(settings.train.seed)
    measured = None
    if wanted.needs_importance:
        if importance is None or teacher is None:
            raise UserError(
                "pruning the teacher into a student needs labelled rows, but plain text has no labels",
                hint="set `student.transformer.prune=false`, or train on tasks",
            )
        measured = importance(teacher)
        torch.manual_seed(settings.train.seed)
    init_spec = validated.teacher.init_spec if validated.teacher else InitSpec(None, None)
    source = teacher.encoder if teacher else None
    context = InitContext(tokeniser, source, teacher_tokeniser, init_spec, measured, texts)
    student = MultiTaskModel(build_student(wanted, context), tasks, tokeniser, info)
    if teacher and (measured or wanted.init_heads == "teacher"):
        _copy_heads(student, teacher, optional=wanted.init_heads != "teacher")
    return student


def _copy_heads(student: MultiTaskModel, teacher: MultiTaskModel, optional: bool) -> None:
    """Initialise the student's task heads from the teacher's.

    Args:
        optional: leave heads of other sizes as they are, instead of refusing them.

    Raises:
        UserError: the sizes of a head differ.
    """
    for name, head in student.heads.items():
        weights = teacher.heads[name].state_dict() if name in teacher.heads else {}
        if all(key in weights and weights[key].shape == w.shape for key, w in head.state_dict().items()):
            head.load_state_dict(weights)
        elif not optional:
            raise UserError(
                f"student.init_heads=teacher: the teacher's head for {name!r} has another size",
                expected="the same width, and the same `student.head_hidden` as the teacher's `head_hidden`",
                hint="use `student.init_heads=random`, or `student.head_hidden=0`",
            )


def _describe_reader(reader: Reader) -> str:
    how = "both texts in one sequence" if reader.input_format == "joined" else "each text separately"
    vocabulary = f"{reader.tokeniser.vocab_size} ids (digest {reader.tokeniser.digest[:8]})"
    return f"{how}, {vocabulary}, at most {reader.max_length} tokens"
