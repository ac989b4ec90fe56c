"""The teachers of a distillation on tasks: run on every batch, or once before training to cache logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator

from mtkd.jobs.distillation.prepare import LoadedTeacher, PreparedRun
from mtkd.jobs.distillation.unlabelled_rows import cache_folders
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import EncodedRows
from mtkd.outputs import LOGITS, OutputSpec
from mtkd.teachers.group import AveragedLogits, TeacherByTask
from mtkd.teachers.logits_cache import cache_logits
from mtkd.teachers.teacher_cache import writable_run
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.teacher_sources import CachedLogits, IndexedLogits, OnlineTeacher, TeacherSource
from mtkd.train_settings import TrainSettings
from tasks.data.soft_labels import require_soft_labels
from tasks.tokens.reader import Reader


@dataclass(frozen=True)
class TaskTeachers:
    """The loaded teachers of a run, and the rows for which they provide outputs."""

    request: Request
    accelerator: Accelerator
    validated: ValidatedRun
    prepared: PreparedRun
    rows: EncodedRows

    def uses_cached_logits(self, need: OutputSpec) -> bool:
        """True if a stage with this need uses logits that are computed before it starts."""
        several = len(self.prepared.teachers) + len(self.validated.soft_labelled) > 1
        return need == LOGITS and (self.validated.settings.teacher.cache_logits or several)

    def online(self, need: OutputSpec) -> TeacherSource:
        """The teachers, run on every batch of their tasks; all of them read the same tokens."""
        precision = self.validated.settings.teacher.precision
        sources = {
            name: OnlineTeacher(teacher.model, need, precision)
            for teacher in self.prepared.teachers
            for name in teacher.tasks
        }
        return TeacherByTask(sources)

    def reader(self) -> Reader:
        """How the teachers that are run on every batch read their tasks; all have the same tokeniser."""
        teacher_ref, model = self.validated.teacher, self.prepared.teachers[0].model
        assert teacher_ref is not None, "there are teachers"
        tasks, info = self.validated.tasks, model.info
        return teacher_ref.config.reader(model.tokeniser, tasks, info.max_length, info.stride)

    def cached_logits(self, train: TrainSettings) -> CachedLogits:
        """The logits of all teachers, averaged by task; computed once, and cached for later students.

        Args:
            train: the settings of the stage that learns from them.
        """
        data, average = self.rows.data, self.validated.settings.teacher.average
        by_task: dict[str, list[IndexedLogits]] = {name: [] for name in data.tasks}
        for task_data in data.parts:
            name = task_data.task.name
            if name in self.validated.soft_labelled:
                by_task[name].append(require_soft_labels(task_data.task, task_data.train))
        for teacher in self.prepared.teachers:
            for name, values in self._logits_of(teacher, train).items():
                by_task[name].append(values)
        return CachedLogits(
            {name: AveragedLogits(data.tasks[name], sources, average) for name, sources in by_task.items()}
        )

    def _logits_of(self, teacher: LoadedTeacher, train: TrainSettings) -> Mapping[str, IndexedLogits]:
        """The logits of one teacher for the rows of its tasks."""
        model = teacher.model
        workers = self.request.workers
        data = self.rows.data
        precision = self.validated.settings.teacher.precision
        if not workers.in_other_processes:
            model.to(self.accelerator.device)
        logits = cache_logits(
            model,
            {name: data.tasks[name] for name in teacher.tasks},
            self.rows.train(
                replace(self.prepared.student.reader, tokeniser=model.tokeniser), only=teacher.tasks
            ),
            _logits_directory(teacher.ref, self.request.out),
            {
                part.task.name: cache_folders(data, part, f"{precision}-{model.info.max_length}")
                for part in data.parts
                if part.task.name in teacher.tasks
            },
            self.accelerator,
            precision=precision,
            batch_size=train.eval_batch_size,
            workers=workers,
            load=teacher.ref.loader(model.info.max_length) if workers.in_other_processes else None,
        )
        model.cpu()  # it is not needed in this stage any more; free the GPU memory
        return logits


def _logits_directory(teacher: TeacherRef, run: Path) -> Path:
    """The directory of a teacher's cached logits: in the teacher's run if that is writable, else in `run`.

    Args:
        run: the directory of the student's run.
    """
    return (writable_run(teacher) or run) / f"logits-{(teacher.digest or '')[:16]}"
