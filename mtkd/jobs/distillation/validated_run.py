"""A validated distillation: its settings, tasks, teacher, student sizes and losses; no weights are loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mtkd.knowledge_store.store_manifest import StoreManifest
from mtkd.losses.objective import Objective
from mtkd.models.initialisation import InitSpec
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.group import Member, TeacherGroup
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.task import Task


@dataclass(frozen=True)
class ValidatedRun:
    """A validated request; no weights are loaded yet.

    Attributes:
        teacher: the teacher; None if the student learns from labels, or from soft labels in the data.
        student: the sizes of the student's encoder.
        stages: each stage with its objective.
        warnings: about the student's initialisation, and about losses on a [CLS] vector that no head reads.
    """

    settings: DistillSettings
    tasks: list[Task]
    teacher: TeacherRef | None
    student: EncoderSpec
    stages: list[tuple[Stage, Objective]]
    warnings: Sequence[str] = ()

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
        """True if the student must read the same tokens as a teacher."""
        return any(map(self.aligned_on, self.tasks))

    def aligned_on(self, task: Task) -> bool:
        """True if the student must read the same tokens as the teacher of this task."""
        return self.need.has_token_vectors or (self.teacher_need.logits and task.type.predicts_spans)

    def aligned_with(self, names: Collection[str]) -> bool:
        """True if the student must read the same tokens as a teacher of these tasks."""
        return any(self.aligned_on(task) for task in self.tasks if task.name in names)

    @property
    def init_spec(self) -> InitSpec:
        """What the student can be initialised from."""
        return self.teacher.init_spec if self.teacher else InitSpec(None, None)

    @property
    def other_encoder(self) -> str | None:
        """The pretrained encoder that the student starts from, if it is not that of the teacher."""
        name = self.settings.student.pretrained_encoder(self.init_spec)
        return None if name == self.init_spec.encoder else name

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student is initialised from weights of the teacher."""
        student = self.settings.student
        if self.other_encoder and student.init_heads == "auto":  # the teacher's heads are not copied
            student = student.model_copy(update={"init_heads": "random"})
        return student.needs_teacher_weights

    @property
    def members(self) -> tuple[Member, ...]:
        """The teachers with the tasks that they teach; empty without a teacher."""
        if isinstance(self.teacher, TeacherGroup):
            return self.teacher.members
        names = tuple(task.name for task in self.tasks)
        return (Member(self.teacher, names),) if self.teacher else ()

    @property
    def soft_labelled(self) -> tuple[str, ...]:
        """The names of the tasks whose logits are in their rows, because they have no teacher."""
        taught_tasks = {name for member in self.members for name in member.tasks}
        from_rows = self.settings.supervision == "teacher" and self.teacher_need.logits
        return tuple(task.name for task in self.tasks if from_rows and task.name not in taught_tasks)

    @property
    def manifest(self) -> StoreManifest | None:
        """The manifest of the knowledge store that replaces the teacher; None if the teacher is run."""
        return self.teacher.manifest if self.teacher else None
