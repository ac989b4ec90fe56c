"""Soft labels in the data: their forms, their conversion, and invalid rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit, softmax

from tasks.common.errors import UserError
from tasks.data.loading import digest_rows, load_rows
from tasks.data.raw_table import RawTable
from tasks.data.soft_labels import read_soft_labels
from tasks.data.sources import open_data
from tasks.task import Task
from tasks.task_names import resolve

MOOD = Task("mood", "classify", ("text",), ("bad", "so-so", "good"), soft_labels="probs")
TOPICS = Task("topics", "multilabel", ("text",), ("a", "b"), soft_labels="probs")
SCORE = Task("score", "regress", ("text",), range=(0.0, 5.0), soft_labels="probs")
PROBABILITIES = [[0.1, 0.2, 0.7], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]


def read(task: Task, cells: Any, **changes: Any) -> tuple[np.ndarray, list[str]]:
    column = cells if isinstance(cells, pa.Array) else pa.array(cells)
    found = read_soft_labels(
        dataclasses.replace(task, **changes), RawTable(pa.table({"probs": column}), "file")
    )
    return found.logits, [f"{problem.row}: {problem.message}" for problem in found.problems]


@pytest.mark.parametrize(
    "cells",
    [
        PROBABILITIES,
        [json.dumps(row) for row in PROBABILITIES],
        [dict(zip(("Good", "BAD", "so so"), (row[2], row[0], row[1]), strict=True)) for row in PROBABILITIES],
        [
            json.dumps(dict(zip(("bad", "so-so", "good"), row, strict=True)), indent=1)
            for row in PROBABILITIES
        ],
        pa.array(
            [list(zip(("bad", "so-so", "good"), row, strict=True)) for row in PROBABILITIES],
            pa.map_(pa.string(), pa.float64()),
        ),
    ],
)
def test_probabilities_can_be_given_in_every_form(cells: Any) -> None:
    found, problems = read(MOOD, cells)
    assert problems == []
    np.testing.assert_allclose(softmax(found, 1), PROBABILITIES, atol=3e-4)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:2], np.log(PROBABILITIES[:2]), rtol=1e-12)


def test_logits_are_recognised_or_declared() -> None:
    logits = [[2.0, -1.0, 0.5], [0.1, 0.2, 0.7], [4.0, 0.0, -3.0]]
    assert read(MOOD, logits)[0].tolist() == logits
    among_them = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]
    assert read(MOOD, among_them, soft_labels_kind="logits")[0].tolist() == among_them
    _, problems = read(MOOD, logits, soft_labels_kind="probabilities")
    assert problems == [
        "0: 2, -1, 0.5 are not probabilities; expected: values from 0 to 1",
        "2: 4, 0, -3 are not probabilities; expected: values from 0 to 1",
    ]


def test_soft_labels_of_multilabel_and_regression_tasks() -> None:
    found, problems = read(TOPICS, [[0.9, 0.8], [0.5, 0.0]])
    assert problems == []
    np.testing.assert_allclose(expit(found), [[0.9, 0.8], [0.5, 0.0]], atol=2e-4)
    assert read(SCORE, [0.5, 4.5])[0].tolist() == [[0.5], [4.5]]
    assert read(SCORE, ["[0.5]", "4.5"])[0].tolist() == [[0.5], [4.5]]


NUMBERS = "expected: probabilities from 0 to 1, or logits between -1e+38 and 1e+38"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("[0.5, 0.3, 0.1]", "0.5, 0.3, 0.1 sum to 0.9; expected: 1"),
        ("[0.6, 0.6, -0.2]", "are not probabilities"),
        ("[0.5, 0.5]", "2 values; expected: 3"),
        ('{"bad": 0.5, "good": 0.5}', "labels bad, good; expected: bad, so-so, good"),
        ('{"bad": 0.5, "good": 0.5, "ugly": 0}', "labels bad, good, ugly"),
        ("[0.5, 0.5, NaN]", NUMBERS),
        ('[0.5, 0.5, "0"]', NUMBERS),
        ("[100000000000000000000000000000000000000000, 0, 0]", NUMBERS),  # no float32
        ("[1e308, 1e308, 0]", NUMBERS),
        ("0.5; 0.5", "is not JSON"),
        ("[" * 5000, "is not JSON"),
        (None, "no soft labels; expected: numbers in every training row"),
        ("", "no soft labels; expected: numbers in every training row"),
        ("nan", "no soft labels; expected: numbers in every training row"),
    ],
)
def test_invalid_soft_labels_are_rejected(cell: str | None, message: str) -> None:
    problems = read(MOOD, ["[0.2, 0.2, 0.6]", cell, "[1, 0, 0]"])[1]
    assert len(problems) == 1 and problems[0].startswith("1: ") and message in problems[0]


def test_labels_in_a_mapping_must_be_strings() -> None:
    cells = pa.array([[(b"bad", 0.5), (b"good", 0.5)]], pa.map_(pa.binary(), pa.float64()))
    assert read(MOOD, cells)[1] == ["0: the label b'bad' is not text; expected: bad, so-so, good"]


def test_booleans_among_numbers_are_rejected(tmp_path: Path) -> None:
    task = write(tmp_path, [])
    task = dataclasses.replace(task, files={**task.files, "train": str(tmp_path / "train.jsonl")})
    rows = ['{"text": "a", "probs": [0.2, 0.2, 0.6]}', '{"text": "b", "probs": [true, false, false]}']
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    with pytest.raises(UserError, match=r"\[True, False, False\]; expected: probabilities"):
        load_rows(open_data(tmp_path), task, "train")


def test_percentages_are_rejected() -> None:
    """Read as logits, 90 against 5 and 5 would mean certainty about the first label."""
    _, problems = read(MOOD, [[90, 5, 5], [33.3, 33.3, 33.3], [0, 100, 0]])
    assert problems[0].startswith("0: 90, 5, 5 are not probabilities") and len(problems) == 3
    assert all(problem.endswith("they look like percentages: divide them by 100") for problem in problems)
    _, problems = read(MOOD, [[90, 5, 5]], soft_labels_kind="probabilities")
    assert "percentages" in problems[0]
    declared = [[90.0, 5.0, 5.0]]
    assert read(MOOD, declared, soft_labels_kind="logits")[0].tolist() == declared
    _, problems = read(TOPICS, [[95, 80], [0, 1]])
    assert len(problems) == 1 and "percentages" in problems[0]
    assert read(TOPICS, [[3.5, 0.2], [2.0, 1.0]])[1] == []  # not percentages: none is above 20


def test_scores_on_another_scale_are_rejected() -> None:
    assert read(SCORE, [5.2, -0.3, 2.0])[1] == [], "a model may give scores a little outside the range"
    assert read(SCORE, [80, 4.0])[1] == ["0: 80 is far outside the range; expected: 0 to 5"]
    assert read(SCORE, [80, 4.0], range=None)[1] == []


def test_soft_labels_in_another_order_than_the_labels_are_rejected(tmp_path: Path, mtkd: Any) -> None:
    rows = [("bad", 0), ("so-so", 1), ("good", 2)] * 10
    probs = [[0.8 if column == number else 0.1 for column in range(3)] for _, number in rows]
    lines = [f'"text {n}",{rows[n][0]},"{json.dumps(probs[n])}"' for n in range(30)]
    task = write(tmp_path, lines, "text,label,probs")
    assert len(load_rows(open_data(tmp_path), task, "train")) == 30
    checked = mtkd("data", "check", "--data", tmp_path, "--tasks", tmp_path / "mood.toml")
    assert checked.code == 0 and "mood/train: the soft labels are read as probabilities" in checked.out
    rolled = [f'"text {n}",{rows[n][0]},"{json.dumps(probs[n][1:] + probs[n][:1])}"' for n in range(30)]
    task = write(tmp_path, rolled, "text,label,probs")
    order = "as bad, so-so, good, they agree with 0 of 30 labels .* as so-so, good, bad, with 30"
    with pytest.raises(UserError, match=rf"column 'probs': the soft labels seem to be .*{order}"):
        load_rows(open_data(tmp_path), task, "train")
    checked = mtkd("data", "check", "--data", tmp_path, "--tasks", tmp_path / "mood.toml")
    assert checked.code == 2 and "as so-so, good, bad, with 30" in checked.out
    # unlabelled rows and too few rows decide nothing
    write(tmp_path, [line.replace("bad", "").replace("good", "") for line in rolled], "text,label,probs")
    assert len(load_rows(open_data(tmp_path), task, "train")) == 30
    write(tmp_path, rolled[:3], "text,label,probs")
    assert len(load_rows(open_data(tmp_path), task, "train")) == 3


TOML = """
name = "mood"
kind = "classify"
columns = ["text"]
labels = ["bad", "so-so", "good"]
soft_labels = "probs"

[files]
train = "train.csv"
validation = "validation.jsonl"
"""


def write(directory: Path, rows: list[str], header: str = "text,probs") -> Task:
    (directory / "mood.toml").write_text(TOML)
    (directory / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    (directory / "validation.jsonl").write_text('{"text": "fine", "label": "good"}\n')
    return resolve(str(directory / "mood.toml"))[0]


def test_a_file_may_have_soft_labels_without_labels(tmp_path: Path) -> None:
    task = write(tmp_path, ['sad,"[0.7, 0.2, 0.1]"', 'ok,"{""good"": 0.2, ""bad"": 0.2, ""so-so"": 0.6}"'])
    rows = load_rows(open_data(tmp_path), task, "train")
    assert np.isnan(rows.labels).all() and rows.soft is not None
    np.testing.assert_allclose(np.exp(rows.soft), [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2]])
    np.testing.assert_allclose(np.exp(rows.take(np.array([1])).soft), [[0.2, 0.6, 0.2]])  # type: ignore[arg-type]
    validation = load_rows(open_data(tmp_path), task, "validation")
    assert validation.soft is None and validation.labels.tolist() == [2.0]
    before = digest_rows(rows)
    write(tmp_path, ['sad,"[0.6, 0.3, 0.1]"', 'ok,"{""good"": 0.2, ""bad"": 0.2, ""so-so"": 0.6}"'])
    assert digest_rows(load_rows(open_data(tmp_path), task, "train")) != before


def test_an_invalid_row_is_named_by_its_line(tmp_path: Path, mtkd: Any) -> None:
    task = write(tmp_path, ['sad,bad,"[0.7, 0.2, 0.1]"', 'ok,,"[0.7, 0.1, 0.1]"'], "text,label,probs")
    with pytest.raises(UserError, match=r"train\.csv:3: column 'probs': .* sum to 0\.9; expected: 1"):
        load_rows(open_data(tmp_path), task, "train")
    checked = mtkd("data", "check", "--data", tmp_path, "--tasks", tmp_path / "mood.toml")
    assert checked.code == 2 and "sum to 0.9" in checked.out + checked.err
    task = write(tmp_path, ["sad,bad"], "text,label")
    with pytest.raises(UserError, match="has no column 'probs'"):
        load_rows(open_data(tmp_path), task, "train")


def test_tasks_that_cannot_have_soft_labels(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('extends = "squad"\nname = "t"\nsoft_labels = "probs"\n')
    with pytest.raises(UserError, match="span tasks cannot have soft labels"):
        resolve(str(file))
    file.write_text('extends = "sst2"\nname = "t"\nsoft_labels = "probs"\nsoft_labels_kind = "odds"\n')
    with pytest.raises(UserError, match="probabilities or logits"):
        resolve(str(file))
