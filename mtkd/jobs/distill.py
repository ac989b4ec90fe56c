"""Distil: train a student on tasks with a teacher, or, for comparison, on labels alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from mtkd.jobs.common import Request, check_metric, evaluator, scores_record
from mtkd.jobs.objects import describe_losses, describe_module, require_objects
from mtkd.jobs.prepare import prepare_run, settings_of_student, validate_run
from mtkd.jobs.stages import StagedJob, StageInputs
from mtkd.jobs.training_data import EncodedRows, check_mask, load_training_data, trainable_tasks
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.losses.loss_term import LossTerm
from mtkd.losses.objective import Objective, named_losses
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance
from mtkd.models.saved_model import model_directory
from mtkd.outputs import LOGITS, OutputSpec
from mtkd.precision import resolve_precision
from mtkd.settings import DistillSettings, Stage, TrainSettings
from mtkd.store.store_manifest import StoreManifest
from mtkd.store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.teachers.cached_logits import cache_logits
from mtkd.teachers.live import CachedLogits, OnlineTeacher, TeacherSource
from mtkd.training.batches import TaskBatches
from mtkd.training.callbacks import Callback
from mtkd.training.importance import measure_importance
from mtkd.training.run_directory import RUN_FILE, RunDirectory
from mtkd.training.trainer import Evaluate
from tasks.batching import Collator
from tasks.corpus_reader import read_corpus
from tasks.errors import UserError
from tasks.reader import Reader
from tasks.sources import digest_rows

_BYTES_AT_RANDOM = 1 << 30  # a store up to this size fits in memory and can be read in any order


def distill(
    request: Request,
    settings: DistillSettings,
    teacher: str | MultiTaskModel | None,
    corpus: Path | None = None,
    store: Path | None = None,
    *,
    student: nn.Module | None = None,
    losses: Mapping[str, LossTerm] | Sequence[LossTerm] | None = None,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Train one student for all tasks of the request, stage by stage.

    Args:
        teacher: a run of `refine` (or any mtkd model with a head for each task), or a model object. If no
            term needs logits, it can also be a pretrained encoder; None only if no term needs a teacher.
        corpus: an augmented corpus whose copies are added to the training rows.
        store: a knowledge store to use instead of running the teacher.
        student: a student to train, instead of one built from the settings: a MultiTaskModel (missing heads
            are added, heads of other tasks removed) or an encoder that reads the teacher's tokens.
        losses: loss terms instead of those of the settings, each with weight 1, in a single stage; the terms
            of a list are named after their classes.
        callbacks: called during training.
        warn: called with each warning, before training starts.

    Returns:
        The finished run.

    Raises:
        UserError: invalid data, teacher, corpus or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    settings = resolve_precision(settings, request.device, warn)
    tasks = trainable_tasks(request.tasks)
    if losses is not None:
        require_objects("losses", losses, LossTerm)
    terms = None if losses is None else losses if isinstance(losses, Mapping) else named_losses(losses)
    if isinstance(student, MultiTaskModel):
        settings = settings_of_student(settings, student)
    labels_only = settings.supervision == "labels"
    if terms is not None:
        labels_only = labels_only or all(term.teacher_need == OutputSpec() for term in terms.values())
    sources: dict[str, Any] = _source_names(settings, teacher, corpus, store, labels_only)
    if student is not None:
        sources["student"] = describe_module(student)
    if terms is not None:
        sources["losses"] = describe_losses(terms)
    validated = validate_run(settings, teacher, tasks, store, student=student, losses=terms)
    for stage, _ in validated.stages:
        check_metric(stage.train.metric, tasks)
    return _Distill(
        request=request,
        settings=settings,
        tasks=tasks,
        sources=sources,
        callbacks=callbacks,
        warn=warn,
        validated=validated,
        corpus=corpus,
        home=Path(teacher) if isinstance(teacher, str) else None,
        student=student,
    ).run()


def _source_names(
    settings: DistillSettings,
    teacher: str | MultiTaskModel | None,
    corpus: Path | None,
    store: Path | None,
    labels_only: bool,
) -> dict[str, Any]:
    """The sources of knowledge as named in the run's record; raises UserError for invalid combinations."""
    if not (teacher or store or labels_only):
        raise UserError(
            f"the recipe {settings.name} needs a teacher",
            hint="pass a run of mtkd refine as `teacher=DIR`, a knowledge store as `store=DIR`, "
            "or train on labels alone with `supervision=labels`",
        )
    if corpus and settings.supervision == "labels":
        raise UserError(
            "supervision=labels cannot use an augmented corpus: its rows have no labels",
            hint="leave `corpus` out",
        )
    name = type(teacher).__name__ if isinstance(teacher, MultiTaskModel) else teacher
    named = {"teacher": name, "corpus": str(corpus) if corpus else None}
    return {**named, "store": str(store)} if store else named


@dataclass(kw_only=True)
class _Distill(StagedJob):
    """Distillation on the rows of tasks.

    Attributes:
        home: the teacher's directory, where its logits are cached; None = in the run directory.
        student: a student passed as an object.
        store_rows: task -> position of each training row in the knowledge store.
    """

    corpus: Path | None
    home: Path | None
    student: nn.Module | None
    store_rows: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        self.rows = EncodedRows(load_training_data(self.request, self.tasks, self.corpus))
        teacher, manifest = self.validated.teacher, self.validated.manifest
        digests = {
            "data": self.rows.data.digests,
            "teacher": teacher.digest if teacher else None,
            "corpus": read_corpus(self.corpus).key if self.corpus else None,
        }
        return digests | ({"store": manifest.key} if manifest else {})

    def prepare(self) -> MultiTaskModel:
        assert self.rows is not None, "inputs come first"
        texts = [text for part in self.rows.data.parts for text in part.train.texts]
        self.prepared = prepare_run(self.validated, texts, self._importance, student=self.student)
        teacher, student = self.prepared.teacher, self.prepared.student
        if self.corpus:
            check_mask(self.corpus, {"teacher": teacher, "student": student})
        self.rows = self.rows.for_reader(student.reader)
        self.warnings += self.rows.data.window_warnings
        if self._stored:
            parts = self.rows.data.parts
            self.store_rows = {part.task.name: find_stored_rows(*self._stored, part.train) for part in parts}
        rows = self.rows.data.n_train
        for stage, objective in self.validated.stages:
            stage = replace(stage, train=stage.train.with_epochs(rows))
            self.stages.append((stage, objective, self._stage_inputs(stage, objective)))
        if teacher:
            teacher.to(self.accelerator.device)
        self.warnings += self._teacher_warnings()
        return student

    def scores(self, student: MultiTaskModel) -> dict[str, Any]:
        """Validation scores; empty if the last stage did not train the heads."""
        last = self.stages[-1][2]
        if last.evaluate is None:
            return {}
        return scores_record(self._evaluator(self.settings.train, student)(student))

    def _importance(self, model: MultiTaskModel) -> Importance:
        assert self.rows is not None, "inputs come first"
        model.to(self.accelerator.device)
        return measure_importance(model, self.rows.data.tasks, self.rows.train(model.reader))

    @property
    def _stored(self) -> tuple[Path, StoreManifest] | None:
        """The store and its manifest; None if the run uses no store."""
        teacher = self.validated.teacher
        if teacher and teacher.store and teacher.manifest and self.settings.supervision == "teacher":
            return teacher.store, teacher.manifest
        return None

    def _evaluator(self, train: TrainSettings, model: MultiTaskModel) -> Evaluate:
        assert self.rows is not None, "inputs come first"
        validation = self.rows.validation(model.reader)
        return evaluator(self.rows.data.tasks, validation, self.accelerator, train)

    def _teacher_warnings(self) -> list[str]:
        """A warning for each task on which the teacher does not beat the majority-class baseline."""
        assert self.rows is not None, "inputs come first"
        reference, teacher = self.validated.teacher, self.prepared.teacher
        if not self.validated.teacher_need.logits or reference is None or reference.saved is None:
            return []
        if teacher:
            scores = scores_record(self._evaluator(self.settings.train, teacher)(teacher))
        else:  # a store has no teacher to evaluate: use the scores from refining
            tasks = self.rows.data.tasks
            scores = {key: s for key, s in reference.saved.info.scores.items() if s["task"] in tasks}
        return [
            f"the teacher scores {s['primary']:.3f} on {key}, not better than the majority-class baseline "
            f"({s['majority']:.3f}), so it cannot teach this task. "
            f"Refine it longer, or leave {s['task']} out."
            for key, s in scores.items()
            if s["primary"] <= s["majority"]
        ]

    def _stage_inputs(self, stage: Stage, objective: Objective) -> StageInputs:
        """The batches and the teacher of a stage, and its evaluation if the stage trains the heads."""
        assert self.rows is not None, "inputs come first"
        teacher, need = self.prepared.teacher, objective.teacher_need
        source: TeacherSource | None = None
        reader: Reader | None = None
        cached = False
        if need != OutputSpec() and self._stored:
            source = StoredTeacher(*self._stored, need, self.store_rows)
        elif need != OutputSpec() and teacher:
            cached = self.settings.teacher.cache_logits and need == LOGITS
            source = None if cached else OnlineTeacher(teacher, need, self.settings.teacher.precision)
            reader = None if cached else teacher.reader

        def open_teacher() -> TeacherSource:
            if cached:
                return self._cached_logits(stage)
            assert source is not None
            if teacher:
                teacher.to(self.accelerator.device)
            return source

        reads, train, tasks = self.prepared.student.reader, stage.train, self.rows.data.tasks
        large = isinstance(source, StoredTeacher) and source.bytes > _BYTES_AT_RANDOM
        blocks = train.shuffle == "blocks" or (train.shuffle == "auto" and large)
        ahead = source.read_ahead if blocks and isinstance(source, StoredTeacher) else None
        encoded = self.rows.train(reads, reader.tokeniser if reader else None)
        batches = TaskBatches(tasks, encoded, Collator(reads, reader), train, blocks=blocks, ahead=ahead)
        scored = objective.student_need.logits
        evaluate = self._evaluator(train, self.prepared.student) if scored else None
        return StageInputs(batches, evaluate, open_teacher if cached or source else None)

    def _cached_logits(self, stage: Stage) -> CachedLogits:
        """The teacher's logits, computed once and cached for later students."""
        assert self.rows is not None, "inputs come first"
        teacher = self.prepared.teacher
        assert teacher is not None, "logits are cached only if there is a teacher"
        precision, length = self.settings.teacher.precision, teacher.info.max_length
        logits = cache_logits(
            teacher.to(self.accelerator.device),
            self.rows.data.tasks,
            self.rows.train(replace(self.prepared.student.reader, tokeniser=teacher.tokeniser)),
            self._logits_directory(),
            {
                part.task.name: f"{part.task.name}-{precision}-{length}-{digest_rows(part.train)[:16]}"
                for part in self.rows.data.parts
            },
            self.accelerator,
            precision=precision,
            batch_size=stage.train.eval_batch_size,
        )
        teacher.cpu()  # it is not run in this stage; free the GPU memory
        return CachedLogits(logits)

    def _logits_directory(self) -> Path:
        """The directory of cached logits: beside the weights if the teacher is a run, else in this run."""
        reference = self.validated.teacher
        if reference is None or reference.saved is None:
            return self.request.out
        run = self.request.out
        if self.home is not None:
            beside = model_directory(self.home).parent
            run = beside if (beside / RUN_FILE).is_file() and os.access(beside, os.W_OK) else run
        return run / f"logits-{(reference.digest or '')[:16]}"
