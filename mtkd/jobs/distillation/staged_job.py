"""Distillation in stages; each named stage of a recipe saves its own model."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.distillation.prepare import PreparedRun
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.training_job import JobResult, TrainingJob
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.run_record import StageResult
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.teacher_sources import TeacherSource
from mtkd.train_settings import TrainSettings
from mtkd.training.batches import BatchSource
from mtkd.training.trainer import Evaluate, Trainer
from tasks.common.records import read_record, write_record

_RESULT = "result.json"
_MANY_EPOCHS = 100


@dataclass(frozen=True)
class StageInputs:
    """The inputs of one stage.

    Attributes:
        batches: draws the rows of each step.
        evaluate: computes validation scores after each epoch; None = the stage is not evaluated.
        teacher: called at the start of the stage; returns the source of the teacher's outputs. None if no
            term needs a teacher.
    """

    batches: BatchSource
    evaluate: Evaluate | None
    teacher: Callable[[], TeacherSource] | None


@dataclass(kw_only=True)
class StagedJob(TrainingJob):
    """Base class of distillation jobs: runs the stages of a recipe one after another, and can resume them.

    Attributes:
        validated: the validated request.
        prepared: teachers and student, set by `prepare`.
        stages: each stage with its objective and its inputs, set by `prepare`.
        record_values: further values to record, found during training.
    """

    command = "distill"
    settings: DistillSettings
    validated: ValidatedRun
    prepared: PreparedRun = field(init=False)
    stages: list[tuple[Stage, Objective, StageInputs]] = field(default_factory=list, init=False)
    record_values: dict[str, Any] = field(init=False, default_factory=dict)

    @abstractmethod
    def scores(self, student: MultiTaskModel, training: Mapping[str, Any]) -> list[TaskScores]:
        """The scores of the trained student.

        Args:
            training: the `TrainingResult` of the last stage.
        """

    def fit_heads(self, student: MultiTaskModel, train: TrainSettings, teacher: TeacherSource | None) -> None:
        """Initialise heads from the student's features; called before the first stage that trains heads.

        Args:
            train, teacher: of this stage.
        """

    def train(self) -> JobResult:
        """Run the stages; named stages that an earlier call has finished are loaded instead."""
        student = self.prepared.student
        record: dict[str, dict[str, Any]] = {}
        heads_trained = False
        for stage, objective, inputs in self.stages:
            trains_heads = objective.student_need.logits
            directory = stage_directory(self.request.out, stage)
            if stage.name and (directory / _RESULT).is_file():
                student = MultiTaskModel.load(directory)
                record[stage.name] = dict(read_record(directory / _RESULT, StageResult))
                heads_trained |= trains_heads
                self.record_values |= record[stage.name].pop("facts", {})
                continue
            teacher = inputs.teacher() if inputs.teacher else None
            label = "distilling" if teacher else "training"
            trainer = Trainer(
                self.accelerator,
                student,
                objective,
                inputs.batches,
                stage.train,
                directory,
                evaluate=inputs.evaluate,
                teacher=teacher,
                callbacks=self.callbacks,
                label=f"{label} ({stage.name})" if stage.name else label,
            )
            if trains_heads and not heads_trained and not trainer.resumes:
                self.fit_heads(student, stage.train, teacher)
            heads_trained |= trains_heads
            record[stage.name] = vars(trainer.fit())
            if stage.name and self.accelerator.is_main_process:
                student.save(directory / "model")
                write_record(directory / _RESULT, {**record[stage.name], "facts": self.record_values})
                shutil.rmtree(directory / "checkpoints", ignore_errors=True)
            self.accelerator.wait_for_everyone()
        last_stage = self.stages[-1][0].name
        scores = self.scores(student, record[last_stage])
        return JobResult(student, scores, record.get("", record), self.record_values)


def stage_directory(out: Path, stage: Stage) -> Path:
    """The directory of a stage's logs and checkpoints; the run directory if there is only one stage."""
    return out / "stages" / stage.name if stage.name else out


def text_steps_warnings(train: TrainSettings, n_train: int, batches: BatchSource) -> list[str]:
    """A warning if a stage without task heads would pass over the training rows very often.

    This happens if a recipe for plain text, with its number of steps, is run on the few rows of tasks.

    Args:
        n_train: the number of training rows.
    """
    batch_rows = train.batch_size if train.batch_tokens is None else n_train / batches.total(1)
    epochs = (train.steps or 0) * batch_rows / n_train
    if epochs <= _MANY_EPOCHS:
        return []
    return [
        f"{train.steps:,} steps of {batch_rows:.0f} rows are about {epochs:,.0f} epochs over the "
        f"{n_train:,} training rows. The recipe's number of steps is meant for plain text (`text='FILE'`). "
        "Set `steps=N` or `epochs=N`."
    ]
