"""What a model predicted for each row of a labelled split, in memory and as parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import UserError
from tasks.common.files import atomic_path

_METRIC = "metric."  # starts the names of the columns with a metric's value on each row


@dataclass(frozen=True, eq=False)
class RowPredictions:
    """Predictions and labels of the n rows of one split.

    Attributes:
        uids: n unique names.
        labels: (n,) or (n, K) float64, without NaN; for `span` tasks 1 for an answer and 0 for none.
        predictions: the same shape, as returned by `TaskType.decode`; for `span` tasks (n,) texts.
        groups: (n,) int64 ids of the candidate groups (`rank`), or None.
        scores: (n,) float64, the model's score of each candidate (`rank`), or None.
        by_row: metric -> (n,) float64, for metrics that are the mean of a value of each row (`span`).
        probabilities: (n, C) float64, the probability of each label, or None.
    """

    uids: pa.StringArray
    labels: np.ndarray
    predictions: np.ndarray
    groups: np.ndarray | None = None
    scores: np.ndarray | None = None
    by_row: Mapping[str, np.ndarray] = field(default_factory=dict)
    probabilities: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def write(self, path: Path, task: str, split: str) -> None:
        """Write a parquet file with the columns task, split, uid, label, prediction, and what else there is.

        Labels and predictions are class ids (lists of 0 and 1 for `multilabel`), scores or texts.
        Probabilities are written as lists of float32.
        """
        columns: dict[str, Any] = {
            "task": pa.array([task] * len(self)).dictionary_encode(),
            "split": pa.array([split] * len(self)).dictionary_encode(),
            "uid": self.uids,
            "label": pa.array(self.labels.tolist()),
            "prediction": pa.array(self.predictions.tolist()),
        }
        more = {"group": self.groups, "score": self.scores}
        more |= {_METRIC + name: values for name, values in self.by_row.items()}
        columns |= {name: pa.array(values) for name, values in more.items() if values is not None}
        if self.probabilities is not None:
            flat = pa.array(self.probabilities.astype(np.float32).ravel())
            columns["probabilities"] = pa.FixedSizeListArray.from_arrays(flat, self.probabilities.shape[1])
        with atomic_path(path) as temporary:
            pq.write_table(pa.table(columns), temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> RowPredictions:
        """Read a file written by `write`.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            table = pq.read_table(path).combine_chunks()
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            labels, predictions = (
                np.array(columns.pop(name).to_pylist(), dtype=None) for name in ("label", "prediction")
            )
            by_row = {
                name.removeprefix(_METRIC): column.to_numpy()
                for name, column in columns.items()
                if name.startswith(_METRIC)
            }
            groups, scores = (
                columns[name].to_numpy() if name in columns else None for name in ("group", "score")
            )
            probabilities = None
            if "probabilities" in columns:
                flat = columns["probabilities"].flatten().to_numpy().astype(np.float64)
                probabilities = flat.reshape(len(labels), -1)
            return cls(columns["uid"], labels, predictions, groups, scores, by_row, probabilities)
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            raise UserError(f"the predictions in {path} cannot be read: {error}") from error
