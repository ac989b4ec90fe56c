"""The base class of task types, which hold everything that depends on the type of a task.

torch is imported only when it is needed, so that commands that only read data start fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.data.raw_table import RawTable
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions, numbers_problem
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels
from tasks.task_types.results import LossSum, SplitScores

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.tokens.encoding import Encoded
    from tasks.tokens.token_layout import Layout


Metrics = Mapping[str, Callable[..., float]]


class TaskType(ABC):
    """Everything that depends on the type of a task. One instance serves all tasks of its type.

    Models, losses and stores rely on these shapes: logits are (B, C), or (B, 2, L) if `predicts_spans`;
    labels are (B,) or (B, K), with NaN for unlabelled rows.

    Attributes:
        metrics: name -> function of `tasks.scoring.metrics.Predictions`.
        default_metrics: the metrics of a task that names none.
        fields: which of the type-specific keys of a task's TOML file apply (`labels`, `range`, `group`,
            `positive`, `unanswerable`, `max_answer_tokens`, `languages`).
        has_head: False if models have no head for such tasks, as for plain text.
        predicts_spans: True if an answer is a span of the second text. Rows are then read in windows, and the
            head maps token vectors to the logits (B, 2, L) of starts and ends.
        outputs: what the logits represent, for messages.
        baseline: the best constant prediction in words, for messages.
        one_class: True if a prediction is one of the task's labels, so that a per-class report makes sense.
        label_type: Arrow type of the label column that is added to unlabelled test splits.
    """

    metrics: ClassVar[Metrics]
    default_metrics: tuple[str, ...]
    fields: tuple[str, ...] = ()
    has_head: bool = True
    predicts_spans: bool = False
    outputs: str = "classes"
    baseline: str = "always predicting the same class"
    one_class: bool = False
    label_type: pa.DataType = pa.string()

    # The task itself

    def check(self, task: Task) -> None:
        """Check that the fields of a task are consistent; by default that there are two labels or more.

        Raises:
            UserError: they are not.
        """
        if "labels" in self.fields and len(task.labels) < 2:
            raise UserError(f"{task.kind} tasks need labels", expected="two names or more")

    def metric_names(self, task: Task) -> list[str]:
        """The metrics that a task may name."""
        return list(self.metrics)

    # Labels

    @abstractmethod
    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        """Parse the labels of a split and collect all problems; test splits may be unlabelled.

        Args:
            table: at least one row, with the task's columns.
        """

    def check_label_column(self, task: Task, column: pa.DataType) -> str | None:
        """None if a column of this type can hold the labels; otherwise a description of what is expected."""
        nested = pa.types.is_nested(column) or pa.types.is_binary(column)
        return "one number or text per row" if nested else None

    def label_text(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        """The labels as comparable values, for finding duplicates; None if labels do not distinguish rows."""
        return column

    @abstractmethod
    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        """The label distribution as (label, number of rows), for `mtkd data check`."""

    def has_classes(self, bins: int | None) -> bool:
        """True if each labelled row belongs to one class; `bins` is the number of bins for scores."""
        return False

    def row_classes(self, task: Task, labels: Tensor, bins: int | None) -> Tensor:
        """(B,) the class of each row, NaN = unlabelled, if `has_classes`; labels as in `loss`."""
        return labels

    # The model

    @abstractmethod
    def n_outputs(self, task: Task) -> int:
        """C, the number of logits per row (or per token)."""

    def logits_shape(self, task: Task, max_length: int) -> tuple[int, ...]:
        """The shape of one row's logits for a model that reads `max_length` tokens."""
        return (self.n_outputs(task),)

    def build_head(self, task: Task, width: int, hidden: int, dropout: float) -> nn.Module:
        """Build a new head that maps encoder vectors of size `width` to logits; see `tasks.heads`."""
        from tasks.heads import Head

        return Head(width, self.n_outputs(task), hidden, dropout)

    # Losses

    @abstractmethod
    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """The loss against the labels, summed over labelled rows and computed in float32.

        Unlabelled rows are ignored. If no row is labelled, the total is 0 and still has a gradient.

        Args:
            logits: (B, C), or (B, 2, L) if `predicts_spans`.
            labels: (B,) or (B, K) float, NaN = unlabelled.
            groups: (B,) integer ids of the candidate groups, for types with groups.
        """

    def count_items(self, task: Task, labels: Tensor, groups: Tensor | None = None) -> int:
        """The number of items that `loss` sums over."""
        missing = labels.isnan()
        return int((~(missing if labels.dim() == 1 else missing.any(1))).sum())

    def softmax_logits(self, logits: Tensor) -> Tensor | None:
        """(..., C): the logits, arranged so that a softmax over the last axis gives probabilities.

        Soft-label losses compare these distributions of student and teacher. None if the outputs are scores,
        which are compared directly.
        """
        return logits

    # Predictions

    @abstractmethod
    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        """Convert logits to predictions that can be compared with labels.

        Args:
            logits: (n, C).
            groups: (n,) ids of the candidate groups.
            threshold: a result of `best_threshold`; None = the type's default.
        """

    def probabilities(self, task: Task, logits: np.ndarray, groups: np.ndarray | None) -> np.ndarray | None:
        """The probability of each label, (n, n_labels) float64; None if there are none."""
        return None

    def has_threshold(self, task: Task) -> bool:
        """True if predictions depend on a threshold that is tuned on validation rows."""
        return False

    def threshold_problem(self, task: Task, threshold: Any) -> str | None:
        """What is expected of a threshold that was read from a file; None if it can be one."""
        return None

    def best_threshold(self, task: Task, logits: np.ndarray, labels: np.ndarray) -> Any:
        """The threshold with the best score on labelled rows, as plain JSON; None if the type has none.

        Args:
            logits: (n, C).
            labels: (n,) or (n, K) float64, NaN = unlabelled.
        """
        return None

    def constant_predictions(self, task: Task, labels: np.ndarray) -> list[Any]:
        """Candidates for the constant prediction, from which `best_constant` chooses; by default none.

        Args:
            labels: (n,) or (n, K) float64, without NaN.

        Returns:
            Predictions for one row: each is a number, or a (K,) array if a row has K labels.
        """
        return []

    def evaluate(
        self, task: Task, split: str, encoded: Encoded, logits: np.ndarray, layout: Layout, threshold: Any
    ) -> SplitScores:
        """Score logits against the labels of a split.

        Args:
            logits: (n, C), or (w, 2, L) of windows if `predicts_spans`.
            layout: how the tokeniser joins two texts.
            threshold: None = tune it on these rows.

        Raises:
            UserError: the split is not labelled.
        """
        labels, groups = encoded.labels, encoded.groups
        if threshold is None and self.has_threshold(task):
            threshold = self.best_threshold(task, logits, labels)
        predictions = self.decode(task, logits, groups, threshold)
        scores = score(task, predictions, labels, groups, scores=logits, split=split)
        ranked = None if groups is None else np.asarray(logits, np.float64).reshape(-1)
        rows = RowPredictions(
            encoded.uids,
            labels,
            predictions.astype(np.float64),
            groups,
            ranked,
            probabilities=self.probabilities(task, logits, groups),
        )
        majority = float("nan")
        if constant := self.best_constant(task, rows):
            majority = score(task, constant.predictions, labels, groups, scores=constant.scores).primary
        return SplitScores(len(labels), scores.by_metric, majority, {}, threshold, rows)

    def best_constant(self, task: Task, rows: RowPredictions) -> RowPredictions | None:
        """The same prediction for all rows: the one with the best score on them; None without candidates."""
        zeros = np.zeros(rows.labels.shape)
        ranked = None if rows.groups is None else zeros
        candidates = [
            replace(rows, predictions=zeros + value, scores=ranked, probabilities=None)
            for value in self.constant_predictions(task, rows.labels)
        ]

        def primary(rows: RowPredictions) -> float:
            return score(task, rows.predictions, rows.labels, rows.groups, scores=ranked).primary

        return max(candidates, key=primary, default=None)

    def records(
        self, task: Task, encoded: Encoded, logits: np.ndarray, layout: Layout, threshold: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield what `mtkd predict` adds to each input row, as plain JSON.

        Args:
            threshold: the threshold tuned on validation rows; None = the type's default.
        """
        all_probabilities = self.probabilities(task, logits, encoded.groups)
        for row, value in enumerate(self.decode(task, logits, encoded.groups, threshold)):
            yield self.record(task, value, None if all_probabilities is None else all_probabilities[row])

    def predictions_problem(self, task: Task, rows: RowPredictions) -> str | None:
        """Why predictions that were read from a file cannot belong to a task; None if they can.

        By default, each row must have one number, which is the id of a label for types with `labels`.
        """
        return numbers_problem(task, rows, ids="labels" in self.fields)

    def record(self, task: Task, prediction: Any, probabilities: np.ndarray | None) -> dict[str, Any]:
        """The record of one row, from its results of `decode` and `probabilities`.

        By default the label's name and id, and the probability of each label if there are probabilities.
        """
        label = int(prediction)
        record = {"prediction": task.labels[label], "prediction_id": label}
        if probabilities is None:
            return record
        by_name = {name: round(float(p), 6) for name, p in zip(task.labels, probabilities, strict=True)}
        return record | {"probabilities": by_name}
