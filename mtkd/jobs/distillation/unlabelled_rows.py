"""How a distillation uses unlabelled rows: checks, where their logits are cached, and which rows it drops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.request import refuse_unlabelled_settings
from mtkd.jobs.training_data import TaskData, TrainingData
from mtkd.knowledge_store.store_manifest import StoreManifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher
from mtkd.losses.loss_term import LossTerm
from mtkd.losses.objective import Objective
from mtkd.models.encoders.bilstm_settings import BiLSTMStudentSettings
from mtkd.outputs import LOGITS
from mtkd.settings import DistillSettings, Stage
from mtkd.teachers.logits_cache import CacheFolder
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError, counted
from tasks.data.loading import digest_rows
from tasks.data.rows import STEP, has_label
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import UNLABELLED, Task

LogitsOf = Callable[[np.ndarray], np.ndarray]  # (b,) row indices -> (b, C) logits
_ROWS_FOR_BILSTM = 2_000  # per task; with 500 it gained nothing, with 5,500 a lot (docs/results-small.md)


def usable_request(
    request: UnlabelledRequest, stages: Sequence[tuple[Stage, Objective]], tasks: Sequence[Task]
) -> UnlabelledRequest | None:
    """The request for unlabelled rows, or None if every loss needs labels.

    Raises:
        UserError: unlabelled rows are requested explicitly but no loss can use them, or they are requested
            for a task that the run does not train.
    """
    request.check(tasks)
    for _, objective in stages:
        if any(isinstance(term, LossTerm) and not term.needs_labels for term in objective.terms.values()):
            return request
    if request.files or request.limit:
        raise UserError(
            "every loss of this run needs labels, so it cannot use unlabelled rows",
            hint="leave `unlabelled` out, or learn from the teacher (`settings={'supervision': 'teacher'}`)",
        )
    return None


def cache_folders(data: TrainingData, task_data: TaskData, variant: str) -> list[CacheFolder]:
    """The folders in which the logits of a task's rows are cached; unlabelled rows have their own.

    Args:
        variant: the settings that affect the logits, as part of the folders' names.
    """
    name, count = task_data.task.name, len(task_data.train)
    if not task_data.unlabelled or task_data.train.windows is not None:
        return [CacheFolder(f"{name}-{variant}-{digest_rows(task_data.train)[:16]}", 0, count)]
    labelled_digest, unlabelled_digest = (
        data.digests[f"{name}/{split}"][:16] for split in (task_data.train.split, UNLABELLED)
    )
    labelled = count - task_data.unlabelled
    folders = [
        CacheFolder(f"{name}-{variant}-{labelled_digest}", 0, labelled),
        CacheFolder(f"{name}-{UNLABELLED}-{variant}-{unlabelled_digest}", labelled, count),
    ]
    return folders if labelled else folders[1:]


def has_confidence(task: Task) -> bool:
    """True if the teacher's logits give each row of a task one most probable class."""
    return task.type.one_class and task.type.n_outputs(task) == len(task.labels)


def check_unlabelled_settings(
    train: TrainSettings, validated: ValidatedRun, tasks: Sequence[Task], used: bool
) -> None:
    """Check that `train.unlabelled_fraction` and `train.min_confidence` can be applied.

    Args:
        used: False if the run cannot use unlabelled rows.

    Raises:
        UserError: no loss uses unlabelled rows, no task is a classification, or the teacher provides no
            logits.
    """
    if not used:
        refuse_unlabelled_settings(train, "a run whose losses all need labels")
    if train.min_confidence is None:
        return
    manifest, members = validated.manifest, validated.members
    problem = None
    if not any(map(has_confidence, tasks)):
        problem = "no task of this run is a classification"
    elif not (
        manifest.contents.offers.logits if manifest else members and all(m.teacher.saved for m in members)
    ):
        problem = "the teacher provides no logits (a teacher with task heads or a store with logits does)"
    if problem:
        raise UserError(
            f"train.min_confidence = {train.min_confidence} compares probabilities of classes, but {problem}",
            hint="leave `train.min_confidence` out",
        )


def check_soft_labelled(soft_labelled: Sequence[str], data: TrainingData) -> None:
    """Raise UserError if a task that learns from soft labels in its data has unlabelled rows."""
    for part in data.parts:
        if part.unlabelled and part.task.name in soft_labelled:
            raise UserError(
                f"the task {part.task.name!r} learns from the soft labels in its column "
                f"{part.task.soft_labels!r}, which unlabelled rows do not have",
                hint=f"put them into the training file, name a teacher for the task "
                f"(`teacher={{{part.task.name!r}: 'DIR'}}`), or leave them out with `unlabelled_limit=0`",
            )


def check_labelled_stages(stages: Sequence[tuple[Stage, Objective]], data: TrainingData) -> None:
    """Raise UserError if all losses of a stage need labels, but a task has only unlabelled rows."""
    names = [part.task.name for part in data.parts if part.unlabelled == len(part.train)]
    for stage, objective in stages if names else ():
        if all(isinstance(term, LossTerm) and term.needs_labels for term in objective.terms.values()):
            where = f"the stage {stage.name!r}" if stage.name else "this run"
            raise UserError(
                f"every loss of {where} needs labels, but all training rows of {names[0]!r} are unlabelled",
                hint="add labelled training rows, or choose a recipe that learns from the teacher alone",
            )


def check_fraction(train: TrainSettings, data: TrainingData) -> None:
    """Raise UserError if `train.unlabelled_fraction` is set, but all rows have labels."""
    if train.unlabelled_fraction is not None and all(part.train.labelled for part in data.parts):
        raise UserError(
            f"train.unlabelled_fraction = {train.unlabelled_fraction}, but all rows have labels",
            hint="add unlabelled rows with `unlabelled`, or an augmented corpus with `corpus`",
        )


def stored_logits(
    store: Path, manifest: StoreManifest, rows: Mapping[str, np.ndarray]
) -> dict[str, LogitsOf]:
    """Task -> a function that reads the logits of its training rows from a knowledge store.

    Args:
        rows: task -> (n,) int64 position of each training row in the store.
    """
    teacher = StoredTeacher(store, manifest, LOGITS, rows)

    def read(task: str, indices: np.ndarray) -> np.ndarray:
        values: np.ndarray = teacher.read(task, indices)["logits"].float().numpy()
        return values

    return {task: partial(read, task) for task in rows}


def confident_rows(
    data: TrainingData, logits: Mapping[str, LogitsOf], min_confidence: float
) -> dict[str, np.ndarray]:
    """Which training rows are kept: all labelled rows, and unlabelled rows on which the teacher is confident.

    Args:
        logits: task -> function that returns the teacher's logits.
        min_confidence: the lowest probability of the teacher's most probable class.

    Returns:
        Task -> (n,) bool, True for the rows that are kept; classification tasks only.
    """
    kept_rows = {}
    for part in data.parts:
        if not has_confidence(part.task):
            continue
        is_kept = has_label(part.train.labels)
        unlabelled = np.flatnonzero(~is_kept)
        for start in range(0, len(unlabelled), STEP):
            rows = unlabelled[start : start + STEP]
            probabilities = part.task.type.probabilities(part.task, logits[part.task.name](rows), None)
            assert probabilities is not None, "classes have probabilities"
            is_kept[rows] = probabilities.max(axis=1) >= min_confidence
        kept_rows[part.task.name] = is_kept
    return kept_rows


def few_rows_warnings(settings: DistillSettings, student: nn.Module | None, data: TrainingData) -> list[str]:
    """A warning if the settings describe a BiLSTM that has few rows to learn from its teacher.

    Args:
        student: a student passed as an object; there is no warning, since it may be trained already.
    """
    return [] if student is not None else few_rows_for_bilstm(settings, data.n_train // len(data.parts))


def few_rows_for_bilstm(settings: DistillSettings, rows: int) -> list[str]:
    """A warning if the student is a BiLSTM and has few rows per task, labelled and unlabelled together."""
    is_bilstm = isinstance(settings.student, BiLSTMStudentSettings)
    if not is_bilstm or settings.supervision == "labels" or rows >= _ROWS_FOR_BILSTM:
        return []
    return [
        f"a BiLSTM learns little from its teacher on {counted(rows, 'row')} per task: it starts from random "
        "weights. Give it thousands of rows, labelled or unlabelled (`unlabelled=...`), or use the recipe "
        "layerwise-3 or static (docs/which-student.md)."
    ]
