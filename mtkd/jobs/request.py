"""What all jobs share: the request, and scoring on validation rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from mtkd.evaluation.scoring import TaskScores, score_logits
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.settings import TrainSettings
from mtkd.storage.worker_pools import Workers
from mtkd.training.run_directory import RunDirectory
from tasks.encoding import Encoded
from tasks.errors import UserError, unknown
from tasks.files import digest_bytes
from tasks.sources import DataSource, open_data
from tasks.task import Task


@dataclass(frozen=True)
class Request:
    """The arguments that all training jobs share.

    Attributes:
        data: a name or directory for `tasks.sources.open_data`, a `DataSource`, whose `name` is recorded in
            run.json, or None for the files that the tasks name themselves.
        tasks: task names as on the command line, or tasks.
        out: the run directory.
        limit, eval_limit: rows per training and validation split; None = all.
        resume, overwrite: what to do with a run that is already in `out`.
        device: "cpu", "cuda", "cuda:1" or "mps"; None = the GPU if available.
        workers: what computes the teacher's logits of all rows, if they are computed before training.
    """

    data: str | DataSource | None
    tasks: str | Sequence[Task]
    out: Path
    limit: int | None = None
    eval_limit: int | None = None
    resume: bool = False
    overwrite: bool = False
    device: str | None = None
    workers: Workers = Workers()  # noqa: RUF009 (it is frozen)

    def source(self) -> DataSource:
        """Open the data source.

        Raises:
            UserError: the directory does not exist.
        """
        return open_data(self.data)

    def open_run(self, command: str, settings: Any, tasks: list[Task], **sources: Any) -> RunDirectory:
        """Open the run directory. The identity of the run is everything that determines its result.

        Args:
            command: "refine", "distill" or "finetune".
            sources: further parts of the identity.

        Raises:
            UserError: the directory holds another run.
        """
        values = settings.model_dump()
        for key in ("checkpoint_minutes", "checkpoint_steps"):  # these do not affect the result
            values["train"].pop(key)
        identity = {
            "command": command,
            "data": self.data.name if isinstance(self.data, DataSource) else self.data,
            "tasks": ",".join(task.name for task in tasks),
            "task_digest": digest_bytes(json.dumps([task.to_json() for task in tasks]))[:16],
            "limit": self.limit,
            "eval_limit": self.eval_limit,
            **sources,
            "settings": values,
        }
        return RunDirectory(self.out, identity, resume=self.resume, overwrite=self.overwrite)


def check_metric(metric: str, tasks: list[Task]) -> None:
    """Check that `train.metric` will be measured.

    Raises:
        UserError: unknown metric.
    """
    metrics = ["score", "loss", *(f"{task.name}/{name}" for task in tasks for name in task.metrics)]
    metrics += [f"{t.name}/{split}/{name}" for t in tasks for split in t.validation for name in t.metrics]
    if metric not in metrics:
        raise unknown("metric in `train.metric`:", metric, metrics)


def refuse_unlabelled_settings(train: TrainSettings, job: str) -> None:
    """Refuse the settings of rows without labels in a job that does not use such rows.

    Raises:
        UserError: such a setting is given.
    """
    for name in ("unlabelled_fraction", "min_confidence"):
        if (value := getattr(train, name)) is not None:
            raise UserError(
                f"train.{name} = {value}, but {job} does not use rows without labels of tasks",
                hint=f"leave `train.{name}` out; mtkd distill uses it",
            )


def evaluator(
    tasks: Mapping[str, Task],
    validation: Mapping[tuple[str, str], Encoded],
    accelerator: Accelerator,
    train: TrainSettings,
) -> Callable[[MultiTaskModel], list[TaskScores]]:
    """Return a function that scores a model on validation rows, which are sharded across processes.

    Raises:
        UserError: `train.metric` watches a split that has no rows.
    """
    *watched_split, _ = train.metric.split("/")
    if len(watched_split) == 2 and tuple(watched_split) not in validation:
        raise UserError(
            f"`train.metric={train.metric}` watches a validation split that the data do not have",
            expected=", ".join(split for name, split in validation if name == watched_split[0]),
            hint="add its rows, or watch the mean over all validation splits: `train.metric=score`",
        )

    def evaluate(model: MultiTaskModel) -> list[TaskScores]:
        scores = []
        for (name, split), rows in validation.items():
            logits = validation_logits(model, tasks[name], rows, accelerator, train)
            scores.append(score_logits(tasks[name], split, rows, logits, model.reader))
        return scores

    return evaluate


def validation_logits(
    model: MultiTaskModel, task: Task, rows: Encoded, accelerator: Accelerator, train: TrainSettings
) -> np.ndarray:
    """The logits of validation rows, (n, C) or (n, 2, L) float32, sharded across processes."""
    with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=train.precision == "bf16"):
        logits = predict_logits(
            model,
            task,
            rows,
            batch_size=train.eval_batch_size,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
    if accelerator.num_processes > 1:
        shared = torch.from_numpy(logits).to(accelerator.device)
        logits = accelerator.reduce(shared, "sum").cpu().numpy()  # type: ignore[union-attr]
    return logits


def scores_record(scores: Sequence[TaskScores]) -> dict[str, Any]:
    """Scores as recorded in run.json: "task/split" -> scores."""
    return {f"{s.task}/{s.split}": s.to_json() for s in scores}
