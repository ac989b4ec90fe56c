"""`check` against counts made by plain loops and by hand."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data_report import SplitReport, report_on
from tasks.glue import TASKS
from tasks.sources import open_data
from tasks.task import Task

SHARED = Path(os.environ.get("MTKD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

PAIR = Task(name="pair", kind="classify", columns=("a", "b"), labels=("no", "yes"), test=())
TRAIN = [("x y", "z", 0), ("x y", "z", 0), ("x y", "z", 1), ("x", "y z", 1), ("", "three word text", 9)]
VALIDATION = [("x y", "z", 1), ("z", "x y", 0), (None, "c", 1)]


def write(path: Path, rows: list[tuple], names: tuple[str, ...] = ("a", "b", "label")) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)


def test_hand_made_splits(tmp_path: Path) -> None:
    write(tmp_path / "pair/train.parquet", TRAIN)
    write(tmp_path / "pair/validation.parquet", VALIDATION)
    report = report_on(open_data(str(tmp_path)), [PAIR])
    train, validation = report.splits
    assert (train.rows, train.duplicates, train.overlap) == (5, 1, None)
    assert [(count.label, count.rows) for count in train.balance] == [("no", 2), ("yes", 2)]
    assert [(length.mean, length.median, length.max) for length in train.lengths] == [
        (1.4, 2, 2),
        (1.6, 1, 3),
    ]
    assert [(problem.place[-5:], problem.column, problem.level) for problem in train.problems] == [
        ("row 4", "a", "warning"),
        ("row 4", "label", "error"),
    ]
    assert (validation.overlap, validation.overlap_share) == (1, 1 / 3)  # "x y","z": with whatever label
    assert [problem.message for problem in validation.problems] == ["null instead of text"]
    assert report.errors == 2
    value = json.loads(json.dumps(report.to_json()))
    assert value["errors"] == 2 and value["splits"][1]["overlap_share"] == pytest.approx(1 / 3)


def test_every_bad_line_is_listed_and_the_rest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    lines = [json.dumps({"a": "t", "b": str(n), "label": n % 2}) for n in range(20)]
    lines[3], lines[7], lines[11] = "{", '{"a": 1}', '{"a": "t", "b": "u", "label": 5}'
    (tmp_path / "pair/train.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "pair/validation.csv").write_text("a,label\nt,1\n")
    report = report_on(open_data(str(tmp_path)), [PAIR, TASKS["rte"]])
    (train,) = report.splits
    assert [problem.place.rsplit(":", 1)[1] for problem in train.problems] == ["4", "8", "12"]
    assert train.rows == 18 and sum(count.rows for count in train.balance) == 17
    assert [problem.place for problem in report.problems] == ["pair/validation", "rte"]
    assert "no column 'b'" in report.problems[0].message
    assert report.errors == 5


def test_spans(tmp_path: Path) -> None:
    answers = [
        {"text": ["cat"], "answer_start": [4]},
        {"text": ["cat"], "answer_start": [5]},
        {"text": [], "answer_start": []},
        {"text": ["a", "b"], "answer_start": [0]},
    ]
    rows = [(f"i{n % 3}", "the cat", f"q{n}", answer) for n, answer in enumerate(answers)]
    write(tmp_path / "squad/train.parquet", rows, ("id", "context", "question", "answers"))
    (train,) = report_on(open_data(str(tmp_path)), [TASKS["squad"]]).splits
    assert [(problem.place[-5:], problem.column) for problem in train.problems] == [
        ("row 1", "answers"),
        ("row 3", "answers"),
        ("row 3", "id"),
    ]
    assert [(count.label, count.rows) for count in train.balance] == [("answer", 3), ("no answer", 1)]


def test_pocket_is_clean() -> None:
    tasks = list(TASKS.values())
    report = report_on(open_data("pocket"), tasks)
    assert [str(problem) for problem in report.all_problems] == []
    assert len(report.splits) == sum(len(task.splits) for task in tasks)
    assert not any(split.overlap or split.duplicates for split in report.splits)


def plain(path: Path, columns: tuple[str, ...], train: set | None) -> tuple[int, int | None, list[float]]:
    """Duplicates, overlap and mean lengths by a plain loop."""
    rows = pq.read_table(path).to_pylist()
    seen = Counter((*(row[name] for name in columns), row["label"]) for row in rows)
    overlap = None if train is None else sum(tuple(row[name] for name in columns) in train for row in rows)
    means = [statistics.mean(len(row[name].split()) for row in rows) for name in columns]
    return sum(seen.values()) - len(seen), overlap, means


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")
@pytest.mark.parametrize("name", ["cola", "stsb", "rte"])
def test_real_data_against_a_plain_loop(name: str) -> None:
    task = TASKS[name]
    report = report_on(open_data(str(SHARED)), [task])
    assert report.errors == 0
    folder = SHARED / "glue" / name
    known = {
        tuple(row[c] for c in task.columns) for row in pq.read_table(folder / "train.parquet").to_pylist()
    }
    for split in report.splits:
        reference = known if split.split != "train" else None
        duplicates, overlap, means = plain(folder / f"{split.split}.parquet", task.columns, reference)
        assert (split.duplicates, split.overlap) == (duplicates, overlap)
        np.testing.assert_allclose([length.mean for length in split.lengths], means)
        assert sum(count.rows for count in split.balance) == split.rows


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")
def test_real_squad_answers_are_in_their_contexts() -> None:
    splits: dict[str, SplitReport] = {
        s.split: s for s in report_on(open_data(str(SHARED)), [TASKS["squad"]]).splits
    }
    assert (splits["train"].rows, splits["validation"].rows) == (87599, 10570)
    assert not [p for split in splits.values() for p in split.problems if p.column == "answers"]


def test_a_column_that_nothing_reads_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    row = '{"sentence1": "a b", "sentence2": "a", "label": 0, "lable": 1, "idx": 3}\n'
    (tmp_path / "rte" / "train.jsonl").write_text(row, encoding="utf-8")
    report = report_on(open_data(str(tmp_path)), [TASKS["rte"]])
    found = [problem for split in report.splits for problem in split.problems]
    assert [(problem.column, problem.level) for problem in found] == [("lable", "warning")]
