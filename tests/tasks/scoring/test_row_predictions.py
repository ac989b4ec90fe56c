"""Predictions on disk: `RowPredictions.read` and `check` reject files that were changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

TOPICS = Task(name="topics", kind="multilabel", columns=("text",), labels=("a", "b"))
RANKED = TASKS["qnli_rank"]
UIDS = pa.array(["r/0", "r/1"])
ONES, LISTS = np.array([0.0, 1.0]), np.array([[0.0, 1.0], [1.0, 1.0]])
GOOD = {
    "rte": (TASKS["rte"], RowPredictions(UIDS, ONES, ONES, probabilities=np.full((2, 2), 0.5))),
    "stsb": (TASKS["stsb"], RowPredictions(UIDS, ONES * 3.5, ONES)),
    "topics": (TOPICS, RowPredictions(UIDS, LISTS, LISTS, probabilities=LISTS)),
    "rank": (RANKED, RowPredictions(UIDS, ONES, ONES, ONES.astype(int), ONES, probabilities=LISTS)),
    "squad": (
        TASKS["squad"],
        RowPredictions(UIDS, ONES, np.array(["x", ""], object), by_row={"exact_match": ONES, "f1": ONES}),
    ),
}


def damaged(name: str, path: Path, **columns: list[Any] | pa.Array | None) -> None:
    """Write the predictions of a task with columns replaced, or left out (None)."""
    task, rows = GOOD[name]
    rows.write(path, task.name, "validation")
    table = pq.read_table(path)
    for column, values in columns.items():
        table = table.drop_columns([column])
        if values is not None:
            table = table.append_column(column, pa.array(values))
    pq.write_table(table, path)


@pytest.mark.parametrize("name", GOOD)
def test_predictions_are_unchanged_after_writing_and_reading(name: str, tmp_path: Path) -> None:
    damaged(name, tmp_path / "p.parquet")
    found, (task, rows) = RowPredictions.read(tmp_path / "p.parquet"), GOOD[name]
    found.check(task, tmp_path / "p.parquet")
    assert found.uids.equals(rows.uids) and found.by_row.keys() == rows.by_row.keys()
    for key in ("labels", "predictions", "groups", "scores", "probabilities"):
        one, other = getattr(found, key), getattr(rows, key)
        assert np.array_equal(one, other) if other is not None else one is None


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("rte", {"label": ["x", "y"]}, "the column 'label' holds string, not numbers"),
        ("rte", {"label": [{"a": 1}] * 2}, "the column 'label' holds struct<a: int64>, not numbers"),
        ("rte", {"label": [float("inf"), 0.0]}, "the column 'label' has a number that is not finite"),
        ("rte", {"label": [1e9, 0.0]}, "are not ids of the 2 labels of 'rte'"),
        ("rte", {"label": [-1, 0]}, "are not ids of the 2 labels of 'rte'"),
        ("rte", {"label": [[0.1, 0.9], [0.0, 1.0]]}, "are not one number for each row"),
        ("rte", {"label": [[], []]}, "the column 'label' holds list<"),
        ("rte", {"label": None}, "it has no column 'label'"),
        ("rte", {"uid": None}, "it has no column 'uid'"),
        ("rte", {"uid": [1, 2]}, "the column 'uid' holds int64, not text"),
        ("rte", {"uid": ["a", None]}, "the column 'uid' has a null"),
        ("rte", {"prediction": [None, 1.0]}, "the column 'prediction' has a null"),
        ("rte", {"prediction": [[None], [1.0]]}, "the column 'prediction' has a null"),
        ("rte", {"prediction": ["entailment", "x"]}, "are not one number for each row"),
        ("rte", {"prediction": [0.5, 1.0]}, "are not ids of the 2 labels of 'rte'"),
        ("rte", {"probabilities": [[0.1, 0.2, 0.7]] * 2}, "its probabilities are not 2 for each row"),
        ("rte", {"probabilities": [[], [0.5]]}, "'probabilities' are empty or have different lengths"),
        ("rte", {"probabilities": ["x", "y"]}, "the column 'probabilities' holds string, not numbers"),
        ("topics", {"prediction": [0.0, 1.0]}, "are not lists of 2 numbers"),
        ("topics", {"prediction": [[0.0, 0.5]] * 2}, "are not lists of 0 and 1"),
        ("topics", {"label": [[0.0], [0.0, 1.0]]}, "'label' are empty or have different lengths"),
        ("rank", {"group": None}, "it has no columns 'group' and 'score'"),
        ("squad", {"prediction": [0.0, 1.0]}, "its predictions are not texts"),
        ("squad", {"metric.f1": None}, "it has no column 'metric.f1' of numbers"),
    ],
)
def test_invalid_values_are_rejected(
    name: str, columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.parquet"
    damaged(name, path, **columns)
    with pytest.raises(UserError, match=r"the predictions in .* cannot be read") as caught:
        RowPredictions.read(path).check(GOOD[name][0], path)
    assert message in caught.value.problem


def test_empty_files_and_files_that_are_not_parquet_are_rejected(tmp_path: Path) -> None:
    damaged("rte", path := tmp_path / "p.parquet")
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(UserError, match="it has no rows"):
        RowPredictions.read(path)
    path.write_bytes(b"\xff" * 99)
    with pytest.raises(UserError, match="cannot be read"):
        RowPredictions.read(path)
