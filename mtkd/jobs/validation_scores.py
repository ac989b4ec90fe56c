"""Scoring on validation rows during and after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from mtkd.evaluation.scoring import TaskScores, score_logits
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError, unknown
from tasks.task import Task
from tasks.tokens.encoding import Encoded


def check_metric(metric: str, tasks: list[Task]) -> None:
    """Check that `train.metric` names a metric of the tasks.

    Raises:
        UserError: unknown metric.
    """
    metrics = ["score", "loss", *(f"{task.name}/{name}" for task in tasks for name in task.metrics)]
    metrics += [f"{t.name}/{split}/{name}" for t in tasks for split in t.validation for name in t.metrics]
    if metric not in metrics:
        raise unknown("metric in `train.metric`:", metric, metrics)


def evaluator(
    tasks: Mapping[str, Task],
    validation: Mapping[tuple[str, str], Encoded],
    accelerator: Accelerator,
    train: TrainSettings,
    *,
    final: bool = False,
) -> Callable[[MultiTaskModel], list[TaskScores]]:
    """Return a function that scores a model on validation rows, which are sharded across processes.

    A decision threshold is tuned on the first split of a task and used for its other splits, as in the
    trained model's predictions and evaluations.

    Args:
        validation: (task, split) -> rows.
        final: score in fp32, as `mtkd evaluate` does, whatever the precision of the training.

    Raises:
        UserError: `train.metric` watches a split that has no rows.
    """
    if final:
        train = train.model_copy(update={"precision": "fp32"})
    *watched_split, _ = train.metric.split("/")
    if len(watched_split) == 2 and tuple(watched_split) not in validation:
        raise UserError(
            f"`train.metric={train.metric}` watches a validation split that the data does not have",
            expected=", ".join(split for name, split in validation if name == watched_split[0]),
            hint="add its rows, or watch the mean over all validation splits: `train.metric=score`",
        )

    def evaluate(model: MultiTaskModel) -> list[TaskScores]:
        scores = []
        thresholds: dict[str, Any] = {}
        for (name, split), rows in validation.items():
            logits = validation_logits(model, tasks[name], rows, accelerator, train)
            score = score_logits(tasks[name], split, rows, logits, model.reader, thresholds.get(name))
            thresholds[name] = score.threshold
            scores.append(score)
        return scores

    return evaluate


def validation_logits(
    model: MultiTaskModel, task: Task, rows: Encoded, accelerator: Accelerator, train: TrainSettings
) -> np.ndarray:
    """The logits of validation rows, (n, C) or (n, 2, L) float32; the rows are sharded across processes."""
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
