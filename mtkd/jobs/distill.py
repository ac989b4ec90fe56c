"""Distil: a student learns the tasks of a request from a teacher (or, for comparison, from labels alone)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from mtkd.jobs.common import (
    Request,
    begin,
    check_metric,
    encode_validation,
    evaluator,
    scores_record,
)
from mtkd.jobs.prepare import PreparedRun, ValidatedRun, prepare_run, validate_run
from mtkd.jobs.stages import StageInputs, run_stages
from mtkd.jobs.training_data import TrainingData, check_mask, load_training_data, trainable_tasks
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel, digest_model, model_directory
from mtkd.models.parameter_count import count_parameters
from mtkd.models.pruning import Importance
from mtkd.outputs import LOGITS, OutputSpec
from mtkd.settings import DistillSettings, Stage, TrainSettings
from mtkd.store.store_manifest import StoreManifest
from mtkd.store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.teachers.cached_logits import cache_logits
from mtkd.teachers.live import CachedLogits, OnlineTeacher, TeacherSource
from mtkd.training.batches import BatchSource, TaskBatches
from mtkd.training.importance import measure_importance
from mtkd.training.run_directory import RUN_FILE, RunDirectory
from mtkd.training.trainer import Evaluate, make_accelerator
from tasks.batching import Collator, Encoded
from tasks.corpus_reader import read_corpus
from tasks.errors import UserError
from tasks.reader import Reader
from tasks.sources import digest_rows

_BYTES_AT_RANDOM = 1 << 30  # a store up to this size stays in memory, and may be read in any order


def run(
    request: Request,
    settings: DistillSettings,
    teacher: str | None,
    corpus: Path | None = None,
    store: Path | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> RunDirectory:
    """Train one student for all tasks of the request, stage by stage.

    Args:
        teacher: a run of `refine` (or any mtkd model that has a head for each task); where no term needs
            logits also a pretrained encoder; may be None only with `supervision = "labels"`.
        corpus: an augmented corpus, whose copies are added to the training rows.
        store: a knowledge store that stands in for the teacher, which is not loaded then.
        warn: called with each warning, before training starts.

    Returns:
        the finished run; its record holds the validation scores.

    Raises:
        UserError: anything wrong with data, teacher, corpus or settings, before anything is written.
    """
    tasks = trainable_tasks(request.tasks)
    names = _sources(settings, teacher, corpus, store)
    validated = validate_run(settings, teacher, tasks, store)
    for stage, _ in validated.stages:
        check_metric(stage.train.metric, tasks)
    run = request.open_run("distill", settings, tasks, **names)
    accelerator = make_accelerator(settings.train)
    data = load_training_data(request, tasks, corpus)
    inputs = _inputs(validated, data, corpus)
    run.check_inputs(**inputs)
    if run.finished:
        return run

    def importance(model: MultiTaskModel) -> Importance:
        read = data.as_read(model.reader)
        rows = {part.task.name: Encoded.encode(part.train, model.tokeniser) for part in read.parts}
        return measure_importance(model.to(accelerator.device), data.tasks, rows)

    prepared = prepare_run(validated, (text for part in data.parts for text in part.train.texts), importance)
    if corpus:
        check_mask(corpus, {"teacher": prepared.teacher, "student": prepared.student})
    data = data.as_read(prepared.student.reader)
    prepared.warnings.extend(data.lost)
    if prepared.teacher:
        prepared.teacher.to(accelerator.device)
    prepared.warnings.extend(_judge_teacher(prepared, data, accelerator, settings.train.eval_batch_size))
    for text in prepared.warnings if accelerator.is_main_process else ():
        warn(text)
    begin(
        run,
        accelerator,
        **inputs,
        rows=data.summary(),
        parameters=count_parameters(prepared.student).to_json(),
        warnings=prepared.warnings,
    )
    saved = teacher is not None and validated.teacher is not None and validated.teacher.saved is not None
    home = _home(Path(teacher), request.out) if teacher and saved else request.out
    inputs_of_stages = _TaskInputs(prepared, data, accelerator, home)
    student, training = run_stages(prepared, inputs_of_stages, accelerator, request.out)
    scores = {}
    if validated.stages[-1][1].student_need.logits:
        scores = scores_record(inputs_of_stages.evaluate(settings.train)(student))
    if accelerator.is_main_process:
        student.info.scores = scores
        student.save(request.out / "model")
        run.finish(scores=scores, training=training)
    accelerator.wait_for_everyone()
    return run


def _inputs(validated: ValidatedRun, data: TrainingData, corpus: Path | None) -> dict[str, Any]:
    """Digests of all that goes in."""
    inputs = {
        "data": data.digests,
        "teacher": validated.teacher.digest if validated.teacher else None,
        "corpus": read_corpus(corpus).key if corpus else None,
    }
    return inputs | ({"store": validated.manifest.key} if validated.manifest else {})


def _sources(
    settings: DistillSettings, teacher: str | None, corpus: Path | None, store: Path | None
) -> dict[str, str | None]:
    """What the run learns from, by the names in its record; UserError where that cannot be."""
    from_labels = settings.supervision == "labels"
    if not (teacher or store or from_labels):
        raise UserError(
            f"the recipe {settings.name} needs a teacher",
            hint="pass --teacher DIR of a run of mtkd refine, --store DIR of a knowledge store, "
            "or --set supervision=labels for labels alone",
        )
    if corpus and from_labels:
        raise UserError(
            "supervision=labels cannot use an augmented corpus: its rows have no labels",
            hint="leave --corpus out",
        )
    named = {"teacher": teacher, "corpus": str(corpus) if corpus else None}
    return {**named, "store": str(store)} if store else named


def _judge_teacher(
    prepared: PreparedRun, data: TrainingData, accelerator: Accelerator, batch_size: int
) -> list[str]:
    """A warning for each task on which the teacher does no better than the commonest answer."""
    reference = prepared.validated.teacher
    if not prepared.validated.teacher_need.logits or reference is None or reference.saved is None:
        return []
    if prepared.teacher:
        validation = encode_validation(data.validation, prepared.teacher.reader)
        scores = scores_record(evaluator(data.tasks, validation, accelerator, batch_size)(prepared.teacher))
    else:  # a store has no teacher to ask: what it scored when it was refined
        scores = {key: s for key, s in reference.saved.info.scores.items() if s["task"] in data.tasks}
    return [
        f"the teacher scores {s['primary']:.3f} on {key}, no better than always giving the "
        f"commonest answer ({s['majority']:.3f}): its knowledge of this task is worth nothing. "
        f"Refine it longer, or leave {s['task']} out."
        for key, s in scores.items()
        if s["primary"] <= s["majority"]
    ]


def _home(teacher: Path, out: Path) -> Path:
    """Computed logits go beside the teacher's weights, for its next student; else into `out`."""
    run = model_directory(teacher).parent
    ours = (run / RUN_FILE).is_file() and os.access(run, os.W_OK)
    return (run if ours else out) / f"logits-{digest_model(teacher)[:16]}"


@dataclass
class _TaskInputs(StageInputs):
    """What the stages of a course train on: labelled rows of tasks.

    Attributes:
        home: where computed logits are kept.
    """

    prepared: PreparedRun
    data: TrainingData
    accelerator: Accelerator
    home: Path

    @property
    def _stored(self) -> tuple[Path, StoreManifest] | None:
        teacher = self.prepared.validated.teacher
        return (teacher.store, teacher.manifest) if teacher and teacher.store and teacher.manifest else None

    def _places(self) -> dict[str, np.ndarray]:
        """Task -> where each training row lies in the store."""
        assert self._stored is not None
        return {p.task.name: find_stored_rows(*self._stored, p.train) for p in self.data.parts}

    def source(self, stage: Stage, objective: Objective) -> tuple[TeacherSource | None, Reader | None]:
        """The teacher as the loop sees it, and how it reads (None if it needs no batches)."""
        teacher, settings = self.prepared.teacher, self.prepared.validated.settings
        need = objective.teacher_need
        if need != OutputSpec() and settings.supervision == "teacher" and self._stored:
            return StoredTeacher(*self._stored, need, self._places()), None
        if teacher is None or need == OutputSpec():
            return None, None
        if not (settings.teacher.cache_logits and need == LOGITS):
            teacher.to(self.accelerator.device)
            return OnlineTeacher(teacher, need, settings.teacher.precision), teacher.reader
        parts = self.data.parts
        precision, length = settings.teacher.precision, teacher.info.max_length
        logits = cache_logits(
            teacher.to(self.accelerator.device),
            self.data.tasks,
            {p.task.name: Encoded.encode(p.train, teacher.tokeniser) for p in parts},
            self.home,
            {p.task.name: f"{p.task.name}-{precision}-{length}-{digest_rows(p.train)[:16]}" for p in parts},
            self.accelerator,
            precision=precision,
            batch_size=stage.train.eval_batch_size,
        )
        teacher.cpu()  # it is not run in this stage, and its place on a GPU is wanted
        return CachedLogits(logits), None

    def batches(
        self,
        student: MultiTaskModel,
        reader: Reader | None,
        source: TeacherSource | None,
        objective: Objective,
        train: TrainSettings,
    ) -> tuple[BatchSource, Evaluate | None]:
        """The training rows as student and teacher read them; scores, where the stage trains the heads."""
        apart = reader is not None and reader.tokeniser.digest != student.tokeniser.digest
        other = reader.tokeniser if apart and reader else None
        encoded = {p.task.name: Encoded.encode(p.train, student.tokeniser, other) for p in self.data.parts}
        large = isinstance(source, StoredTeacher) and source.bytes > _BYTES_AT_RANDOM
        blocks = train.shuffle == "blocks" or (train.shuffle == "auto" and large)
        ahead = source.read_ahead if blocks and isinstance(source, StoredTeacher) else None
        collate = Collator(student.reader, reader)
        batch_source = TaskBatches(self.data.tasks, encoded, collate, train, blocks=blocks, ahead=ahead)
        return batch_source, self.evaluate(train) if objective.student_need.logits else None

    def evaluate(self, train: TrainSettings) -> Evaluate:
        """Scores on the validation rows."""
        validation = encode_validation(self.data.validation, self.prepared.student.reader)
        return evaluator(self.data.tasks, validation, self.accelerator, train.eval_batch_size)
