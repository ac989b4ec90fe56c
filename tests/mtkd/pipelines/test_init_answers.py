"""`mtkd init` on tables whose answers are plain text: their positions are found."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import mtkd
from tasks.data.sources import PocketSource
from tasks.glue import TASKS


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """40 answerable questions, with the position of each answer."""
    found = [
        row for row in PocketSource().table(TASKS["squad"], "train").to_pylist() if row["answers"]["text"]
    ]
    return [
        {
            "question": row["question"],
            "passage": row["context"],
            "answer": row["answers"]["text"][0],
            "answer_start": row["answers"]["answer_start"][0],
        }
        for row in found[:40]
    ]


def labelled(directory: Path, name: str) -> dict[str, tuple[list[str], list[int]]]:
    """Question -> texts and positions of its answers, in the files that `mtkd init` wrote."""
    tables = [pq.read_table(directory / f"{name}-{split}.parquet") for split in ("train", "validation")]
    found = [row for table in tables for row in table.to_pylist()]
    return {row["question"]: (row["answers"]["text"], row["answers"]["answer_start"]) for row in found}


def test_positions_are_those_of_squad(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    made = mtkd.init_pipeline(write_csv(tmp_path / "qa.csv", rows), out=tmp_path / "job")
    assert made.task.kind == "span" and made.task.columns == ("question", "passage")
    assert not mtkd.check_data(None, str(made.task_file)).error_count
    expected = {row["question"]: ([row["answer"]], [row["answer_start"]]) for row in rows}
    assert labelled(tmp_path / "job", "qa") == expected
    assert len(mtkd.run_pipeline(made.pipeline, dry_run=True)) == 7


def test_other_answers_are_noted(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    for row in rows:
        del row["answer_start"]
    rows[0] |= {"passage": "category, dog, cat, cat", "answer": "cat"}
    rows[1]["answer"], rows[2]["answer"] = "", "not in the passage"
    made = mtkd.init_pipeline(write_csv(tmp_path / "qa.csv", rows), out=tmp_path / "job")
    assert made.task.unanswerable
    found = labelled(tmp_path / "job", "qa")
    assert found[rows[0]["question"]] == (["cat"], [15]) and found[rows[1]["question"]] == ([], [])
    assert rows[2]["question"] not in found and len(found) == len(rows) - 1
    notes = "\n".join(made.notes)
    assert "1 row left out" in notes and "1 empty answer: these questions count as unanswerable" in notes


def test_answers_that_are_classes_are_no_passages(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    for number, row in enumerate(rows):
        row |= {"answer": ("yes", "no")[number % 2]}
        del row["answer_start"]
    data = write_csv(tmp_path / "qa.csv", rows)
    made = mtkd.init_pipeline(data, label="answer", out=tmp_path / "job")
    assert made.task.kind == "classify" and made.task.labels == ("no", "yes")
