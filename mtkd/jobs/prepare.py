"""What a distillation runs with: everything is looked at and checked before a weight is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch

from mtkd.losses.build_objective import build_objective
from mtkd.losses.objective import Objective
from mtkd.models.encoders.pretrained_config import DEFAULT_TEACHER, locate
from mtkd.models.init import InitContext, InitSpec, build_student, student_config
from mtkd.models.multitask import ModelInfo, MultiTaskModel, require_heads
from mtkd.models.pruning import Importance
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.selection import Selection
from mtkd.settings import DistillSettings, Stage
from mtkd.store.store_manifest import StoreManifest, read_store_manifest
from mtkd.teachers.reference import TeacherRef, other_teacher
from tasks.errors import UserError
from tasks.reader import Reader
from tasks.task import Task
from tasks.tokeniser import Tokeniser


@dataclass(frozen=True)
class ValidatedRun:
    """A request whose sizes go together; nothing heavy is loaded yet.

    Attributes:
        teacher: None where the student learns from labels.
        student: the student's sizes.
        stages: each with its objective.
    """

    settings: DistillSettings
    tasks: list[Task]
    teacher: TeacherRef | None
    student: EncoderSpec
    stages: list[tuple[Stage, Objective]]

    @property
    def need(self) -> OutputSpec:
        """All that the teacher and the student have to give, over all stages."""
        need = self.teacher_need
        for _, objective in self.stages:
            need = need | objective.student_need
        return need

    @property
    def teacher_need(self) -> OutputSpec:
        """All that the teacher has to give, over all stages."""
        need = OutputSpec()
        for _, objective in self.stages:
            need = need | objective.teacher_need
        return need

    @property
    def aligned(self) -> bool:
        """True if the student has to read as the teacher does: token by token."""
        of_tokens = self.teacher_need.logits and any(task.kind == "span" for task in self.tasks)
        return self.need.tokens or of_tokens

    @property
    def manifest(self) -> StoreManifest | None:
        """Of the knowledge store that stands in for the teacher; None where the teacher is run."""
        return self.teacher.manifest if self.teacher else None


@dataclass(frozen=True)
class PreparedRun:
    """Student and teacher, loaded.

    Attributes:
        teacher: None where the student learns from labels or from a knowledge store.
        warnings: what the user should know before trusting the result.
    """

    validated: ValidatedRun
    student: MultiTaskModel
    teacher: MultiTaskModel | None
    warnings: list[str] = field(default_factory=list)


def validate_run(
    settings: DistillSettings, teacher: str | None, tasks: list[Task], store: Path | None = None
) -> ValidatedRun:
    """See that recipe, teacher, student and tasks go together.

    Args:
        store: a knowledge store that stands in for the teacher; `teacher` need not be given then.

    Raises:
        UserError: a term that does not fit, sizes that do not, no such teacher, a store that lacks something.
    """
    stages = settings.resolved_stages()
    losses = [term.loss for stage in stages for term in stage.terms.values()]
    heads = any(loss in ("logits_mse", "soft_labels") for loss in losses)
    reference = None
    if store is not None:
        reference = _of_store(store, teacher, heads)
    elif teacher is not None:
        reference = TeacherRef.find(teacher, heads)
    if reference is not None and heads and reference.saved:
        known = {task.head: task for task in reference.saved.tasks}
        require_heads(known, tasks, f"the teacher {reference.name}")
    init_spec = reference.init_spec if reference else InitSpec(None, None)
    student = student_config(settings.student, init_spec).shape
    _check_spans(tasks, student)
    from_labels = settings.supervision == "labels"
    torch.manual_seed(settings.train.seed)
    built = [
        (
            stage,
            build_objective(
                stage.terms,
                student,
                None if from_labels or not reference else reference.config.shape,
                tasks,
                settings.slow_build,
            ),
        )
        for stage in stages
    ]
    validated = ValidatedRun(settings, tasks, reference, student, built)
    if (selection := validated.teacher_need.selection) is not None:
        _check_selection(selection, settings)
    if store is not None and reference is not None and reference.manifest is not None:
        _check_store(validated, store, reference.manifest)
    if settings.student.vocabulary == "word" and validated.aligned:
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, and a student with a "
            "vocabulary of its own reads other tokens",
            hint="--set student.vocabulary=wordpiece, or drop the term",
        )
    return validated


def _check_spans(tasks: list[Task], student: EncoderSpec) -> None:
    spans = [task.name for task in tasks if task.kind == "span"]
    if spans and not student.offers.sequence:
        raise UserError(
            f"the task {spans[0]!r} asks for a place in the context, and the student ({student.family}) "
            "has no vector for each token",
            expected="students transformer, waldorf",
            hint="--set student.kind=transformer, or another recipe (mtkd recipes)",
        )


def _of_store(store: Path, teacher: str | None, heads: bool) -> TeacherRef:
    """The teacher of a store; where one is named besides, it has to be that one."""
    manifest = read_store_manifest(store)
    if teacher is not None:
        given = TeacherRef.find(teacher, heads)
        if given.digest != manifest.teacher.digest:
            raise other_teacher(manifest, given)
        if (mine := given.tokeniser().digest) != (its := manifest.teacher.tokeniser):
            raise UserError(
                f"the store {store} was built with another tokeniser (digest {its[:12]}) than that of "
                f"{teacher} (digest {mine[:12]})",
                hint="leave --teacher out, or build a store with this teacher",
            )
    return TeacherRef.of_store(store, manifest)


def _check_selection(selection: Selection, settings: DistillSettings) -> None:
    if selection.tokens is not None and selection.tokens > settings.student.max_length:
        raise UserError(
            f"{selection.tokens} tokens cannot be kept of rows of at most {settings.student.max_length}",
            expected=f"1 to {settings.student.max_length}",
            hint="a smaller terms.NAME.tokens, or a larger student.max_length",
        )


def _check_store(validated: ValidatedRun, store: Path, manifest: StoreManifest) -> None:
    """Refuse a store that lacks something, or was read otherwise than this student reads."""
    missing = validated.teacher_need.missing_from(manifest.contents.offers)
    if missing:
        raise UserError(
            f"the store {store} lacks what {validated.settings.name} needs: {', '.join(missing)}",
            expected="recipes whose needs it covers: mtkd store info tells what it holds",
            hint=f"build another: mtkd store build --recipe {validated.settings.name} ... --out DIR",
        )
    mine, its = validated.settings.student.max_length, manifest.contents.max_length
    if (validated.teacher_need.tokens or validated.aligned) and mine != its:
        raise UserError(
            f"the store {store} was built with at most {its} tokens a row, this student reads {mine}",
            hint=f"--set student.max_length={its}, or build a store with --set student.max_length={mine}",
        )


def prepare_run(
    validated: ValidatedRun,
    texts: Iterable[pa.StringArray] = (),
    importance: Callable[[MultiTaskModel], Importance] | None = None,
) -> PreparedRun:
    """Load the teacher and make the student.

    Args:
        texts: what a word-level vocabulary is built from.
        importance: says what of the teacher matters, for a student that is cut out of it.

    Raises:
        UserError: teacher and student read differently where that matters; a damaged model.
    """
    settings, wanted = validated.settings, validated.settings.student
    aligned = validated.aligned
    teacher = None
    from_weights = wanted.embeddings == "teacher" or wanted.transformer.init == "teacher"
    if validated.teacher and (not validated.manifest or from_weights):
        teacher = validated.teacher.load(wanted.max_length if aligned else None)
    if teacher or not validated.teacher:
        own = teacher.tokeniser if teacher else Tokeniser.load(locate(DEFAULT_TEACHER))
    else:
        own = validated.teacher.tokeniser()
    tokeniser = Tokeniser.word_level(texts, wanted.vocabulary_size) if wanted.vocabulary == "word" else own
    torch.manual_seed(settings.train.seed)
    init_spec = validated.teacher.init_spec if validated.teacher else InitSpec(None, None)
    weighed = None
    if wanted.transformer.prune and wanted.kind == "transformer":
        if importance is None or teacher is None:
            raise UserError(
                "a student is cut out of its teacher by the loss on labels, and plain text has none",
                hint="--set student.transformer.prune=false, or train on tasks",
            )
        weighed = importance(teacher)
        torch.manual_seed(settings.train.seed)
    origin = InitContext(tokeniser, teacher.encoder if teacher else None, own, init_spec, weighed)
    info = ModelInfo(wanted.max_length, wanted.head_hidden, wanted.dropout, stride=wanted.stride)
    tasks = [task for task in validated.tasks if task.kind != "text"]
    student = MultiTaskModel(build_student(wanted, origin), tasks, tokeniser, info)
    if weighed and teacher:
        _take_heads(student, teacher)
    theirs = teacher.reader if teacher else None
    if validated.manifest:
        teacher, theirs = None, Reader(own, "joined", validated.manifest.contents.max_length)
    if aligned and theirs and not student.reader.reads_like(theirs):
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, and they read "
            f"differently: "
            f"the teacher {_reading(theirs)}, the student {_reading(student.reader)}",
            hint="use a Transformer student with the teacher's vocabulary, or drop the term",
        )
    return PreparedRun(validated, student, teacher if settings.supervision == "teacher" else None)


def _take_heads(student: MultiTaskModel, teacher: MultiTaskModel) -> None:
    """Start a pruned student's task heads from the teacher's, where they are of one shape."""
    for name, head in student.heads.items():
        theirs = teacher.heads[name].state_dict() if name in teacher.heads else {}
        if all(name in theirs and theirs[name].shape == w.shape for name, w in head.state_dict().items()):
            head.load_state_dict(theirs)


def _reading(reader: Reader) -> str:
    how = "both texts in one sequence" if reader.input_format == "joined" else "each text apart"
    vocabulary = f"{reader.tokeniser.vocab_size} ids (digest {reader.tokeniser.digest[:8]})"
    return f"{how}, {vocabulary}, at most {reader.max_length} tokens"


def stage_place(out: Path, stage: Stage) -> Path:
    """Where a stage's logs and checkpoints go: the run's directory where there is but one."""
    return out / "stages" / stage.name if stage.name else out
