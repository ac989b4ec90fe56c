"""What the stages share: the request, scoring on validation rows, and beginning a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mtkd.evaluation.scoring import TaskScores, score_logits
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.training.run_directory import RunDirectory
from tasks.batching import Encoded
from tasks.errors import unknown
from tasks.files import digest_bytes
from tasks.reader import Reader
from tasks.rows import Rows
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

    def open_run(self, stage: str, settings: Any, tasks: list[Task], **more: Any) -> RunDirectory:
        """The run's directory; its identity is all that decides the result.

        Raises:
            UserError: another run is there.
        """
        values = settings.model_dump()
        for key in ("checkpoint_minutes", "checkpoint_steps"):  # these decide nothing
            values["train"].pop(key)
        identity = {
            "stage": stage,
            "data": self.data,
            "tasks": self.tasks,
            "task_digest": digest_bytes(json.dumps([task.to_json() for task in tasks]))[:16],
            "limit": self.limit,
            "eval_limit": self.eval_limit,
            **more,
            "settings": values,
        }
        return RunDirectory(self.out, identity, resume=self.resume, overwrite=self.overwrite)


def check_metric(metric: str, tasks: list[Task]) -> None:
    """Refuse a `train.metric` that will not be measured.

    Raises:
        UserError: it names nothing.
    """
    known = ["score", "loss", *(f"{task.name}/{name}" for task in tasks for name in task.metrics)]
    if metric not in known:
        raise unknown("metric to watch (train.metric)", metric, known)


def encode_validation(
    validation: Mapping[tuple[str, str], Rows], reader: Reader
) -> dict[tuple[str, str], Encoded]:
    """(task, split) -> the validation rows as one model reads them."""
    return {key: Encoded.encode(reader.rows(rows), reader.tokeniser) for key, rows in validation.items()}


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
            found.append(score_logits(tasks[name], split, rows, logits, model.reader))
        return found

    return evaluate


def scores_record(scores: list[TaskScores]) -> dict[str, Any]:
    """Scores as they are recorded: "task/split" -> scores."""
    return {f"{s.task}/{s.split}": s.to_json() for s in scores}


def begin(run: RunDirectory, accelerator: Accelerator, **facts: Any) -> None:
    """Let the main process make the run's directory, once every process has looked at it."""
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        run.begin(**facts)
    accelerator.wait_for_everyone()
