"""The validation rows on which two models disagree most, with their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mtkd.reporting.models import Gathered, ReportedModel
from mtkd.reporting.runs import CONTROL, STUDENT, TEACHER, Run
from tasks.common.errors import UserError
from tasks.data.loading import digest_rows, load_rows
from tasks.data.rows import Rows
from tasks.data.sources import open_data
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

_LONGEST = 500  # characters shown of a text


@dataclass(frozen=True)
class ShownAnswer:
    """What a model predicted; `confidence` is the probability of the predicted class, if it is known."""

    text: str
    confidence: float | None
    right: bool | None


@dataclass(frozen=True)
class Example:
    """A row on which two models disagree.

    Attributes:
        texts: (column, text) of each text; empty if they cannot be read.
        answers: the answers of the two models.
    """

    uid: str
    texts: list[tuple[str, str]]
    label: str
    answers: tuple[ShownAnswer, ShownAnswer]


@dataclass(frozen=True)
class Disagreements:
    """The rows of a task on which two models disagree.

    Attributes:
        rule: the measure by which the rows are sorted, in words.
        count, rows: on how many of how many rows the models disagree.
        missing: why the texts cannot be read; None if they can.
    """

    models: tuple[str, str]
    task: str
    rule: str
    count: int
    rows: int
    examples: list[Example]
    missing: str | None


def pairs(gathered: Gathered, best: ReportedModel | None) -> list[tuple[ReportedModel, ReportedModel]]:
    """The best student with the teacher and with a control; else the first two models."""
    control = gathered.reference if gathered.reference.role == CONTROL else gathered.first(CONTROL)
    if best is not None and best.role == STUDENT and (control or gathered.first(TEACHER)):
        return [(best, other) for other in (gathered.first(TEACHER), control) if other is not None]
    scored = [model for model in gathered.models if model.tasks]
    return [(scored[0], scored[1])] if len(scored) > 1 else []


class TextReader:
    """Reads the texts of validation rows again, from where the runs read them or from `data`."""

    def __init__(self, data: Any = None):
        self._data = data
        self._rows_read: dict[Any, Rows | str] = {}

    def texts(self, run: Run, task: Task, split: str) -> Rows | str:
        """The validation rows of a run, or why they cannot be read."""
        identity, digests = run.identity, run.record.get("data", {})
        key = (task.name, split, digests.get(f"{task.name}/{split}"))
        if key not in self._rows_read:
            try:
                source = open_data(self._data or identity["data"])
                rows = load_rows(source, task, split, identity["eval_limit"])
                unchanged = digest_rows(rows) == key[2]
                self._rows_read[key] = (
                    rows if unchanged else f"the rows of {task.name}/{split} have changed since the run"
                )
            except (UserError, OSError, ValueError, ImportError, pa.ArrowException) as error:
                self._rows_read[key] = error.problem if isinstance(error, UserError) else str(error)
        return self._rows_read[key]


def find_disagreements(
    one: ReportedModel, other: ReportedModel, name: str, max_examples: int, reader: TextReader
) -> Disagreements | None:
    """The rows of a task on which two models disagree most; None without predictions for the same rows.

    Args:
        max_examples: how many rows to show.
    """
    if not (one.predictions(name) and other.predictions(name)):
        return None
    first, second = (next(iter(model.predictions(name).values())) for model in (one, other))
    shared = [split for split in first if split in second and first[split].uids.equals(second[split].uids)]
    if not shared:
        return None
    disagreements = []
    rules = []
    missing = None
    for split in shared:
        gaps, rule = _gaps(one.tasks[name], first[split], second[split])
        rules.append(rule)
        disagreements += [(float(gaps[row]), split, int(row)) for row in np.flatnonzero(gaps > 0)]
    disagreements.sort(key=lambda item: -item[0])
    task, run = one.tasks[name], next(iter(one.runs_of(name).values()))
    examples = []
    for _, split, row in disagreements[:max_examples]:
        rows = reader.texts(run, task, split)
        missing = rows if isinstance(rows, str) else missing
        examples.append(_example(task, rows, row, (first[split], second[split])))
    total = sum(len(first[split]) for split in shared)
    return Disagreements((one.name, other.name), name, rules[0], len(disagreements), total, examples, missing)


def _gaps(task: Task, one: RowPredictions, other: RowPredictions) -> tuple[np.ndarray, str]:
    """(n,) how much the models disagree on each row, 0 where they agree; and this measure in words."""
    a, b = one.predictions, other.predictions
    if one.by_row:
        means = [np.mean(list(side.by_row.values()), axis=0) for side in (one, other)]
        return (a != b) * (
            1e-9 + abs(means[0] - means[1])
        ), "the largest difference in their scores on the row"
    if a.ndim == 2:
        return (a != b).sum(1).astype(float), "the most labels that differ"
    if one.probabilities is not None and other.probabilities is not None:
        distance = abs(one.probabilities - other.probabilities).sum(1) / 2
        return (a != b) * (1e-9 + distance), "the largest difference between their probabilities"
    if task.type.outputs == "scores":
        return abs(a - b), "the largest difference between their predictions"
    return (a != b).astype(float), "the order of the data, as the runs recorded no probabilities"


def _example(task: Task, rows: Rows | str, row: int, sides: tuple[RowPredictions, RowPredictions]) -> Example:
    texts, value = [], sides[0].labels[row]
    label = ("an answer" if value else "no answer") if sides[0].by_row else _shown(task, value)
    if not isinstance(rows, str):
        columns = zip(task.columns, rows.texts, strict=True)
        texts = [(column, _shortened(values[row].as_py())) for column, values in columns]
        if rows.answers is not None:
            label = " / ".join(dict.fromkeys(rows.answers[row].as_py()["text"])) or "no answer"
    one, other = (_answer(task, side, row) for side in sides)
    return Example(sides[0].uids[row].as_py(), texts, label, (one, other))


def _answer(task: Task, side: RowPredictions, row: int) -> ShownAnswer:
    value, label = side.predictions[row], side.labels[row]
    if side.by_row:
        return ShownAnswer(str(value) or "no answer", None, bool(side.by_row[task.metrics[0]][row] == 1))
    right = None if task.type.outputs == "scores" else bool(np.array_equal(value, label))
    chance = None
    if side.probabilities is not None and np.ndim(value) == 0:
        chance = float(side.probabilities[row][int(value)])
    return ShownAnswer(_shown(task, value), chance, right)


def _shown(task: Task, value: Any) -> str:
    """A label or prediction as text."""
    if np.ndim(value):
        return ", ".join(_chosen(task, value)) or "none"
    if not task.labels:
        return f"{float(value):.2f}"
    return task.labels[int(value)]


def _chosen(task: Task, values: np.ndarray) -> Iterator[str]:
    return (name for name, chosen in zip(task.labels, values, strict=True) if chosen)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
