"""Distil on plain text: a task-agnostic student, to be fine-tuned or to start other students from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.common import Request, begin, scores_record
from mtkd.jobs.prepare import PreparedRun, prepare_run, validate_run
from mtkd.jobs.stages import StageInputs, run_stages
from mtkd.losses.objective import Objective
from mtkd.losses.registry import loss_class
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.outputs import OutputSpec
from mtkd.settings import DistillSettings, Stage, TrainSettings
from mtkd.teachers.live import OnlineTeacher, TeacherSource
from mtkd.training.batches import BatchSource
from mtkd.training.run_directory import RunDirectory
from mtkd.training.text_batches import TextBatches, held_out_loss
from mtkd.training.trainer import Evaluate, make_accelerator
from tasks.batching import Collator
from tasks.errors import UserError
from tasks.plain_text import TEXT, TextFiles
from tasks.reader import Reader


def run(
    request: Request,
    settings: DistillSettings,
    teacher: str | None,
    text: Path,
    column: str = "text",
    warn: Callable[[str], None] = lambda text: None,
) -> RunDirectory:
    """Train a student on plain text, which is streamed.

    Args:
        request: its data and tasks are not used.
        teacher: a pretrained encoder, or a model of mtkd.
        text: a file or directory that `TextFiles.open` reads.
        column: where rows hold their text.
        warn: called with each warning, before training starts.

    Returns:
        the finished run; its `model/` is also a directory as transformers writes it.

    Raises:
        UserError: anything wrong with text, teacher or settings, before anything is written.
    """
    files = TextFiles.open(text, column)
    settings, left_out = _general(settings, teacher)
    validated = validate_run(settings, teacher, [TEXT])
    judged = {"metric": "loss", "keep": "last"}  # there is no score to watch, and nothing to overfit
    validated = replace(
        validated,
        stages=[
            (replace(stage, train=stage.train.model_copy(update=judged)), objective)
            for stage, objective in validated.stages
        ],
    )
    for stage, _ in validated.stages:
        if stage.train.steps is None:
            raise UserError(
                f"{settings.name} trains by epochs, and text is read by steps",
                hint="--steps N (or --set train.steps=N, or of a stage: stages.NAME.train.steps=N)",
            )
    run = request.open_run("distill", settings, [TEXT], teacher=teacher, text=str(text), column=column)
    inputs = {"data": files.digest, "teacher": validated.teacher.digest if validated.teacher else None}
    run.check_inputs(**inputs)
    if run.finished:
        return run
    if next(files.chunks(), None) is None:
        raise UserError(f"{text} holds no text", hint="every line or row of it is empty")
    accelerator = make_accelerator(settings.train)
    prepared = prepare_run(validated)
    if prepared.teacher:
        prepared.teacher.to(accelerator.device)
    for stage_name in left_out if accelerator.is_main_process else ():
        warn(
            f"the stage {stage_name!r} needs a task and is left out: run it later, with --init {request.out}"
        )
    begin(run, accelerator, **inputs, parameters=count_parameters(prepared.student).to_json())
    inputs_of_stages = _TextInputs(prepared, files, accelerator, request.eval_limit or 512)
    student, training = run_stages(prepared, inputs_of_stages, accelerator, request.out)
    if accelerator.is_main_process:
        scores = scores_record(inputs_of_stages.last)
        student.info.scores = scores
        student.save(request.out / "model")
        run.finish(scores=scores, training=training)
    accelerator.wait_for_everyone()
    return run


def _general(settings: DistillSettings, teacher: str | None) -> tuple[DistillSettings, list[str]]:
    """The recipe without the stages that need a task, and what was left out.

    Raises:
        UserError: nothing is left, or there is no teacher.
    """
    if settings.supervision == "labels" or teacher is None:
        raise UserError(
            "plain text has no labels: a student learns from it by a teacher alone",
            hint="--teacher NAME, and without supervision=labels",
        )
    stages = settings.resolved_stages()
    needy = {
        stage.name: f"{name} ({term.loss})"
        for stage in stages
        for name, term in stage.terms.items()
        if loss_class(term.loss).needs_task()
    }
    general = [stage.name for stage in stages if stage.name not in needy]
    if not general:
        raise UserError(
            f"the term {next(iter(needy.values()))} of {settings.name} needs a task, and plain text has none",
            expected="recipes on hidden states, attention or relations, such as minilmv2-6x384",
            hint="leave the term out with --set terms.NAME.weight=0, or give --data and --tasks, not --text",
        )
    if not needy:
        return settings, []
    return settings.model_copy(update={"run_stages": general}), list(needy)


@dataclass
class _TextInputs(StageInputs):
    """What the stages of a course train on: streamed text; the teacher is run on every batch.

    Attributes:
        held_out: how many texts are kept from training.
        last: the scores that were taken last.
    """

    prepared: PreparedRun
    files: TextFiles
    accelerator: Accelerator
    held_out: int

    def __post_init__(self) -> None:
        self.last: list[TaskScores] = []

    def source(self, stage: Stage, objective: Objective) -> tuple[TeacherSource | None, Reader | None]:
        """The teacher as the loop sees it, and how it reads."""
        teacher, need = self.prepared.teacher, objective.teacher_need
        if teacher is None or need == OutputSpec():
            return None, None
        return OnlineTeacher(
            teacher, need, self.prepared.validated.settings.teacher.precision
        ), teacher.reader

    def batches(
        self,
        student: MultiTaskModel,
        reader: Reader | None,
        source: TeacherSource | None,
        objective: Objective,
        train: TrainSettings,
    ) -> tuple[BatchSource, Evaluate | None]:
        """The text as student and teacher read it, and the objective on what is held out of it."""
        collate = Collator(student.reader, reader)
        batch_source = TextBatches(self.files, collate, train, self.held_out)
        rows = batch_source.held_out()
        if not len(rows):
            return batch_source, None
        evaluate = held_out_loss(rows, collate, objective, source, train.eval_batch_size)

        def remember(model: MultiTaskModel) -> list[TaskScores]:
            self.last = evaluate(model)
            return self.last

        return batch_source, remember
