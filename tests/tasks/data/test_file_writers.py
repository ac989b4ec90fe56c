"""Columns whose first rows do not determine their type, and values that a format stores as text."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.file_writers import open_writer
from tasks.data.raw_table import RawTable

BEST = [{"text": "a", "start": 3, "score": 0.5}]
SPANS = [
    {"prediction": "", "start": None, "score": None, "no_answer_score": 1.0, "n_best": []},
    {"prediction": "a", "start": 3, "score": 0.5, "no_answer_score": 0.0, "n_best": BEST},
]
SETS = [
    {"prediction": [], "probabilities": {"x": 0.1, "y": 0.2}},
    {"prediction": ["x", "y"], "probabilities": {"x": 0.9, "y": 0.8}},
]


def write(out: Path, suffix: str, parts: list[dict[str, Any]], column: list[Any]) -> None:
    """Write one row per part, with the column `kept`."""
    with open_writer(out, suffix) as add:
        for value, more in zip(column, parts, strict=True):
            add(RawTable(pa.table({"kept": [value]}), "rows"), [more])


@pytest.mark.parametrize("parts", [SPANS, SETS], ids=["spans", "sets"])
def test_nulls_and_empty_lists_come_before_values(tmp_path: Path, parts: list[dict[str, Any]]) -> None:
    write(tmp_path / "out", ".parquet", parts, [None, "later"])
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert found == [{"kept": kept, **part} for kept, part in zip([None, "later"], parts, strict=True)]
    write(tmp_path / "out", ".jsonl", parts, [None, "later"])
    assert [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()] == found


def test_lists_are_json_and_labels_are_columns_in_csv(tmp_path: Path) -> None:
    write(tmp_path / "dates.csv", ".csv", SETS, [None, datetime.date(2024, 2, 29)])
    assert (tmp_path / "dates.csv").read_text().splitlines()[2].startswith("2024-02-29,")
    write(tmp_path / "out.csv.gz", ".csv", SETS, [None, "two\nlines"])
    with gzip.open(tmp_path / "out.csv.gz", "rt", newline="", encoding="utf-8") as handle:
        rows = list(csv.reader(handle))
    assert rows == [
        ["kept", "prediction", "probability_x", "probability_y"],
        ["", "[]", "0.1", "0.2"],
        ["two\nlines", '["x", "y"]', "0.9", "0.8"],
    ]


def test_values_that_a_format_cannot_hold_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows, row 0: 'two.nlines' has a tab or a line break"):
        write(tmp_path / "out.tsv", ".tsv", SETS, [None, "two\nlines"])
    with pytest.raises(UserError, match="a column has values of another type than before"):
        write(tmp_path / "out.parquet", ".parquet", SETS, [1, "x"])
    for values in ([1, "007"], [True, 2], [[1], ["007"]]):  # a cast would change the second value
        with pytest.raises(UserError, match=r"another type than before: 'kept' held .*, now"):
            write(tmp_path / "out.parquet", ".parquet", SETS, values)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**60], pa.timestamp("us")),
        pa.array([2**60], pa.date64()),
        pa.array([2**30], pa.date32()),
        pa.array([0], pa.timestamp("us", "Evil/Zone")),
        pa.StructArray.from_arrays([pa.array([2**60], pa.timestamp("us"))], ["a"]),
        pa.array([b"\xff"]).view(pa.string()),
    ],
)
def test_values_that_python_cannot_hold_name_their_column(column: pa.Array, tmp_path: Path) -> None:
    problem = r"rows: the column 'kept' holds a .* that cannot be written as text"
    with pytest.raises(UserError, match=problem), open_writer(tmp_path / "out.csv", ".csv") as add:
        add(RawTable(pa.table({"kept": column}), "rows"), [{"prediction": "p"}])
    assert not list(tmp_path.iterdir())


def test_a_table_without_fields_cannot_be_parquet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rows: a column cannot be written as parquet"):
        write(tmp_path / "out.parquet", ".parquet", SETS[:1], [{}])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_only_json_lines_accept_a_field_that_first_appears_later(tmp_path: Path, suffix: str) -> None:
    def write_parts() -> None:
        with open_writer(tmp_path / "out", suffix) as add:
            add(RawTable(pa.table({"a": ["x"]}), "rows"), [{"prediction": "p"}])
            add(RawTable(pa.table({"a": ["y"], "later": [1]}), "rows", first=1), [{"prediction": "q"}])

    if suffix != ".jsonl":
        with pytest.raises(UserError, match="rows, row 1: from about here on, rows have the field 'later'"):
            write_parts()
        return
    write_parts()
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert found == [{"a": "x", "prediction": "p"}, {"a": "y", "later": 1, "prediction": "q"}]
