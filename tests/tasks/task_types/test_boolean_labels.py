"""Boolean columns as classification labels."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task import Task


def read(directory: Path, labels: tuple[str, ...]) -> list[float]:
    task = Task("checks", "classify", ("text",), labels=labels)
    (directory / "checks").mkdir(exist_ok=True)
    rows = {"text": ["a", "b", "c"], "label": [True, False, True]}
    pq.write_table(pa.table(rows), directory / "checks" / "train.parquet")
    return load_rows(open_data(directory), task, "train").labels.tolist()


def test_booleans_match_labels_named_true_and_false_or_0_and_1(tmp_path: Path) -> None:
    assert read(tmp_path, ("0", "1")) == [1, 0, 1]
    assert read(tmp_path, ("False", "True")) == [1, 0, 1]
    assert read(tmp_path, ("true", "false")) == [0, 1, 0]


@pytest.mark.parametrize(
    "labels", [("refuted", "unclear", "supported"), ("no", "yes"), ("true", "false", "?")]
)
def test_booleans_are_not_ids_of_other_labels(labels: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="column 'label' holds bool") as refused:
        read(tmp_path, labels)
    assert refused.value.expected is not None and f"'{labels[0]}' (0)" in refused.value.expected
