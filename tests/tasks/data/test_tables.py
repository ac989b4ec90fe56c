"""Tables of rows in memory: every common type is read, and columns that no task reads do not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.rows_in_memory import rows_to_predict, texts_to_encode
from tasks.data.sources import open_data
from tasks.data.tables import as_table
from tasks.task import Task

OWN = Task(name="own", kind="classify", columns=("one", "two"), labels=("no", "yes"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "b"], "mixes types: int in row 0, str in row 1"),
        ([0, 2**63], "holds 9223372036854775808 in row 1, which does not fit in a signed 64-bit integer"),
        (torch.tensor([0, 1]), "is a Tensor, which cannot be read"),
        (np.zeros((2, 2, 2)), "is an ndarray, which cannot be read"),
    ],
)
def test_columns_that_arrow_cannot_hold_are_errors_only_if_they_are_used(values: Any, message: str) -> None:
    columns = {"one": ["a", "b"], "two": ["c", "d"], "label": [0, 1]}
    tables: list[Any] = [columns | {"more": values}]
    if isinstance(values, list):
        tables.append(pandas.DataFrame(tables[0], dtype=object))
        tables.append(
            [dict(zip(tables[0], row, strict=True)) for row in zip(*tables[0].values(), strict=True)]
        )
    for table in tables:
        source = open_data({"own": {"train": table}})
        assert load_rows(source, OWN, "train").labels.tolist() == [0, 1]
        with pytest.raises(UserError, match=f"memory:own/train: the column 'more' {message}"):
            load_rows(source, replace(OWN, label="more"), "train")


def test_an_error_about_a_lone_surrogate_names_its_row() -> None:
    single, broken = replace(OWN, columns=("one",)), "b\ud800"
    columns = {"one": ["a", broken, None], "label": [0, 1, 0]}
    frame = pandas.DataFrame(columns, dtype=object)
    records = [{"one": text} for text in columns["one"]]
    tables: list[Any] = [frame, frame["one"], columns, records, columns["one"][:2], np.array(["a", broken])]
    for table in tables:
        with pytest.raises(UserError, match=r"the column 'one' holds 'b.*' in row 1, which") as refused:
            rows_to_predict(single, table)
        assert refused.value.expected == "text without lone surrogates, which UTF-8 cannot hold"
        assert refused.value.hint is not None and "errors='replace'" in refused.value.hint
        str(refused.value).encode()
    with pytest.raises(UserError, match="memory:own/train: the column 'one' holds"):
        load_rows(open_data({"own": {"train": frame[:2]}}), single, "train")
    with pytest.raises(UserError, match=r"the column 'two' holds 'b.*' in row 0"):
        rows_to_predict(OWN, [("a", broken)])
    unused = pandas.DataFrame({"one": ["a"], "more": [broken]}, dtype=object)
    assert rows_to_predict(single, unused) is not None


def test_vectors_of_numpy_are_read_in_every_kind_of_table() -> None:
    vectors = np.array([[0.25, 0.75], [0.5, 0.5]])
    columns = {"one": ["a", "b"], "two": ["c", "d"]}
    soft = replace(OWN, soft_labels="soft")
    tables: list[Any] = [
        columns | {"soft": vectors},
        columns | {"soft": list(vectors)},
        pandas.DataFrame(columns | {"soft": list(vectors)}),
        [{"one": one, "two": "c", "soft": vector} for one, vector in zip("ab", vectors, strict=True)],
    ]
    for table in tables:
        rows = load_rows(open_data({"own": {"train": table}}), soft, "train")
        assert rows.soft is not None and np.exp(rows.soft) == pytest.approx(vectors)
    pairs = [np.array(["a", "c"]), np.array(["b", "d"])]
    assert as_table(pairs, ("one", "two")).to_pydict() == columns


def test_a_single_text_or_row_must_be_in_a_list() -> None:
    single = replace(OWN, columns=("one",))
    frame = pandas.DataFrame({"one": ["a", "c"], "note": ["b", "d"]})
    with pytest.raises(UserError, match="an ndarray without dimensions") as refused:
        rows_to_predict(single, np.array("a film"))
    assert refused.value.hint == "for one row: `[value]`"
    with pytest.raises(UserError, match="an ndarray without dimensions"):
        texts_to_encode(np.array("a film"))
    with pytest.raises(UserError, match="a single row of a DataFrame") as refused:
        rows_to_predict(single, frame.iloc[0])
    assert refused.value.hint == "for one row: `frame.iloc[[0]]`"
    for rows in (frame.iloc[[0]], frame["one"][:1], np.array(["a"])):
        found = rows_to_predict(single, rows)
        assert found is not None and found.texts[0].to_pylist() == ["a"]


def test_a_multi_index_holds_tuples_but_cannot_name_columns() -> None:
    pairs = pandas.MultiIndex.from_tuples([("a", "b"), ("c", "d")])
    found = rows_to_predict(OWN, pairs)
    assert found is not None and [text.to_pylist() for text in found.texts] == [["a", "c"], ["b", "d"]]
    with pytest.raises(UserError, match="the names of its columns are a MultiIndex"):
        rows_to_predict(OWN, pandas.DataFrame([["e", "f"]], columns=pairs))
