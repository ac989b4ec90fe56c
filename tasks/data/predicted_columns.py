"""Adding predictions to rows: as columns of a DataFrame, or as a list of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.common.errors import UserError
from tasks.data.loading import unlabelled_rows
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.rows_in_memory import rows_to_predict
from tasks.data.tables import is_frame, with_columns
from tasks.task import Task


def predict_in_memory(
    predict: Callable[[Rows], Iterable[dict[str, Any]]], task: Task, rows: Any, replace: bool = False
) -> Any:
    """Predict rows in memory; see `mtkd.Model.predict`.

    Args:
        predict: yields the record of each row (`TaskType.records`).
        replace: replace columns of a DataFrame that have the name of an added column.

    Returns:
        A list of records, or for a DataFrame a copy with more columns, also if it has no rows.

    Raises:
        UserError: a row is invalid, or a column is missing or would be replaced.
    """
    found = rows_to_predict(task, rows)
    if not is_frame(rows):
        return [] if found is None else list(predict(found))
    records = list(predict(example_row(task) if found is None else found))
    if not replace:
        require_free(list(rows.columns), records[0], "the DataFrame")
    columns = {key: [record[key] for record in records] for key in records[0]}
    if found is None:  # columns without values, of the types that they have in other frames
        example = type(rows)(columns).head(0)
        columns = {key: example[key] for key in columns}
    return with_columns(rows, columns)


def example_row(task: Task) -> Rows:
    """A made-up row. The keys of its record are the columns that predictions add to rows of the task."""
    names = dict.fromkeys([*task.columns, *([task.group] if task.group else [])])
    return unlabelled_rows(task, RawTable(pa.table({name: ["a"] for name in names}), "an example"))


def require_free(columns: Sequence[str], record: Mapping[str, Any], where: str) -> None:
    """Check that no column of the rows would be replaced by a column of the predictions.

    Args:
        columns: the columns of the rows.
        record: the values that are added to a row.

    Raises:
        UserError: a column has the name of an added one, including `probability_LABEL` in CSV and TSV.
    """
    labels = record.get("probabilities")
    names = [*record, *(f"probability_{label}" for label in (labels if isinstance(labels, dict) else ()))]
    if taken := [name for name in columns if name in names]:
        raise UserError(
            f"{where} already has the column {taken[0]!r}, which the predictions would replace",
            hint="rename it or leave it out, or replace such columns with `replace=True`",
        )
