"""What a distillation runs with: everything is looked at and checked before a weight is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch

from mtkd.config import DistillSettings, Stage
from mtkd.losses.build import build_objective
from mtkd.losses.objective import Objective
from mtkd.model import ModelInfo, MultiTaskModel, require_heads
from mtkd.records import Need
from mtkd.stages.teacher import TeacherRef
from mtkd.students.build import Ancestry, Origin, build_student, student_config
from mtkd.students.hf_config import DEFAULT_TEACHER, locate
from tasks.batching import Reader
from tasks.errors import UserError
from tasks.task import Task
from tasks.tokenise import Tokeniser


@dataclass(frozen=True)
class Checked:
    """A request whose sizes go together; nothing heavy is loaded yet.

    Attributes:
        teacher: None where the student learns from labels.
        stages: each with its objective.
    """

    settings: DistillSettings
    tasks: list[Task]
    teacher: TeacherRef | None
    stages: list[tuple[Stage, Objective]]

    @property
    def need(self) -> Need:
        """All that the teacher and the student have to give, over all stages."""
        need = Need()
        for _, objective in self.stages:
            need = need | objective.student_need | objective.teacher_need
        return need


@dataclass(frozen=True)
class Plan:
    """Student and teacher, loaded.

    Attributes:
        warnings: what the user should know before trusting the result.
    """

    checked: Checked
    student: MultiTaskModel
    teacher: MultiTaskModel | None
    warnings: list[str] = field(default_factory=list)


def check(settings: DistillSettings, teacher: str | None, tasks: list[Task]) -> Checked:
    """See that recipe, teacher, student and tasks go together.

    Raises:
        UserError: a term that does not fit, sizes that do not, no such teacher.
    """
    stages = settings.resolved_stages()
    losses = [term.loss for stage in stages for term in stage.terms.values()]
    heads = any(loss in ("logits_mse", "soft_labels") for loss in losses)
    reference = None
    if teacher is not None:
        reference = TeacherRef.find(teacher, heads)
        if heads and reference.saved:
            known = {task.head: task for task in reference.saved.tasks}
            require_heads(known, tasks, f"the teacher {teacher}")
    ancestry = reference.ancestry if reference else Ancestry(None, None)
    student = student_config(settings.student, ancestry).shape
    from_labels = settings.supervision == "labels"
    torch.manual_seed(settings.train.seed)
    built = [
        (
            stage,
            build_objective(
                stage.terms, student, None if from_labels or not reference else reference.config.shape, tasks
            ),
        )
        for stage in stages
    ]
    checked = Checked(settings, tasks, reference, built)
    if settings.student.vocabulary == "word" and checked.need.tokens:
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, and a student with a "
            "vocabulary of its own reads other tokens",
            mend="--set student.vocabulary=wordpiece, or drop the term",
        )
    return checked


def load(checked: Checked, texts: Iterable[pa.StringArray] = ()) -> Plan:
    """Load the teacher and make the student.

    Args:
        texts: what a word-level vocabulary is built from.

    Raises:
        UserError: teacher and student read differently where that matters; a damaged model.
    """
    settings, wanted = checked.settings, checked.settings.student
    aligned = checked.need.tokens
    teacher = None
    if checked.teacher:
        teacher = checked.teacher.load(wanted.max_length if aligned else None)
    own = teacher.tokeniser if teacher else Tokeniser.load(locate(DEFAULT_TEACHER))
    tokeniser = Tokeniser.word_level(texts, wanted.vocabulary_size) if wanted.vocabulary == "word" else own
    torch.manual_seed(settings.train.seed)
    ancestry = checked.teacher.ancestry if checked.teacher else Ancestry(None, None)
    origin = Origin(tokeniser, teacher.encoder if teacher else None, own, ancestry.base)
    info = ModelInfo(wanted.max_length, wanted.head_hidden, wanted.dropout)
    tasks = [task for task in checked.tasks if task.kind != "text"]
    student = MultiTaskModel(build_student(wanted, origin), tasks, tokeniser, info)
    if aligned and teacher and not student.reader.reads_like(teacher.reader):
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, and they read "
            f"differently: "
            f"the teacher {_reading(teacher.reader)}, the student {_reading(student.reader)}",
            mend="use a Transformer student with the teacher's vocabulary, or drop the term",
        )
    return Plan(checked, student, teacher if settings.supervision == "teacher" else None)


def _reading(reader: Reader) -> str:
    how = "both texts in one sequence" if reader.view == "joint" else "each text apart"
    vocabulary = f"{reader.tokeniser.vocab_size} ids (digest {reader.tokeniser.digest[:8]})"
    return f"{how}, {vocabulary}, at most {reader.max_length} tokens"


def stage_place(out: Path, stage: Stage) -> Path:
    """Where a stage's logs and checkpoints go: the run's directory where there is but one."""
    return out / "stages" / stage.name if stage.name else out
