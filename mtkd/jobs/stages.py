"""A course: the stages of a recipe, one after the other, each of which leaves a checkpoint of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator

from mtkd.jobs.prepare import PreparedRun, stage_place
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.settings import Stage, TrainSettings
from mtkd.teachers.live import TeacherSource
from mtkd.training.batches import BatchSource
from mtkd.training.trainer import Evaluate, Trainer
from tasks.files import read_json, write_json
from tasks.reader import Reader

_RESULT = "result.json"


class StageInputs(Protocol):
    """What a course trains on: rows of tasks, or plain text."""

    def source(self, stage: Stage, objective: Objective) -> tuple[TeacherSource | None, Reader | None]:
        """The teacher as the loop sees it in a stage, and how it reads (None if it needs no batches)."""
        ...

    def batches(
        self,
        student: MultiTaskModel,
        reader: Reader | None,
        source: TeacherSource | None,
        objective: Objective,
        train: TrainSettings,
    ) -> tuple[BatchSource, Evaluate | None]:
        """The batches of a stage, and what it is judged by after each epoch (None = nothing).

        Args:
            reader: how the teacher reads; None = it needs no batches.
        """
        ...


def run_stages(
    prepared: PreparedRun, inputs_of_stages: StageInputs, accelerator: Accelerator, out: Path
) -> tuple[MultiTaskModel, dict[str, Any]]:
    """Run the stages; those that an earlier start of this run finished are not run again.

    Returns:
        the student after the last stage; stage -> how its training went (of a single stage, just that).
    """
    student, record = prepared.student, {}
    for stage, objective in prepared.validated.stages:
        place = stage_place(out, stage)
        if stage.name and (place / _RESULT).is_file():
            student, record[stage.name] = MultiTaskModel.load(place), read_json(place / _RESULT)
            continue
        source, reader = inputs_of_stages.source(stage, objective)
        batch_source, evaluate = inputs_of_stages.batches(student, reader, source, objective, stage.train)
        label = f"distilling ({stage.name})" if stage.name else "distilling" if source else "training"
        trainer = Trainer(
            accelerator,
            student,
            objective,
            batch_source,
            stage.train,
            place,
            evaluate=evaluate,
            teacher=source,
            label=label,
        )
        record[stage.name] = vars(trainer.fit())
        if stage.name and accelerator.is_main_process:
            student.save(place / "model")
            write_json(place / _RESULT, record[stage.name])
            shutil.rmtree(place / "checkpoints", ignore_errors=True)
        accelerator.wait_for_everyone()
    return student, record.get("", record)
