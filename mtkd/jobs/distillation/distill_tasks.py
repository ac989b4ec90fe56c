"""The job that distils on the rows of tasks, with its batches, its teachers and their cached logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.class_weights import weigh_classes
from mtkd.jobs.distillation.prepare import LoadedTeacher, prepare_run
from mtkd.jobs.distillation.staged_job import StagedJob, StageInputs, text_steps_warnings
from mtkd.jobs.distillation.task_teachers import TaskTeachers
from mtkd.jobs.distillation.teacher_checks import below_constant, check_teacher, recorded_scores
from mtkd.jobs.distillation.unlabelled_rows import (
    check_fraction,
    check_labelled_stages,
    check_soft_labelled,
    confident_rows,
    few_rows_warnings,
    stored_logits,
)
from mtkd.jobs.training_corpus import check_masks, corpora_key
from mtkd.jobs.training_data import EncodedRows, load_training_data
from mtkd.jobs.validation_scores import evaluator
from mtkd.knowledge_store.store_manifest import StoreManifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.losses.objective import Objective
from mtkd.models.encoders.pretrained_config import digest_encoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pruning import Importance
from mtkd.outputs import OutputSpec
from mtkd.settings import Stage
from mtkd.teachers.teacher_sources import CachedLogits, TeacherSource
from mtkd.time_trial import current_trial
from mtkd.train_settings import DISTILL_LR, TrainSettings
from mtkd.training.batches import TaskBatches
from mtkd.training.importance import measure_importance
from mtkd.training.linear_probe import fit_linear_heads, probe_nearly_suffices, probed_tasks
from mtkd.training.trainer import Evaluate
from tasks.common.errors import UserError, counted
from tasks.common.progress import say
from tasks.common.sha256 import digest_file
from tasks.data.unlabelled import UnlabelledRequest
from tasks.tokens.batching import Collator
from tasks.tokens.reader import Reader

_DISTILL_PROBE_LR = 5e-5  # lr = "auto" if `probe_nearly_suffices`
_LARGE_STORE = 1 << 30  # bytes; rows of a larger store are shuffled in blocks, as it may not fit in memory


@dataclass(kw_only=True)
class TaskDistillation(StagedJob):
    """Trains a student on the rows of tasks (`distill_text` trains one on plain text).

    Attributes:
        corpora: augmented corpora whose rows are added to the training rows.
        unlabelled: which unlabelled rows are added to the training rows; None if no loss can use them.
        student: a student that the caller passed as an object; None if the settings describe the student.
        task_teachers: gives the outputs of the teachers, set by `prepare`; not used if they are read from a
            knowledge store.
        store_rows: task -> position of each training row in the knowledge store.
    """

    corpora: Sequence[Path]
    unlabelled: UnlabelledRequest | None
    student: nn.Module | None
    task_teachers: TaskTeachers = field(init=False)
    store_rows: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        data = load_training_data(self.request, self.tasks, self.corpora, self.unlabelled)
        if self.settings.supervision == "labels":
            data.require_labels("a student with supervision=labels")
        check_labelled_stages(self.validated.stages, data)
        self.rows = EncodedRows(data)
        if self.unlabelled is None and any(map(self.request.source().unlabelled, self.tasks)):
            self.warnings.append("unlabelled rows are not used, since every loss of this run needs labels")
        teacher, manifest = self.validated.teacher, self.validated.manifest
        digests: dict[str, Any] = {
            "data": self.rows.data.digests,
            "teacher": teacher.digest if teacher else None,
            "corpus": corpora_key(self.corpora),
        }
        file = self.settings.student.embedding_file
        if file and self.student is None:
            digests["embedding_file"] = digest_file(file)
        if self.student is None and (encoder := self.validated.other_encoder):
            digests["student_encoder"] = digest_encoder(encoder)
        return digests | ({"store": manifest.key} if manifest else {})

    def prepare(self) -> MultiTaskModel:
        texts = [text for part in self.rows.data.parts for text in part.train.texts]
        teacher_warnings: list[str] = []
        self.prepared = prepare_run(
            self.validated,
            texts,
            self._importance,
            student=self.student,
            check=lambda teachers: teacher_warnings.extend(self._teacher_warnings(teachers)),
        )
        student = self.prepared.student
        for teacher in self.prepared.teachers:
            check_masks(self.corpora, "teacher", teacher.model)
        check_masks(self.corpora, "student", student)
        check_soft_labelled(self.validated.soft_labelled, self.rows.data)
        self.rows = self.rows.for_reader(student.reader)
        self.warnings += [*self.rows.data.warnings, *self.rows.data.window_warnings]
        self.warnings += self.rows.cut_warnings(student.reader, "student.max_length")
        self.warnings += few_rows_warnings(self.settings, self.student, self.rows.data)
        if self._store:
            parts = self.rows.data.parts
            self.store_rows = {part.task.name: find_stored_rows(*self._store, part.train) for part in parts}
        self.task_teachers = TaskTeachers(
            self.request, self.accelerator, self.validated, self.prepared, self.rows
        )
        n_train = self.rows.data.n_train
        for stage, objective in self.validated.stages:
            weigh_classes(objective, stage.train, self.rows.data)
            check_fraction(stage.train, self.rows.data)
            stage = stage.with_epochs(n_train)
            if stage.train.lr == "auto":
                stage = replace(stage, train=stage.train.model_copy(update={"lr": self._suitable_lr()}))
            stage_inputs = self._stage_inputs(stage, objective)
            if not objective.student_need.logits:
                self.warnings += text_steps_warnings(stage.train, n_train, stage_inputs.batches)
            self.stages.append((stage, objective, stage_inputs))
        if self.request.workers.in_other_processes:
            self._check_workers()
        self.warnings += teacher_warnings
        return student

    def scores(self, student: MultiTaskModel, training: Mapping[str, Any]) -> list[TaskScores]:
        """Validation scores; empty if the last stage did not train the heads."""
        if self.stages[-1][2].evaluate is None:
            return []
        return self._evaluator(self.settings.train, student, final=True)(student)

    def fit_heads(self, student: MultiTaskModel, train: TrainSettings, teacher: TeacherSource | None) -> None:
        fitted: list[str] = []
        tasks = self.rows.data.tasks
        if probed := self._probed_tasks(student):
            rows = self.rows.train(student.reader, only=probed)
            logits = teacher.logits if isinstance(teacher, CachedLogits) else None
            bf16 = train.precision == "bf16"
            fitted = fit_linear_heads(
                student, tasks, rows, train.eval_batch_size, train.seed, bf16=bf16, logits=logits
            )
        not_copied = [name for name, task in tasks.items() if task.head in self.prepared.not_copied]
        source = "the first teacher" if len(self.validated.members) > 1 else "the teacher"
        for name in not_copied:
            start = "a linear probe" if name in fitted else "random weights"
            say(f"{source} has no suitable head for {name}: the student's head starts from {start}")

    def _probed_tasks(self, student: MultiTaskModel) -> list[str]:
        """The tasks whose heads start from a linear probe."""
        settings, tasks = self.settings, self.rows.data.tasks
        probed = probed_tasks(settings.student.init_heads, tasks.values(), student.encoder)
        if settings.supervision == "teacher" and settings.student.init_heads == "auto":
            return [name for name in probed if tasks[name].head in self.prepared.not_copied]
        return probed

    def _suitable_lr(self) -> float:
        """The learning rate that "auto" means here."""
        data, student = self.rows.data, self.prepared.student
        probed, hidden_size = self._probed_tasks(student), student.info.head_hidden_size
        is_low = probe_nearly_suffices(data.tasks, probed, hidden_size, data.n_train)
        return _DISTILL_PROBE_LR if is_low else DISTILL_LR

    def _importance(self, model: MultiTaskModel) -> Importance:
        """The importance of a teacher's parts on the training rows, of which pruning keeps the highest."""
        model.to(self.accelerator.device)
        data, rows = self.rows.data, self.rows.train(model.reader)
        return measure_importance(model, data.tasks, rows, self.settings.train.seed)

    @property
    def _store(self) -> tuple[Path, StoreManifest] | None:
        """The store and its manifest; None if the run uses no store."""
        teacher = self.validated.teacher
        if teacher and teacher.store and teacher.manifest and self.settings.supervision == "teacher":
            return teacher.store, teacher.manifest
        return None

    def _evaluator(self, train: TrainSettings, model: MultiTaskModel, *, final: bool = False) -> Evaluate:
        """A function that scores the model on the validation rows."""
        validation = self.rows.validation(model.reader)
        return evaluator(self.rows.data.tasks, validation, self.accelerator, train, final=final)

    def _teacher_warnings(self, teachers: Sequence[LoadedTeacher]) -> list[str]:
        """Warnings about the teachers, such as that one does not beat the best constant prediction."""
        teacher_ref, tasks = self.validated.teacher, self.rows.data.tasks
        if not self.validated.teacher_need.logits or teacher_ref is None or teacher_ref.saved is None:
            return []
        warnings: list[str] = []
        if not teachers:  # a store has none: use the scores from `mtkd refine`
            scores = {key: s for key, s in teacher_ref.saved.info.scores.items() if s["task"] in tasks}
            return below_constant("the teacher", scores)
        for teacher in teachers:
            if (recorded := recorded_scores(teacher, self.rows)) is not None:
                warnings += below_constant("the teacher", recorded)
                continue
            warnings += check_teacher(teacher, tasks, self.rows, self.accelerator, self.settings.train)
            teacher.model.cpu()  # the student is built on the CPU
        return warnings

    def _stage_inputs(self, stage: Stage, objective: Objective) -> StageInputs:
        """The batches and the teacher of a stage, and its evaluation if the stage trains the heads."""
        need, teachers = objective.teacher_need, self.prepared.teachers
        stored: StoredTeacher | None = None
        uses_cached_logits = runs_teacher = False
        if need != OutputSpec() and self._store:
            stored = StoredTeacher(*self._store, need, self.store_rows)
        elif need != OutputSpec() and (teachers or self.validated.soft_labelled):
            uses_cached_logits = self.task_teachers.uses_cached_logits(need)
            runs_teacher = not uses_cached_logits
        source = self.task_teachers.online(need) if runs_teacher else stored
        teacher_reader = self.task_teachers.reader() if runs_teacher else None
        batches = self._batches(stage.train, stored, teacher_reader)

        def open_teacher() -> TeacherSource:
            teacher = self.task_teachers.cached_logits(stage.train) if uses_cached_logits else source
            assert teacher is not None
            if (min_confidence := stage.train.min_confidence) is not None and not current_trial():
                self._drop_unconfident_rows(stage, batches, min_confidence, teacher)
            for loaded in teachers if runs_teacher else ():
                loaded.model.to(self.accelerator.device)
            return teacher

        trains_heads = objective.student_need.logits
        evaluate = self._evaluator(stage.train, self.prepared.student) if trains_heads else None
        return StageInputs(batches, evaluate, open_teacher if uses_cached_logits or source else None)

    def _batches(
        self, train: TrainSettings, stored: StoredTeacher | None, teacher_reader: Reader | None
    ) -> TaskBatches:
        """The batches of a stage.

        Args:
            stored: the knowledge store whose rows go with the batches; None if the stage reads no store.
            teacher_reader: reads the batches for the teacher; None if the stage runs no teacher.
        """
        student_reader = self.prepared.student.reader
        large_store = stored is not None and stored.bytes > _LARGE_STORE
        blocks = train.shuffle == "blocks" or (train.shuffle == "auto" and large_store)
        read_ahead = stored.read_ahead if blocks and stored is not None else None
        encoded = self.rows.train(student_reader, teacher_reader.tokeniser if teacher_reader else None)
        collator = Collator(student_reader, teacher_reader)
        return TaskBatches(
            self.rows.data.tasks, encoded, collator, train, blocks=blocks, read_ahead=read_ahead
        )

    def _check_workers(self) -> None:
        """Raise UserError if other processes would have no logits to compute, or could not load a teacher."""
        teachers, stages = self.prepared.teachers, self.stages
        computes_logits = any(
            self.task_teachers.uses_cached_logits(objective.teacher_need)
            or stage.train.min_confidence is not None
            for stage, objective, _ in stages
        )
        if not (teachers and computes_logits):
            raise UserError(
                "`workers` and `engine` apply to the teacher's logits that are computed before training, but "
                "this run computes none",
                hint="leave them out",
            )
        for teacher in teachers:
            teacher.ref.for_workers()

    def _drop_unconfident_rows(
        self, stage: Stage, batches: TaskBatches, min_confidence: float, teacher: TeacherSource
    ) -> None:
        """Drop the unlabelled rows on which the teacher is not confident, and record how many they are."""
        logits = stored_logits(*self._store, self.store_rows) if self._store else None
        if logits is None:
            cached = (
                teacher
                if isinstance(teacher, CachedLogits)
                else self.task_teachers.cached_logits(stage.train)
            )
            logits = {name: values.__getitem__ for name, values in cached.logits.items()}
        kept_rows = confident_rows(self.rows.data, logits, min_confidence)
        batches.keep({name: np.flatnonzero(mask) for name, mask in kept_rows.items()})
        self.record_values["dropped"] = {name: int((~mask).sum()) for name, mask in kept_rows.items()}
        for name, count in self.record_values["dropped"].items():
            say(
                f"{name}: dropped {counted(count, 'unlabelled row')}, on which the teacher's confidence is "
                f"below {min_confidence:.0%}"
            )
