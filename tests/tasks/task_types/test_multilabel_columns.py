"""Columns of labels of `multilabel` tasks: names, ids and multi-hot vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task import Task

VECTORS = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]


def read(labels: tuple[str, ...], column: list[Any]) -> list[list[float]]:
    task = Task("many", "multilabel", ("text",), labels=labels)
    rows = {"text": [f"text {number}" for number in range(len(column))], "label": column}
    return load_rows(open_data({"many": {"train": rows}}), task, "train").labels.tolist()


def test_multi_hot_vectors_are_read_as_such() -> None:
    columns: list[list[Any]] = [
        VECTORS,
        [list(map(bool, vector)) for vector in VECTORS],
        [list(map(float, vector)) for vector in VECTORS],
        list(map(json.dumps, VECTORS)),
        ["|".join(map(str, vector)) for vector in VECTORS],
    ]
    for column in columns:
        assert read(("a", "b", "c"), column) == VECTORS
    assert read(("a", "b"), [[0, 1], [1, 0], [0, 0]]) == [[0, 1], [1, 0], [0, 0]]
    assert read(("a", "b"), [[False, True]]) == [[0, 1]]


def test_lists_of_ids_are_not_multi_hot_vectors() -> None:
    assert read(("a", "b", "c"), [[0, 1], [2], [], [0, 1, 2]]) == [[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert read(("a", "b"), [[0, 1], [1]]) == [[1, 1], [0, 1]]
    assert read(("0", "1"), [["0", "1"], ["1", "0"]]) == [[1, 1], [1, 1]], "these are names"
    assert read(("a", "b"), [["a", "a"], ["b"]]) == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("labels", "column", "message"),
    [
        (
            ("a", "b", "c"),
            [[1, 0, 0], [2]],
            r"row 0: .*a number is repeated in \['1', '0', '0'\]; expected: .*3 zeros",
        ),
        (("0", "1", "2"), [[1, 0, 0], [0, 1, 0]], "a number is repeated in"),
        (
            ("a", "b"),
            [[0, 1], [1, 0]],
            r"\['0', '1'\] can be ids or one 0 or 1 per label; expected: names of labels",
        ),
    ],
)
def test_lists_that_may_be_ids_or_vectors_are_errors(
    labels: tuple[str, ...], column: list[Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(labels, column)
