"""The training job of a distillation on the rows of tasks: its batches, teachers and cached logits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.class_weights import weigh_classes
from mtkd.jobs.common import evaluator
from mtkd.jobs.prepare import prepare_run
from mtkd.jobs.stages import StagedJob, StageInputs
from mtkd.jobs.teacher_checks import below_constant, check_teacher
from mtkd.jobs.training_corpus import check_mask
from mtkd.jobs.training_data import EncodedRows, load_training_data
from mtkd.jobs.unlabelled_rows import (
    cache_folders,
    check_fraction,
    check_soft_labelled,
    confident_rows,
    stored_logits,
)
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance
from mtkd.models.saved_model import is_saved_model, model_directory
from mtkd.outputs import LOGITS, OutputSpec
from mtkd.settings import Stage, TrainSettings
from mtkd.store.store_manifest import StoreManifest
from mtkd.store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.teachers.cached_logits import cache_logits
from mtkd.teachers.group import AveragedLogits, TeacherByTask
from mtkd.teachers.live import CachedLogits, IndexedLogits, OnlineTeacher, TeacherSource
from mtkd.teachers.reference import TeacherRef
from mtkd.training.batches import TaskBatches
from mtkd.training.importance import measure_importance
from mtkd.training.run_directory import RUN_FILE
from mtkd.training.trainer import Evaluate
from tasks.batching import Collator
from tasks.corpus_reader import read_corpus
from tasks.files import digest_file
from tasks.progress import say
from tasks.reader import Reader
from tasks.soft_labels import require_soft_labels
from tasks.unlabelled import UnlabelledRequest

_BYTES_AT_RANDOM = 1 << 30  # a store up to this size fits in memory and can be read in any order
_MANY_EPOCHS = 100


@dataclass(kw_only=True)
class TaskDistillation(StagedJob):
    """Distillation on the rows of tasks.

    Attributes:
        unlabelled: the rows without labels that are added; None if no loss can use them.
        student: a student passed as an object.
        store_rows: task -> position of each training row in the knowledge store.
    """

    corpus: Path | None
    unlabelled: UnlabelledRequest | None
    student: nn.Module | None
    store_rows: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        self.rows = EncodedRows(load_training_data(self.request, self.tasks, self.corpus, self.unlabelled))
        source = self.request.source()
        if self.unlabelled is None and any(source.unlabelled(task) for task in self.tasks):
            self.warnings.append(
                "rows without labels are not used, since every loss of this run needs labels"
            )
        teacher, manifest = self.validated.teacher, self.validated.manifest
        digests = {
            "data": self.rows.data.digests,
            "teacher": teacher.digest if teacher else None,
            "corpus": read_corpus(self.corpus).key if self.corpus else None,
        }
        file = self.settings.student.embedding_file
        vectors = {"embedding_file": digest_file(file)} if file and self.student is None else {}
        return digests | vectors | ({"store": manifest.key} if manifest else {})

    def prepare(self) -> MultiTaskModel:
        assert self.rows is not None, "inputs come first"
        texts = [text for part in self.rows.data.parts for text in part.train.texts]
        self.prepared = prepare_run(self.validated, texts, self._importance, student=self.student)
        student = self.prepared.student
        if self.corpus:
            for teacher in self.prepared.teachers:
                check_mask(self.corpus, {"teacher": teacher.model})
            check_mask(self.corpus, {"student": student})
        check_soft_labelled(self.validated.soft_labelled, self.rows.data)
        self.rows = self.rows.for_reader(student.reader)
        self.warnings += [*self.rows.data.warnings, *self.rows.data.window_warnings]
        if self._stored:
            parts = self.rows.data.parts
            self.store_rows = {part.task.name: find_stored_rows(*self._stored, part.train) for part in parts}
        rows = self.rows.data.n_train
        for stage, objective in self.validated.stages:
            weigh_classes(objective, stage.train, self.rows.data)
            check_fraction(stage.train, self.rows.data)
            stage = replace(stage, train=stage.train.with_epochs(rows))
            if not objective.student_need.logits:
                self.warnings += _meant_for_text(stage.train, rows)
            self.stages.append((stage, objective, self._stage_inputs(stage, objective)))
        self.warnings += self._teacher_warnings()
        return student

    def scores(self, student: MultiTaskModel) -> list[TaskScores]:
        """Validation scores; empty if the last stage did not train the heads."""
        last = self.stages[-1][2]
        if last.evaluate is None:
            return []
        return self._evaluator(self.settings.train, student)(student)

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
        """A warning for each task on which a teacher does not beat the best constant answer."""
        assert self.rows is not None, "inputs come first"
        reference, tasks = self.validated.teacher, self.rows.data.tasks
        if not self.validated.teacher_need.logits or reference is None or reference.saved is None:
            return []
        found: list[str] = []
        if not self.prepared.teachers:  # a store has no teacher to evaluate: use the scores from refining
            scores = {key: s for key, s in reference.saved.info.scores.items() if s["task"] in tasks}
            return below_constant("the teacher", scores)
        for teacher in self.prepared.teachers:
            found += check_teacher(teacher, tasks, self.rows, self.accelerator, self.settings.train)
        return found

    def _stage_inputs(self, stage: Stage, objective: Objective) -> StageInputs:
        """The batches and the teacher of a stage, and its evaluation if the stage trains the heads."""
        assert self.rows is not None, "inputs come first"
        teachers, need = self.prepared.teachers, objective.teacher_need
        source: TeacherSource | None = None
        reader: Reader | None = None
        cached = False
        if need != OutputSpec() and self._stored:
            source = StoredTeacher(*self._stored, need, self.store_rows)
        elif need != OutputSpec() and (teachers or self.validated.soft_labelled):
            cached = need == LOGITS and (self.settings.teacher.cache_logits or self._several)
            source = None if cached else self._online(need)
            reader = None if cached else teachers[0].model.reader

        def open_teacher() -> TeacherSource:
            found = self._cached_logits(stage) if cached else source
            assert found is not None
            if (least := stage.train.min_confidence) is not None:
                self._drop_unsure(stage, batches, least, found)
            for teacher in teachers if not cached else ():
                teacher.model.to(self.accelerator.device)
            return found

        reads, train, tasks = self.prepared.student.reader, stage.train, self.rows.data.tasks
        large = isinstance(source, StoredTeacher) and source.bytes > _BYTES_AT_RANDOM
        blocks = train.shuffle == "blocks" or (train.shuffle == "auto" and large)
        ahead = source.read_ahead if blocks and isinstance(source, StoredTeacher) else None
        encoded = self.rows.train(reads, reader.tokeniser if reader else None)
        batches = TaskBatches(tasks, encoded, Collator(reads, reader), train, blocks=blocks, ahead=ahead)
        scored = objective.student_need.logits
        evaluate = self._evaluator(train, self.prepared.student) if scored else None
        return StageInputs(batches, evaluate, open_teacher if cached or source else None)

    @property
    def _several(self) -> bool:
        """True if not all logits come from one teacher."""
        return len(self.prepared.teachers) + len(self.validated.soft_labelled) > 1

    def _drop_unsure(self, stage: Stage, batches: TaskBatches, least: float, source: TeacherSource) -> None:
        """Leave out the rows without labels of which the teacher is not sure, and record how many."""
        assert self.rows is not None, "inputs come first"
        logits = stored_logits(*self._stored, self.store_rows) if self._stored else None
        if logits is None:
            cached = source if isinstance(source, CachedLogits) else self._cached_logits(stage)
            logits = {name: values.__getitem__ for name, values in cached.logits.items()}
        kept = confident_rows(self.rows.data, logits, least)
        batches.keep({name: np.flatnonzero(rows) for name, rows in kept.items()})
        self.facts["dropped"] = {name: int((~rows).sum()) for name, rows in kept.items()}
        for name, count in self.facts["dropped"].items() if self.accelerator.is_main_process else ():
            say(
                f"{name}: {count:,} rows without labels dropped, as the teacher is less than {least:.0%} sure"
            )

    def _online(self, need: OutputSpec) -> TeacherSource:
        """Teachers that are run on every batch; they read the same tokens."""
        precision = self.settings.teacher.precision
        sources = {
            name: OnlineTeacher(teacher.model, need, precision)
            for teacher in self.prepared.teachers
            for name in teacher.tasks
        }
        return TeacherByTask(sources)

    def _cached_logits(self, stage: Stage) -> CachedLogits:
        """The logits of all teachers, computed once and cached for later students, averaged by task."""
        assert self.rows is not None, "inputs come first"
        settings, data = self.settings.teacher, self.rows.data
        found: dict[str, list[IndexedLogits]] = {name: [] for name in data.tasks}
        for part in data.parts:
            if part.task.name in self.validated.soft_labelled:
                found[part.task.name].append(require_soft_labels(part.task, part.train))
        for teacher in self.prepared.teachers:
            model = teacher.model.to(self.accelerator.device)
            logits = cache_logits(
                model,
                {name: data.tasks[name] for name in teacher.tasks},
                self.rows.train(
                    replace(self.prepared.student.reader, tokeniser=model.tokeniser), only=teacher.tasks
                ),
                self._logits_directory(teacher.ref),
                {
                    part.task.name: cache_folders(data, part, f"{settings.precision}-{model.info.max_length}")
                    for part in data.parts
                    if part.task.name in teacher.tasks
                },
                self.accelerator,
                precision=settings.precision,
                batch_size=stage.train.eval_batch_size,
            )
            model.cpu()  # it is not run in this stage; free the GPU memory
            for name, values in logits.items():
                found[name].append(values)
        return CachedLogits(
            {name: AveragedLogits(data.tasks[name], parts, settings.average) for name, parts in found.items()}
        )

    def _logits_directory(self, reference: TeacherRef) -> Path:
        """The directory of cached logits: beside the weights if the teacher is a run, else in this run."""
        if reference.saved is None:
            return self.request.out
        run = self.request.out
        if is_saved_model(Path(reference.name)):
            beside = model_directory(Path(reference.name)).parent
            run = beside if (beside / RUN_FILE).is_file() and os.access(beside, os.W_OK) else run
        return run / f"logits-{(reference.digest or '')[:16]}"


def _meant_for_text(train: TrainSettings, rows: int) -> list[str]:
    """A warning if a stage without task heads has the number of steps of a recipe for plain text."""
    epochs = (train.steps or 0) * train.batch_size / rows
    if epochs <= _MANY_EPOCHS:
        return []
    return [
        f"{train.steps:,} steps of {train.batch_size} rows are about {epochs:,.0f} epochs over the {rows:,} "
        "training rows: so many are meant for plain text (`text=FILE`). Set `steps=N` or `epochs=N`."
    ]
