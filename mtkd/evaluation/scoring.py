"""Scores of a model on labelled rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.metrics import majority_score, score
from tasks.reader import Reader
from tasks.span_answers import decode_spans
from tasks.squad import best_threshold, exact_match, gold_answers, score_texts, token_f1
from tasks.task import Task
from tasks.task_types import decode, hard_loss


@dataclass(frozen=True)
class TaskScores:
    """What a model scores on one split of one task.

    Attributes:
        metrics: by name, as fractions.
        primary: the mean of the task's metrics.
        majority: score of the baseline: always the most frequent class, or the mean (`regress`).
        loss: the task's own loss, mean over rows (`span`: over windows).
        details: more numbers, which do not count for `primary`.
        threshold: of "no answer" (`tasks.span_answers.SpanAnswers.texts`), where the task has one.
    """

    task: str
    split: str
    rows: int
    metrics: Mapping[str, float]
    primary: float
    majority: float
    loss: float
    details: Mapping[str, float] = field(default_factory=dict)
    threshold: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def score_logits(
    task: Task,
    split: str,
    encoded: Encoded,
    logits: np.ndarray,
    reader: Reader,
    threshold: float | None = None,
) -> TaskScores:
    """The scores of logits (n, C), or (n, 2, L) of windows, against the rows' labels.

    Args:
        reader: of the model that gave the logits.
        threshold: of "no answer"; None = the best on these rows.

    Raises:
        UserError: the split is not labelled.
    """
    if encoded.windows is not None:
        return _score_spans(task, split, encoded, logits, reader, threshold)
    answers = decode(task, logits, encoded.groups)
    scores = score(task, answers, encoded.labels, encoded.groups, scores=logits, split=split)
    return TaskScores(
        task.name,
        split,
        len(encoded.labels),
        scores.by_metric,
        scores.primary,
        majority_score(task, encoded.labels, encoded.groups, split=split).primary,
        _mean_loss(task, encoded, logits),
    )


def _mean_loss(task: Task, encoded: Encoded, logits: np.ndarray) -> float:
    groups = None if encoded.groups is None else torch.from_numpy(encoded.groups)
    loss = hard_loss(task, torch.from_numpy(logits), torch.from_numpy(encoded.labels), groups)
    return float(loss.total / loss.count.clamp(min=1))


def _score_spans(
    task: Task,
    split: str,
    encoded: Encoded,
    logits: np.ndarray,
    reader: Reader,
    threshold: float | None,
) -> TaskScores:
    assert encoded.windows is not None
    examples = encoded.windows.examples
    if not examples.labelled or examples.answers is None:
        raise UserError(
            f"split {split!r} of task {task.name!r} is not labelled: it cannot be scored",
            hint="score a labelled split; `mtkd predict` answers unlabelled rows",
        )
    found = decode_spans(encoded, logits, reader.tokeniser.layout(2))
    golds = gold_answers(examples.answers)
    if task.unanswerable and threshold is None:
        given = zip(found.texts(None), golds, strict=True)
        spans = np.array([exact_match(text, gold) + token_f1(text, gold) for text, gold in given])
        nulls = np.array([2.0 * (gold == [""]) for gold in golds])
        threshold = best_threshold(found.lead, spans, nulls)
    scores = score_texts(found.texts(threshold), golds, threshold)
    by_metric = {name: getattr(scores, name) for name in task.metrics}
    return TaskScores(
        task.name,
        split,
        len(examples),
        by_metric,
        float(np.mean(list(by_metric.values()))),
        float(np.mean([gold == [""] for gold in golds])) if task.unanswerable else 0.0,
        _mean_loss(task, encoded, logits),
        scores.by_kind,
        threshold,
    )


def watched(metric: str, scores: list[TaskScores]) -> tuple[float, Callable[[float, float], bool]]:
    """The value of the metric that a run watches, and how to tell a better one.

    Args:
        metric: "score", "loss" or "task/metric". Splits of one task (MNLI has two) are averaged first.
    """
    by_task: dict[str, list[TaskScores]] = {}
    for found in scores:
        by_task.setdefault(found.task, []).append(found)
    if metric == "loss":
        return _mean(_mean(s.loss for s in splits) for splits in by_task.values()), lambda new, old: new < old
    if metric == "score":
        return _mean(
            _mean(s.primary for s in splits) for splits in by_task.values()
        ), lambda new, old: new > old
    task, _, name = metric.partition("/")
    return _mean(s.metrics[name] for s in by_task[task]), lambda new, old: new > old


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
