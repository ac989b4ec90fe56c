"""Class names of `datasets`: in memory, in parquet files, and in tasks whose labels have another order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.class_names import class_names
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task import Task

TASK = Task("mail", "classify", ("text",), ("ham", "spam"), metrics=("accuracy",))


def data_set(names: list[str], labels: list[Any]) -> datasets.Dataset:
    kind: Any = datasets.ClassLabel(names=names)
    kind = datasets.List(kind) if isinstance(labels[0], list) else kind
    features = datasets.Features({"text": datasets.Value("string"), "label": kind})
    return datasets.Dataset.from_dict(
        {"text": [f"text {n}" for n in range(len(labels))], "label": labels}, features
    )


def read(data: datasets.Dataset, task: Task = TASK) -> list[Any]:
    source = open_data({task.name: {"train": data}})
    return load_rows(source, task, "train").labels.tolist()


def test_labels_are_matched_by_name_not_by_id(tmp_path: Path) -> None:
    data = data_set(["Spam", "HAM"], [0, 1, 1])
    assert read(data) == [1, 0, 0] and read(data.select([2, 0])) == [0, 1]
    data.to_parquet(tmp_path / "mail.parquet")
    of_file = replace(TASK, files={"train": str(tmp_path / "mail.parquet")})
    assert load_rows(open_data(None), of_file, "train").labels.tolist() == [1, 0, 0]


def test_lists_of_class_labels_are_matched_by_name() -> None:
    task = replace(TASK, kind="multilabel", metrics=("micro_f1",))
    assert read(data_set(["spam", "ham"], [[0], [1, 0], []]), task) == [[0, 1], [1, 1], [0, 0]]


def test_lists_of_one_length_are_matched_by_name() -> None:
    task = replace(TASK, kind="multilabel", labels=("ham", "spam", "news"), metrics=("micro_f1",))
    kind = datasets.List(datasets.ClassLabel(names=["news", "spam", "ham"]), length=2)
    features = datasets.Features({"text": datasets.Value("string"), "label": kind})
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [[0, 1], [2, 0]]}, features)
    assert pa.types.is_fixed_size_list(data.data.schema.field("label").type)
    assert read(data, task) == [[0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize("names", [["0", "1"], ["LABEL_0", "LABEL_1"]])
def test_class_names_that_are_only_numbers_are_ids(names: list[str]) -> None:
    assert read(data_set(names, [0, 1, 1])) == [0, 1, 1]


def test_unknown_class_names_are_an_error() -> None:
    with pytest.raises(UserError, match=r"called 'no', 'yes', and none of them is a label of task 'mail'"):
        read(data_set(["no", "yes"], [0, 1]))
    with pytest.raises(UserError, match="label 'phish'"):
        read(data_set(["spam", "phish"], [0, 1]))


FEATURES = '{"info": {"features": %s}}'


@pytest.mark.parametrize(
    "value", ["", "[", "[]", "{}", '{"info": 3}', FEATURES % "[1]", FEATURES % '{"label": 3}']
)
def test_metadata_of_other_programs_is_ignored(value: str, tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata({"huggingface": value})
    pq.write_table(table, tmp_path / "x.parquet")
    assert class_names(pq.read_schema(tmp_path / "x.parquet")) == {}
    names = {"info": {"features": {"gone": {"_type": "ClassLabel", "names": ["a"]}}}}
    assert class_names(table.replace_schema_metadata({"huggingface": json.dumps(names)}).schema) == {}
