"""Boolean columns as labels."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.guess import guess_task
from tasks.task import Task

PLAIN = pa.array([True, False, True])
CATEGORICAL = pa.DictionaryArray.from_arrays([1, 0, 1], pa.array([False, True]))


def rows_of(column: pa.Array) -> pa.Table:
    return pa.table({"text": ["a", "b", "c"], "label": column})


def read(column: pa.Array, labels: tuple[str, ...]) -> list[float]:
    task = Task("checks", "classify", ("text",), labels=labels)
    source = open_data({"checks": {"train": rows_of(column)}})
    return load_rows(source, task, "train").labels.tolist()


@pytest.mark.parametrize("column", [PLAIN, CATEGORICAL])
def test_booleans_match_labels_named_true_and_false_or_0_and_1(column: pa.Array) -> None:
    assert read(column, ("0", "1")) == [1, 0, 1]
    assert read(column, ("False", "True")) == [1, 0, 1]
    assert read(column, ("true", "false")) == [0, 1, 0]


@pytest.mark.parametrize("column", [PLAIN, CATEGORICAL])
@pytest.mark.parametrize(
    "labels", [("refuted", "unclear", "supported"), ("no", "yes"), ("true", "false", "?")]
)
def test_booleans_are_not_ids_of_other_labels(labels: tuple[str, ...], column: pa.Array) -> None:
    with pytest.raises(UserError, match="column 'label' holds bool") as refused:
        read(column, labels)
    assert refused.value.expected is not None and f"'{labels[0]}' (0)" in refused.value.expected


@pytest.mark.parametrize("column", [PLAIN, CATEGORICAL])
def test_booleans_are_not_scores(column: pa.Array) -> None:
    source = open_data({"checks": {"train": rows_of(column)}})
    with pytest.raises(UserError, match="column 'label' holds bool\n  expected: one number per row"):
        load_rows(source, Task("checks", "regress", ("text",)), "train")
    with pytest.raises(UserError, match="holds bool, not the labels of kind regress"):
        guess_task(rows_of(PLAIN), "rows", kind="regress")


def test_booleans_of_a_parquet_file_are_labels(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    pq.write_table(rows_of(PLAIN), tmp_path / "checks" / "train.parquet")
    task = Task("checks", "classify", ("text",), labels=("true", "false"))
    assert load_rows(open_data(tmp_path), task, "train").labels.tolist() == [0, 1, 0]
