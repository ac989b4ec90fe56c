"""`multilabel`: any number of labels per row.

The label column holds a list of label names or ids, a JSON list as text ('["a", "b"]'), or text in which the
labels are "|"-separated (comma-separated if there is no "|"). An empty list means that the row has no labels;
null and empty text mean "unlabelled". In a column of multi-hot vectors, the list of every row has a 0 or 1
(or a truth value) for each label of the task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.common.errors import brief
from tasks.data.raw_table import RawTable, is_list_column
from tasks.scoring.metrics import Predictions
from tasks.scoring.row_predictions import RowPredictions, probabilities_problem
from tasks.task import Task
from tasks.task_types.labels import (
    UNKNOWN_LABEL,
    ParsedLabels,
    RowProblem,
    class_ids,
    is_number,
    label_texts,
    means_unlabelled,
    named_ids,
    split_label_list,
)
from tasks.task_types.results import LossSum
from tasks.task_types.task_type import Metrics, TaskType

if TYPE_CHECKING:
    from torch import Tensor

_DEFAULT_THRESHOLD = 0.5
_ZEROS_AND_ONES = {"0": False, "0.0": False, "False": False, "1": True, "1.0": True, "True": True}


def micro_f1(compared: Predictions) -> float:
    """F1 over all (row, label) pairs; 0 if no label is predicted and none is true."""
    return float(_f1(compared.predictions, compared.labels, axis=None))


def label_macro_f1(compared: Predictions) -> float:
    """The mean of the F1 of all labels; 0 for a label that is never predicted and never true."""
    return float(_f1(compared.predictions, compared.labels, axis=0).mean())


def _f1(predictions: np.ndarray, labels: np.ndarray, axis: int | None) -> np.ndarray:
    true_positives = (predictions * labels).sum(axis)
    total = predictions.sum(axis) + labels.sum(axis)
    return 2 * true_positives / np.maximum(total, 1)


class MultiLabel(TaskType):
    """Any of K labels per row; logits (B, K); labels (B, K), 1 if the row has the label, else 0."""

    metrics: ClassVar[Metrics] = {"micro_f1": micro_f1, "macro_f1": label_macro_f1}
    default_metrics = ("micro_f1", "macro_f1")
    fields = ("labels",)
    baseline = "always predicting the same labels"
    outputs = "sets of labels"

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        column = table.table[task.label]
        lists = [_split(value, task) for value in _plain_values(column)]
        ambiguous = False
        if _are_multi_hot(task, lists):
            ambiguous = _could_be_ids(task, lists)
            if not ambiguous:
                lists = [None if names is None else _of_multi_hot(task, names) for names in lists]
        flat = pa.array([name for names in lists for name in names or ()], pa.string())
        ids = class_ids(task, flat)
        values = np.full((len(lists), len(task.labels)), np.nan)
        problems, start = [], 0
        for row, names in enumerate(lists):
            end = start + len(names or ())
            unknown = np.flatnonzero(np.isnan(ids[start:end]))
            if names is None and not task.may_be_unlabelled(split):
                message = f"no label; expected: a list of {named_ids(task)}; [] for no labels"
                problems.append(RowProblem(row, task.label, message))
            elif len(unknown):
                label = brief(flat[start + int(unknown[0])].as_py())
                message = f"label {label}; expected: {named_ids(task)}"
                problems.append(RowProblem(row, task.label, message, UNKNOWN_LABEL))
            elif names and (ambiguous or _repeats_a_number(names)):
                message = f"{brief(names)} can be ids or one 0 or 1 per label; expected: names of labels"
                if not ambiguous:
                    message = (
                        f"a number is repeated in {brief(names)}; expected: different labels in each row, or "
                        f"a list of {len(task.labels)} zeros and ones in every row"
                    )
                problems.append(RowProblem(row, task.label, message, "ambiguous labels"))
            elif names is not None:
                values[row] = np.isin(np.arange(len(task.labels)), ids[start:end])
            start = end
        return ParsedLabels(values, problems)

    def check_label_column(self, task: Task, column: pa.DataType) -> str | None:
        single = column.value_type if is_list_column(column) else column
        return super().check_label_column(task, single) and "a list of labels per row, or text"

    def label_text(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        texts = [None if value is None else json.dumps(value) for value in _plain_values(column)]
        return pa.chunked_array([pa.array(texts, pa.string())])

    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        """The number of rows with each label (rows may count several times), then of unlabelled rows."""
        sizes = np.nansum(labels.values, axis=0).astype(int).tolist()
        none = int((labels.values.sum(axis=1) == 0).sum())
        counts = list(zip(task.labels, sizes, strict=True))
        return labels.counts(task, [*counts, *([("no label", none)] if none else [])])

    def n_outputs(self, task: Task) -> int:
        return len(task.labels)

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """Binary cross-entropy of the sigmoid, averaged over labels and summed over rows."""
        from torch.nn import functional

        labels = labels.float()
        labelled = ~labels.isnan().any(1)
        by_label = functional.binary_cross_entropy_with_logits(
            logits.float(), labels.nan_to_num(), reduction="none"
        )
        return LossSum((by_label.mean(1) * labelled).sum(), labelled.sum())

    def softmax_logits(self, logits: Tensor) -> Tensor | None:
        """(..., K, 2): softmax([z, 0]) = [sigmoid(z), 1 - sigmoid(z)], a distribution for each label."""
        import torch

        return torch.stack([logits, torch.zeros_like(logits)], -1)

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        """(n, K) int64: 1 if the label's probability is above its threshold (0.5 by default)."""
        cut = _DEFAULT_THRESHOLD if threshold is None else np.asarray(threshold)
        return (self.probabilities(task, logits) > cut).astype(np.int64)

    def probabilities(self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """(n, K) float64, the sigmoid of each logit."""
        logits = np.asarray(logits, np.float64)
        return np.exp(-np.logaddexp(0.0, -logits))

    def has_threshold(self, task: Task) -> bool:
        return True

    def threshold_problem(self, task: Task, threshold: Any) -> str | None:
        """A threshold is a list with one number from 0 to 1 for each label."""
        count = len(task.labels)
        listed = isinstance(threshold, list | tuple) and len(threshold) == count
        fits = listed and all(type(cut) in (int, float) and 0 <= cut <= 1 for cut in threshold)
        return None if fits else f"a list of {count} numbers from 0 to 1, one for each label of {task.name!r}"

    def best_threshold(self, task: Task, logits: np.ndarray, labels: np.ndarray) -> Any:
        """The threshold with the best F1 for each label, halfway between two rows; 0.5 without positives."""
        labelled = ~np.isnan(labels).any(axis=1)
        probabilities = self.probabilities(task, logits[labelled])
        return [
            _best_cut(p, y) if y.any() else _DEFAULT_THRESHOLD
            for p, y in zip(probabilities.T, labels[labelled].T, strict=True)
        ]

    def constant_predictions(self, task: Task, labels: np.ndarray) -> list[Any]:
        """The set of labels that more than half of the rows have, and the set of all labels."""
        return [(labels.mean(axis=0) > 0.5).astype(float), np.ones(labels.shape[1])]

    def predictions_problem(self, task: Task, rows: RowPredictions) -> str | None:
        """Each row has a 0 or 1 for each label."""
        shape = (len(rows), len(task.labels))
        if rows.labels.shape != shape or rows.predictions.shape != shape:
            return f"its labels and predictions are not lists of {shape[1]} numbers, one for each label"
        if not np.isin([rows.labels, rows.predictions], (0, 1)).all():
            return "its labels and predictions are not lists of 0 and 1"
        return probabilities_problem(task, rows)

    def record(self, task: Task, prediction: Any, probabilities: np.ndarray | None) -> dict[str, Any]:
        """The names of the predicted labels, and the probability of each label."""
        assert probabilities is not None, "every label has a probability"
        return {
            "prediction": [name for name, has in zip(task.labels, prediction, strict=True) if has],
            "probabilities": {n: round(float(p), 6) for n, p in zip(task.labels, probabilities, strict=True)},
        }


def _best_cut(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The threshold with the best F1 for one label that has positives; the highest one of a tie."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order], np.cumsum(labels[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + labels.sum())
    below = np.append(ranked[1:], 0.0)
    best = int(np.argmax(np.where(ranked > below, f1, -1.0)))  # equal probabilities cannot be separated
    return float((ranked[best] + below[best]) / 2)


def _plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Each row's value: a list, text, or None."""
    return column.to_pylist() if is_list_column(column.type) else label_texts(column).to_pylist()


def _split(value: Any, task: Task) -> list[str] | None:
    """The labels of one row as text; None = unlabelled."""
    if isinstance(value, str):
        return (
            None if means_unlabelled(pa.array([value.strip()]))[0] else split_label_list(value, task.labels)
        )
    return None if value is None else [str(name).strip() for name in value]


def _are_multi_hot(task: Task, lists: Sequence[list[str] | None]) -> bool:
    """True if every list has a 0 or 1, or a truth value, for each label."""
    given = [names for names in lists if names is not None]
    return (
        {len(names) for names in given} == {len(task.labels)}
        and _ZEROS_AND_ONES.keys().isdisjoint(task.labels)
        and _ZEROS_AND_ONES.keys() >= set().union(*given)
    )


def _could_be_ids(task: Task, vectors: Sequence[list[str] | None]) -> bool:
    """True if every multi-hot vector is also a list of different ids, as [1, 0] is for two labels."""
    ids = [str(number) for number in range(len(task.labels))]
    return all(names is None or sorted(n.removesuffix(".0") for n in names) == ids for names in vectors)


def _of_multi_hot(task: Task, vector: list[str]) -> list[str]:
    return [label for label, value in zip(task.labels, vector, strict=True) if _ZEROS_AND_ONES[value]]


def _repeats_a_number(names: list[str]) -> bool:
    return len(set(names)) < len(names) and any(names.count(n) > 1 for n in set(names) if is_number(n))
