"""Distillation stage by stage: each stage of a recipe leaves a model of its own."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtkd.jobs.prepare import PreparedRun, ValidatedRun
from mtkd.jobs.training_job import Trained, TrainingJob
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.live import TeacherSource
from mtkd.training.batches import BatchSource
from mtkd.training.trainer import Evaluate, Trainer
from tasks.files import read_json, write_json

_RESULT = "result.json"


@dataclass(frozen=True)
class StageInputs:
    """What one stage trains on.

    Attributes:
        evaluate: what the stage is judged by after each epoch; None = nothing.
        teacher: gives the teacher as the loop sees it, when the stage begins; None = no term needs one.
    """

    batches: BatchSource
    evaluate: Evaluate | None
    teacher: Callable[[], TeacherSource] | None


@dataclass(kw_only=True)
class StagedJob(TrainingJob):
    """A distillation.

    Attributes:
        prepared: teacher and student; `prepare` sets it.
        stages: each stage with its objective and what it trains on; `prepare` sets them.
    """

    name = "distill"
    settings: DistillSettings
    validated: ValidatedRun
    prepared: PreparedRun = field(init=False)
    stages: list[tuple[Stage, Objective, StageInputs]] = field(init=False)

    @abstractmethod
    def scores(self, student: MultiTaskModel) -> dict[str, Any]:
        """The scores of the trained student, as they are recorded."""

    def train(self) -> Trained:
        """Run the stages; those that an earlier start of this run finished are not run again."""
        student, record = self.prepared.student, {}
        for stage, objective, inputs in self.stages:
            place = stage_directory(self.request.out, stage)
            if stage.name and (place / _RESULT).is_file():
                student, record[stage.name] = MultiTaskModel.load(place), read_json(place / _RESULT)
                continue
            teacher = inputs.teacher() if inputs.teacher else None
            what = "distilling" if teacher else "training"
            trainer = Trainer(
                self.accelerator,
                student,
                objective,
                inputs.batches,
                stage.train,
                place,
                evaluate=inputs.evaluate,
                teacher=teacher,
                callbacks=self.callbacks,
                label=f"{what} ({stage.name})" if stage.name else what,
            )
            record[stage.name] = vars(trainer.fit())
            if stage.name and self.accelerator.is_main_process:
                student.save(place / "model")
                write_json(place / _RESULT, record[stage.name])
                shutil.rmtree(place / "checkpoints", ignore_errors=True)
            self.accelerator.wait_for_everyone()
        return Trained(student, self.scores(student), record.get("", record))


def stage_directory(out: Path, stage: Stage) -> Path:
    """Where a stage's logs and checkpoints go: the run's directory where there is but one."""
    return out / "stages" / stage.name if stage.name else out
