"""Distil on plain text: train a task-agnostic student, to fine-tune it or to initialise other students."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.class_weights import check_class_weights
from mtkd.jobs.distillation.prepare import prepare_run
from mtkd.jobs.distillation.staged_job import StagedJob, StageInputs
from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.request import Request, refuse_unlabelled_settings
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.precision import resolve_precision
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.teacher_names import TeacherSpec, describe_teachers
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.torch_state import trains
from mtkd.training.callbacks import Callback
from mtkd.training.run_directory import RunDirectory
from mtkd.training.text_batches import TextBatches, held_out_loss, held_out_scores
from tasks.common.errors import UserError
from tasks.data.plain_text import TEXT_TASK, TextFiles
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

_HELD_OUT_TEXTS = 512


@trains
def distill_text(
    request: Request,
    settings: DistillSettings,
    teacher: TeacherSpec,
    text: Path,
    column: str = "text",
    *,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Train a student on streamed plain text.

    Args:
        request: its `data` is only recorded, and its tasks are not used.
        teacher: a pretrained encoder, or an mtkd model.
        text: a file or directory for `TextFiles.open`.
        column: the column or key that holds the text.
        callbacks: called during training.
        warn: called with each warning, before training starts.

    Returns:
        The finished run; transformers can also load its `model/` directory.

    Raises:
        UserError: invalid text, teacher or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    files = TextFiles.open(text, column)
    settings = resolve_precision(settings, request.device, warn)
    if teacher is None:
        raise _needs_teacher()
    settings, skipped_stages = settings_for_text(settings)
    validated = validate_run(settings, teacher, [TEXT_TASK])
    for stage, objective in validated.stages:
        check_class_weights(stage.train, [TEXT_TASK], objective)
    changes = {"metric": "loss", "keep": "last"}  # text has no scores, and overfitting is unlikely
    stages = [
        (replace(stage, train=stage.train.model_copy(update=changes)), objective)
        for stage, objective in validated.stages
    ]
    job = _DistillText(
        request=request,
        settings=validated.settings,
        tasks=[TEXT_TASK],
        sources={"teacher": describe_teachers(teacher), "text": str(text), "column": column},
        callbacks=callbacks,
        warn=warn,
        validated=replace(validated, stages=stages),
        files=files,
    )
    job.warnings += [*validated.warnings] + [
        f"the stage {stage!r} needs a task and is skipped; run it later with `init={str(request.out)!r}`"
        for stage in skipped_stages
    ]
    return job.run()


def settings_for_text(settings: DistillSettings) -> tuple[DistillSettings, list[str]]:
    """The settings without the stages that need a task, and the names of those stages.

    Raises:
        UserError: no stage is left, or a setting cannot be used on plain text.
    """
    if settings.supervision == "labels":
        raise _needs_teacher()
    settings, skipped_stages = _without_task_stages(settings)
    if settings.student.vocabulary != "teacher":
        raise UserError(
            f"student.vocabulary={settings.student.vocabulary} cannot be used on plain text, where student "
            "and teacher are compared token by token",
            hint="use `student.vocabulary=teacher`",
        )
    for stage in settings.resolved_stages():
        refuse_unlabelled_settings(stage.train, "training on plain text")
        if stage.train.steps is None:
            raise UserError(
                f"{settings.name} trains for epochs, but training on text is measured in steps",
                hint="pass `steps=N` (or `train.steps=N`, or for one stage stages.NAME.train.steps=N)",
            )
    return settings, skipped_stages


def _needs_teacher() -> UserError:
    return UserError(
        "plain text has no labels, so a student can learn from it only with a teacher",
        hint="pass `teacher='NAME'`, and leave out `settings={'supervision': 'labels'}`",
    )


def _without_task_stages(settings: DistillSettings) -> tuple[DistillSettings, list[str]]:
    """The settings without the stages that need a task, and the names of those; UserError if none is left."""
    stages = settings.resolved_stages()
    with_task = {
        stage.name: f"{name} ({term.loss})"
        for stage in stages
        for name, term in stage.terms.items()
        if loss_class(term.loss).needs_task()
    }
    remaining = [stage.name for stage in stages if stage.name not in with_task]
    if not remaining:
        raise UserError(
            f"the term {next(iter(with_task.values()))} of {settings.name} needs a task, which plain text "
            "does not have",
            expected="recipes that use hidden states, attention or relations, such as minilmv2-6x384",
            hint="turn the term off with `terms.NAME.weight=0`, or pass `data` and `tasks` instead of `text`",
        )
    if not with_task:
        return settings, []
    return settings.model_copy(update={"run_stages": remaining}), list(with_task)


@dataclass(kw_only=True)
class _DistillText(StagedJob):
    """Distillation on streamed text; the teacher is run on every batch.

    Attributes:
        held_out: the texts on which the loss is evaluated; None until the first stage is prepared.
    """

    files: TextFiles
    held_out: Encoded | None = field(init=False, default=None)

    def inputs(self) -> dict[str, Any]:
        teacher = self.validated.teacher
        return {"data": self.files.digest, "teacher": teacher.digest if teacher else None}

    def prepare(self) -> MultiTaskModel:
        if next(self.files.chunks(), None) is None:
            raise UserError(
                f"{self.sources['text']} contains no text", hint="all its lines or rows are empty"
            )
        self.prepared = prepare_run(self.validated)
        self.prepared.teachers[0].model.to(self.accelerator.device)
        self.stages = [(*pair, self._stage_inputs(*pair)) for pair in self.validated.stages]
        return self.prepared.student

    def scores(self, student: MultiTaskModel, training: Mapping[str, Any]) -> list[TaskScores]:
        """The scores of the last evaluation, which follows the last step."""
        if self.held_out is None or not len(self.held_out) or not training["history"]:
            return []
        return held_out_scores(len(self.held_out), training["history"][-1]["loss"])

    def _stage_inputs(self, stage: Stage, objective: Objective) -> StageInputs:
        """The batches and the teacher of a stage, and its evaluation on the held-out texts."""
        student, teacher = self.prepared.student, self.prepared.teachers[0].model
        need, source = objective.teacher_need, None
        if need != OutputSpec():
            source = OnlineTeacher(teacher, need, self.settings.teacher.precision)
        collate = Collator(student.reader_of(TEXT_TASK), teacher.reader_of(TEXT_TASK) if source else None)
        batches = TextBatches(
            self.files,
            collate,
            stage.train,
            self.request.eval_limit or _HELD_OUT_TEXTS,
            self.settings.pack_texts,
        )
        if self.held_out is None:
            self.held_out = batches.held_out()
        evaluate = held_out_loss(self.held_out, collate, objective, source, stage.train.eval_batch_size)
        return StageInputs(
            batches, evaluate if len(self.held_out) else None, (lambda: source) if source else None
        )
