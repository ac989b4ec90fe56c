"""How a distillation uses rows without labels: if it can, where their logits are, and which are dropped."""

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
from mtkd.teachers.cached_logits import CacheFolder
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError, counted
from tasks.data.loading import digest_rows
from tasks.data.rows import has_label
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import UNLABELLED, Task

LogitsOf = Callable[[np.ndarray], np.ndarray]
_STEP = 65_536  # rows whose logits are in memory at once
_ROWS_FOR_BILSTM = 2_000  # per task; with 500 it gained nothing, with 5,500 a lot (docs/results-small.md)


def usable_request(
    request: UnlabelledRequest, stages: Sequence[tuple[Stage, Objective]], tasks: Sequence[Task]
) -> UnlabelledRequest | None:
    """The request, or None if every loss needs labels.

    Raises:
        UserError: the request names rows that no loss could use, or another task.
    """
    request.check(tasks)
    for _, objective in stages:
        if any(isinstance(term, LossTerm) and not term.needs_labels for term in objective.terms.values()):
            return request
    if request.files or request.limit:
        raise UserError(
            "every loss of this run needs labels, so it cannot use rows without labels",
            hint="leave `unlabelled` out, or learn from the teacher (`settings={'supervision': 'teacher'}`)",
        )
    return None


def cache_folders(data: TrainingData, task_data: TaskData, how: str) -> list[CacheFolder]:
    """Where the logits of a task's rows are cached; those of rows without labels have their own folder.

    Args:
        how: what affects the logits besides teacher and rows.
    """
    name, count = task_data.task.name, len(task_data.train)
    if not task_data.unlabelled or task_data.train.windows is not None:
        return [CacheFolder(f"{name}-{how}-{digest_rows(task_data.train)[:16]}", 0, count)]
    labelled_digest, unlabelled_digest = (
        data.digests[f"{name}/{split}"][:16] for split in (task_data.train.split, UNLABELLED)
    )
    labelled = count - task_data.unlabelled
    return [
        CacheFolder(f"{name}-{how}-{labelled_digest}", 0, labelled),
        CacheFolder(f"{name}-{UNLABELLED}-{how}-{unlabelled_digest}", labelled, count),
    ]


def has_confidence(task: Task) -> bool:
    """True if each row of a task has a most probable class."""
    return task.type.one_class and task.type.n_outputs(task) == len(task.labels)


def check_unlabelled_settings(
    train: TrainSettings, validated: ValidatedRun, tasks: Sequence[Task], used: bool
) -> None:
    """Check that `train.unlabelled_fraction` and `train.min_confidence` can be applied.

    Args:
        used: False if the run cannot use rows without labels.

    Raises:
        UserError: they cannot: no loss uses such rows, no task is a classification, or the teacher has no
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
    """Refuse rows without labels of tasks that learn from soft labels in the data; raises UserError."""
    for part in data.parts:
        if part.unlabelled and part.task.name in soft_labelled:
            raise UserError(
                f"the task {part.task.name!r} learns from the soft labels in its column "
                f"{part.task.soft_labels!r}, which rows without labels do not have",
                hint=f"put them into the training file, name a teacher for the task "
                f"(`teacher={{{part.task.name!r}: 'DIR'}}`), or leave them out with `unlabelled_limit=0`",
            )


def check_fraction(train: TrainSettings, data: TrainingData) -> None:
    """Refuse `train.unlabelled_fraction` if all rows have labels; raises UserError."""
    if train.unlabelled_fraction is not None and all(part.train.labelled for part in data.parts):
        raise UserError(
            f"train.unlabelled_fraction = {train.unlabelled_fraction}, but all rows have labels",
            hint="add rows without labels with `unlabelled`, or a corpus",
        )


def stored_logits(
    store: Path, manifest: StoreManifest, rows: Mapping[str, np.ndarray]
) -> dict[str, LogitsOf]:
    """Functions that read the logits of training rows from a knowledge store, task -> function.

    Args:
        rows: task -> (n,) position of each training row in the store.
    """
    teacher = StoredTeacher(store, manifest, LOGITS, rows)

    def read(task: str, indices: np.ndarray) -> np.ndarray:
        values: np.ndarray = teacher.read(task, indices)["logits"].float().numpy()
        return values

    return {task: partial(read, task) for task in rows}


def confident_rows(data: TrainingData, logits: Mapping[str, LogitsOf], least: float) -> dict[str, np.ndarray]:
    """Classification task -> (n,) bool, False for rows without label whose best class is too improbable.

    Args:
        logits: task -> function from (b,) row numbers to the teacher's logits, (b, C).
        least: the probability that the teacher's best class must have.
    """
    kept_rows = {}
    for part in data.parts:
        if not has_confidence(part.task):
            continue
        is_kept = has_label(part.train.labels)
        unlabelled = np.flatnonzero(~is_kept)
        for start in range(0, len(unlabelled), _STEP):
            rows = unlabelled[start : start + _STEP]
            probabilities = part.task.type.probabilities(part.task, logits[part.task.name](rows), None)
            assert probabilities is not None, "classes have probabilities"
            is_kept[rows] = probabilities.max(axis=1) >= least
        kept_rows[part.task.name] = is_kept
    return kept_rows


def few_rows_warnings(settings: DistillSettings, student: nn.Module | None, data: TrainingData) -> list[str]:
    """A warning if a BiLSTM, which starts from random weights, has few rows to learn from its teacher.

    Args:
        student: a student that is passed as an object, which may have been trained before.
    """
    return [] if student is not None else few_rows_for_bilstm(settings, data.n_train // len(data.parts))


def few_rows_for_bilstm(settings: DistillSettings, rows: int) -> list[str]:
    """A warning if a new student is a BiLSTM and has few rows per task, with and without labels."""
    is_bilstm = isinstance(settings.student, BiLSTMStudentSettings)
    if not is_bilstm or settings.supervision == "labels" or rows >= _ROWS_FOR_BILSTM:
        return []
    return [
        f"a BiLSTM learns little from its teacher on {counted(rows, 'row')} per task: it starts from random "
        "weights. Give it thousands of rows, with or without labels (`unlabelled=...`), or use the recipe "
        "layerwise-3 or static (docs/which-student.md)."
    ]
