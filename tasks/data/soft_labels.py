"""Soft labels: a column with a teacher's probabilities or logits for each row, such as an LLM's predictions.

A cell holds one number per label of the task, in the order of the labels, or a mapping from labels to
numbers; as a list or a struct, or as JSON text. Tasks of scores (`regress`) have one number per row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.common.errors import UserError, counted, shorten
from tasks.data.label_agreement import better_order
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.task import Task
from tasks.task_types.labels import RowProblem, label_positions

SOFT_LABEL_KINDS = ("probabilities", "logits")
MIN_PROBABILITY = 1e-4  # smaller probabilities count as this, so that every logit is finite
_SUM_TOLERANCE = 0.02  # probabilities are often rounded to two decimals
_MIN_PERCENT = 20.0  # the largest value of a column of percentages, if rows have several labels
_MAX = 1e38  # of a logit, as float32
_BLANK = ("", "nan", "null", "none")  # cells without soft labels


def can_have_soft_labels(task: Task) -> bool:
    """True if rows of tasks of this type can have soft labels: one number per label, or one score."""
    outputs = task.type.n_outputs(task)
    return not task.type.predicts_spans and (
        len(task.labels) == outputs or (outputs == 1 and not task.labels)
    )


@dataclass(frozen=True, eq=False)
class ParsedSoftLabels:
    """The soft labels of a split.

    Attributes:
        logits: (n, C) float64; 0 for rows with a problem.
        kind: what the column holds: probabilities, logits or scores.
        problems: the problems of rows.
    """

    logits: np.ndarray
    kind: str
    problems: list[RowProblem]

    @property
    def valid(self) -> np.ndarray:
        """(n,) bool, True for rows without a problem."""
        valid = np.ones(len(self.logits), bool)
        valid[[problem.row for problem in self.problems]] = False
        return valid


def read_soft_labels(task: Task, raw: RawTable) -> ParsedSoftLabels:
    """Read the soft labels of a split.

    Probabilities become their logarithm (log-odds for several labels per row). If the task does not say what
    the column holds, it holds probabilities if at least half of its rows have only values from 0 to 1.
    Percentages are refused: as logits, they would be certain of the largest value. So are scores that are
    outside the task's range by more than half of its width.
    """
    assert task.soft_labels is not None
    size = task.type.n_outputs(task)
    values = np.zeros((raw.table.num_rows, size))
    problems: dict[int, str] = {}
    for row, cell in enumerate(raw.table[task.soft_labels].to_pylist()):
        try:
            values[row] = _numbers(task, cell, size)
        except ValueError as error:
            problems[row] = str(error)
    good = np.array([row not in problems for row in range(len(values))], bool)
    between = np.asarray(((values >= 0) & (values <= 1)).all(1))
    percent = good & _are_percentages(task, values, good)
    if not task.labels:
        kind = "scores"
        for row in np.flatnonzero(good & _on_another_scale(task, values[:, 0])).tolist():
            low, high = task.range or (-np.inf, np.inf)
            problems[row] = f"{values[row, 0]:g} is far outside the range; expected: {low:g} to {high:g}"
    elif task.soft_labels_kind is not None:
        kind = task.soft_labels_kind
    elif good.any() and (between | percent)[good].mean() < 0.5:
        kind = "logits"
    else:
        kind = "probabilities"
    if kind == "probabilities":
        sums = values.sum(1)
        for row in np.flatnonzero(good & ~between).tolist():
            advice = "; they look like percentages: divide them by 100" if percent[row] else ""
            expected = f"expected: values from 0 to 1{advice}"
            problems[row] = f"{_shown(values[row])} are not probabilities; {expected}"
        if task.type.one_class:
            for row in np.flatnonzero(good & between & (abs(sums - 1) > _SUM_TOLERANCE)).tolist():
                problems[row] = f"{_shown(values[row])} sum to {sums[row]:.4g}; expected: 1"
            values = values / np.where(sums > 0, sums, 1.0)[:, None]
        values = np.clip(values, MIN_PROBABILITY, 1.0 if task.type.one_class else 1 - MIN_PROBABILITY)
        values = np.log(values) if task.type.one_class else np.log(values) - np.log1p(-values)
    row_problems = [
        RowProblem(row, task.soft_labels, problems[row], "invalid soft labels") for row in sorted(problems)
    ]
    return ParsedSoftLabels(values, kind, row_problems)


def _on_another_scale(task: Task, scores: np.ndarray) -> np.ndarray:
    """(n,) bool, True for scores that no model of the task's range would give: a little outside is usual."""
    if task.range is None:
        return np.zeros(len(scores), bool)
    low, high = task.range
    return np.asarray(abs(scores - (low + high) / 2) > high - low)


def _are_percentages(task: Task, values: np.ndarray, good: np.ndarray) -> np.ndarray:
    """(n,) bool, True for rows that look like percentages.

    Those of one label per row sum to 100. For several labels per row the whole column decides: no value is
    negative, as most logits of such tasks are, and the largest is far above 1.
    """
    beyond_one = np.asarray((values > 1).any(1))
    if not task.type.one_class:
        column = values[good]
        percent = column.size > 0 and column.min() >= 0 and _MIN_PERCENT <= column.max() <= 100
        return beyond_one & percent
    sums_to_100 = np.asarray(abs(values.sum(1) - 100) <= 100 * _SUM_TOLERANCE)
    return beyond_one & sums_to_100 & np.asarray((values >= 0).all(1))


def contradicted_labels(task: Task, soft: ParsedSoftLabels, labels: np.ndarray) -> str | None:
    """What is wrong if the soft labels seem to be in another order than the task's labels, else None.

    Args:
        labels: the labels of the same rows; see `tasks.data.rows.Rows`.
    """
    better = better_order(task, soft.logits[soft.valid], labels[soft.valid])
    if better is None or not better.is_clear:
        return None
    return (
        f"the soft labels seem to be in another order: as {', '.join(task.labels)}, they agree with "
        f"{better.agreeing_as_assumed:,} of {better.total:,} labels of the same rows; as "
        f"{', '.join(better.labels)}, with {better.agreeing:,}; expected: the order of the task's labels, or "
        "a mapping from labels to numbers"
    )


def _numbers(task: Task, cell: Any, size: int) -> list[float]:
    """The numbers of one cell; raises ValueError with a description for people."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in _BLANK) or cell != cell:
        raise ValueError("no soft labels; expected: numbers in every training row")
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            raise ValueError(f"{cell[:40]!r} is not JSON; expected: a list of numbers") from None
    if isinstance(cell, list) and cell and isinstance(cell[0], tuple):  # a map column of Arrow
        cell = dict(cell)
    if isinstance(cell, dict):
        by_label = {name: value for name, value in cell.items() if value is not None}
        if odd := [name for name in by_label if not isinstance(name, str)]:
            raise ValueError(f"the label {odd[0]!r} is not text; expected: {shorten(task.labels)}")
        positions = label_positions(task.labels, list(by_label))
        if None in positions or len(by_label) != size:
            raise ValueError(f"labels {shorten(by_label)}; expected: {shorten(task.labels)}")
        values = list(by_label.values())
        cell = [values[position] for position in positions if position is not None]
    numbers = cell if isinstance(cell, list) else [cell]
    if len(numbers) != size:
        raise ValueError(f"{counted(len(numbers), 'value')}; expected: {size}")
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) <= _MAX for n in numbers):
        wanted = "probabilities from 0 to 1, or logits" if task.labels else "scores"
        raise ValueError(f"{str(numbers)[:60]}; expected: {wanted} between -{_MAX:.0e} and {_MAX:.0e}")
    return [float(number) for number in numbers]


def _shown(values: np.ndarray) -> str:
    return shorten([f"{value:g}" for value in values])


def require_soft_labels(task: Task, rows: Rows) -> np.ndarray:
    """The soft labels of training rows as logits, (n, C) float32.

    Raises:
        UserError: some of the rows have none, because they were generated.
    """
    if rows.soft is None:
        raise UserError(
            f"the task {task.name!r} learns from the soft labels in the column {task.soft_labels!r}, but "
            "rows of the corpus have none",
            hint=f"leave `corpus` out, or name a teacher for the task: `teacher={{{task.name!r}: 'DIR'}}`",
        )
    return rows.soft.astype(np.float32)
