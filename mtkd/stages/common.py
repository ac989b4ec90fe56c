"""What the stages share: the request, the data, and one training run from begin to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from mtkd.engine.evaluate import TaskScores, score_logits
from mtkd.engine.rundir import RunDir
from mtkd.logits import predict_logits
from mtkd.model import MultiTaskModel
from tasks.batching import Encoded, Reader
from tasks.corpus import corpus_rows, corpus_tasks
from tasks.errors import UserError
from tasks.registry import resolve
from tasks.rows import Rows, concat
from tasks.sources import DataSource, digest_rows, load_rows, open_data
from tasks.task import Task


@dataclass(frozen=True)
class Request:
    """What every training stage is asked for on the command line.

    Attributes:
        limit, eval_limit: rows a task of the training and validation splits; None = all.
        resume, overwrite: what to do with a run that is in `out` already.
    """

    data: str
    tasks: str
    out: Path
    limit: int | None = None
    eval_limit: int | None = None
    resume: bool = False
    overwrite: bool = False

    def identity(self, stage: str, settings: Any, **more: Any) -> dict[str, Any]:
        """All that decides the result of the run."""
        return {
            "stage": stage,
            "data": self.data,
            "tasks": self.tasks,
            "limit": self.limit,
            "eval_limit": self.eval_limit,
            **more,
            "settings": settings.model_dump(),
        }


@dataclass(frozen=True)
class TaskData:
    """Training rows of one task, and its validation rows by split."""

    task: Task
    train: Rows
    validation: Mapping[str, Rows]


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run.

    Attributes:
        parts: one for each task.
        digests: "task/split" -> SHA-256 of the rows.
    """

    parts: list[TaskData]
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> dict[str, Task]:
        """By name, in the order of the request."""
        return {part.task.name: part.task for part in self.parts}

    def summary(self) -> dict[str, dict[str, int]]:
        """Rows of each task: for training, of these unlabelled, for validation."""
        return {
            part.task.name: {
                "train": len(part.train),
                "unlabelled": int(np.isnan(part.train.labels).sum()),
                "validation": sum(len(rows) for rows in part.validation.values()),
            }
            for part in self.parts
        }


def trainable_tasks(spec: str) -> list[Task]:
    """The tasks that `spec` names, all of which can be trained.

    Raises:
        UserError: an unknown task, or one without a training split (ax).
    """
    tasks = resolve(spec)
    for task in tasks:
        if task.train is None:
            raise UserError(
                f"the task {task.name!r} has no training split: it measures models that know {task.head!r}",
                mend=f"train with --tasks {task.head}, then: mtkd evaluate --tasks {task.name}",
            )
    return tasks


def load_training_data(request: Request, tasks: list[Task], corpus: Path | None = None) -> TrainingData:
    """Read and check all rows of a run.

    Args:
        corpus: an augmented corpus whose copies are added to the training rows. With a limit, only
            copies of the rows that are trained on are taken.

    Raises:
        UserError: anything wrong with the data; a task that is left without validation rows.
    """
    source = open_data(request.data)
    augmented = set(corpus_tasks(corpus)) if corpus else set()
    if corpus and not augmented & {task.name for task in tasks}:
        raise UserError(
            f"the corpus {corpus} has none of the tasks {request.tasks}", allowed=", ".join(augmented)
        )
    parts, digests = [], {}
    for task in tasks:
        assert task.train is not None, "trainable_tasks refuses others"
        train = load_rows(source, task, task.train, request.limit)
        if corpus and task.name in augmented:
            train = _with_copies(train, corpus_rows(corpus, task.name), only_of=request.limit is not None)
        validation = _validation(source, task, request.eval_limit)
        for rows in (train, *validation.values()):
            digests[f"{task.name}/{rows.split}"] = digest_rows(rows)
        parts.append(TaskData(task, train, validation))
    return TrainingData(parts, digests)


def _validation(source: DataSource, task: Task, limit: int | None) -> dict[str, Rows]:
    there = [split for split in task.validation if split in source.splits(task)]
    if not there:
        raise UserError(
            f"task {task.name!r} has no validation split in {source.name!r}",
            allowed=f"one of {', '.join(task.validation)}",
            mend="training needs one to judge by: add its file, or leave the task out",
        )
    return {split: load_rows(source, task, split, limit) for split in there}


def _with_copies(train: Rows, copies: Rows, *, only_of: bool) -> Rows:
    """The training rows and their copies; a copy of a candidate goes into its own group."""
    parent_of = np.array([uid.rpartition("#")[0] for uid in copies.uids.to_pylist()])
    number = {uid: row for row, uid in enumerate(train.uids.to_pylist())}
    row_of = np.array([number.get(uid, -1) for uid in parent_of])
    if only_of or train.groups is not None:
        copies, row_of = copies.take(np.flatnonzero(row_of >= 0)), row_of[row_of >= 0]
    if train.groups is not None:
        copy = np.array([int(uid.rpartition("#")[2]) for uid in copies.uids.to_pylist()])
        groups = train.groups[row_of] + copy * (int(train.groups.max()) + 1)
        copies = Rows(copies.task, copies.split, copies.uids, copies.texts, copies.labels, groups)
    return concat([train, copies]) if len(copies) else train


def encode_validation(data: TrainingData, reader: Reader) -> dict[tuple[str, str], Encoded]:
    """(task, split) -> the validation rows as one model reads them."""
    return {
        (part.task.name, split): Encoded.encode(rows, reader.tokeniser)
        for part in data.parts
        for split, rows in part.validation.items()
    }


def evaluator(
    tasks: Mapping[str, Task],
    validation: Mapping[tuple[str, str], Encoded],
    accelerator: Accelerator,
    batch_size: int,
) -> Callable[[MultiTaskModel], list[TaskScores]]:
    """A function that scores a model on validation rows, the work dealt out over the processes."""

    def evaluate(model: MultiTaskModel) -> list[TaskScores]:
        found = []
        for (name, split), rows in validation.items():
            rank, world = accelerator.process_index, accelerator.num_processes
            with accelerator.autocast():
                logits = predict_logits(
                    model, tasks[name], rows, batch_size=batch_size, rank=rank, world=world
                )
            if world > 1:
                shared = torch.from_numpy(logits).to(accelerator.device)
                logits = accelerator.reduce(shared, "sum").cpu().numpy()  # type: ignore[union-attr]
            found.append(score_logits(tasks[name], split, rows, logits))
        return found

    return evaluate


def scores_record(scores: list[TaskScores]) -> dict[str, Any]:
    """Scores as they are recorded: "task/split" -> scores."""
    return {f"{s.task}/{s.split}": s.to_json() for s in scores}


def begin(run: RunDir, accelerator: Accelerator, **facts: Any) -> None:
    """Let the main process make the run's directory, once every process has looked at it."""
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        run.begin(**facts)
    accelerator.wait_for_everyone()
