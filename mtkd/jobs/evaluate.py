"""Evaluate: the scores of a trained model on labelled splits."""

from __future__ import annotations

from pathlib import Path

from mtkd.device import best_device
from mtkd.evaluation.scoring import TaskScores, score_logits
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.progress import progress
from tasks.registry import resolve
from tasks.sources import DataSource, load_rows, open_data
from tasks.task import Task


def run(
    model: Path,
    data: str,
    spec: str | None,
    *,
    split: str | None = None,
    limit: int | None = None,
    batch_size: int = 64,
) -> list[TaskScores]:
    """Score a model on the validation splits of some tasks.

    Args:
        spec: tasks, by default all that the model knows.
        split: another split than the validation ones.
        limit: rows a split.

    Raises:
        UserError: the model does not know a task, or a split is missing or unlabelled.
    """
    loaded = MultiTaskModel.load(model).to(best_device())
    tasks = resolve(spec) if spec else list(loaded.tasks.values())
    loaded.require(tasks, f"the model {model}")
    source = open_data(data)
    found = []
    for task in tasks:
        splits = (
            [split]
            if split
            else [name for name in task.validation or task.test if name in source.splits(task)]
        )
        if not splits:
            wanted = ", ".join(task.validation or task.test)
            raise UserError(f"no split to score {task.name!r} on in {source.name!r}", expected=wanted)
        found += [_score(loaded, task, name, source, limit, batch_size) for name in splits]
    return found


def _score(
    model: MultiTaskModel, task: Task, split: str, source: DataSource, limit: int | None, batch_size: int
) -> TaskScores:
    rows = load_rows(source, task, split, limit)
    encoded = Encoded.encode(model.reader.rows(rows), model.tokeniser)
    with progress(f"evaluating {task.name}/{split}", len(encoded)) as advance:
        logits = predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)
    return score_logits(task, split, encoded, logits, model.reader, model.threshold(task))
