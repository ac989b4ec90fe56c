"""What a model predicted for each row of a labelled split, in memory and as parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.errors import UserError
from tasks.common.files import atomic_path
from tasks.data.raw_table import is_list_column

if TYPE_CHECKING:
    from tasks.task import Task

_NAMES = ("task", "split", "uid")  # columns that identify a row
_METRIC = "metric."  # prefix of the columns with the value of a metric on each row


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

    def write(self, path: Path, task: str, split: str, *, alone: bool = False) -> None:
        """Write a parquet file with the columns task, split, uid, label, prediction, and what else there is.

        Labels and predictions are class ids (lists of 0 and 1 for `multilabel`), scores or texts.
        Probabilities are written as lists of float32.

        Args:
            alone: see `atomic_path`.
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
        with atomic_path(path, alone=alone) as temporary:
            pq.write_table(pa.table(columns), temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> RowPredictions:
        """Read a file written by `write`.

        Raises:
            UserError: the file is missing or damaged, or a column holds something else.
        """
        try:
            table = pq.read_table(path).combine_chunks()
            columns = {name: _checked(name, table[name]) for name in table.column_names}
            values = {name: _values(name, column) for name, column in columns.items() if name not in _NAMES}
            return cls(
                columns["uid"],
                values["label"],
                values["prediction"],
                groups=values["group"].astype(np.int64) if "group" in values else None,
                scores=values.get("score"),
                by_row={
                    name.removeprefix(_METRIC): value
                    for name, value in values.items()
                    if name.startswith(_METRIC)
                },
                probabilities=values.get("probabilities"),
            )
        except KeyError as error:
            raise _unreadable(path, f"it has no column {error}") from error
        except (OSError, ValueError) as error:  # ValueError: also those of Arrow
            raise _unreadable(path, str(error)) from error

    def check(self, task: Task, where: Path) -> None:
        """Check that these can be predictions of a task; raises UserError, which names the file `where`."""
        if problem := task.type.predictions_problem(task, self):
            raise _unreadable(where, problem)


def _unreadable(path: Path, problem: str) -> UserError:
    return UserError(
        f"the predictions in {path} cannot be read: {problem}",
        hint="restore the file from a copy, or score the model again",
    )


def _checked(name: str, column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; raises ValueError if it is empty, has nulls or text that is not UTF-8."""
    if not len(column):
        raise ValueError("it has no rows")
    array = column.combine_chunks()
    array.validate(full=True)
    inner = array.flatten() if is_list_column(array.type) else array
    if array.null_count or inner.null_count:
        raise ValueError(f"the column {name!r} has a null")
    if name == "uid" and array.type != pa.string():
        raise ValueError(f"the column {name!r} holds {array.type}, not text")
    return array


def _values(name: str, column: pa.Array) -> np.ndarray:
    """(n,) or (n, K) float64, or (n,) texts; raises ValueError for anything else."""
    inner = column.flatten() if is_list_column(column.type) else column
    if name == "prediction" and column.type in (pa.string(), pa.large_string()):
        return np.array(column.to_pylist(), dtype=object)
    if not (pa.types.is_floating(inner.type) or pa.types.is_integer(inner.type)):
        raise ValueError(f"the column {name!r} holds {column.type}, not numbers")
    numbers = inner.to_numpy(zero_copy_only=False).astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"the column {name!r} has a number that is not finite")
    if inner is column:
        return numbers
    width, rest = divmod(len(numbers), len(column))
    if rest or not width or {len(row) for row in column} != {width}:
        raise ValueError(f"the lists in the column {name!r} are empty or have different lengths")
    return numbers.reshape(-1, width)


def numbers_problem(task: Task, rows: RowPredictions, *, ids: bool) -> str | None:
    """Why rows do not have one number each, or with `ids` the id of a label each; None if they do."""
    if rows.predictions.dtype == object or rows.predictions.ndim != 1 or rows.labels.ndim != 1:
        return "its labels and predictions are not one number for each row"
    if not ids:
        return None
    if not np.isin([rows.labels, rows.predictions], np.arange(len(task.labels))).all():
        return f"its labels and predictions are not ids of the {len(task.labels)} labels of {task.name!r}"
    return probabilities_problem(task, rows)


def probabilities_problem(task: Task, rows: RowPredictions) -> str | None:
    """Why the probabilities of rows are not those of a task's labels; None if they are, or there are none."""
    if rows.probabilities is None or rows.probabilities.shape == (len(rows), len(task.labels)):
        return None
    return f"its probabilities are not {len(task.labels)} for each row, one for each label of {task.name!r}"
