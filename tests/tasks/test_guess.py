"""Guessing a task from a table: columns, labels and the task type."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tasks.common.errors import UserError
from tasks.data.sources import PocketSource
from tasks.glue import TASKS
from tasks.guess import guess_task
from tasks.guess_labels import without_label

TEXTS = [f"the cat number {n} sleeps" for n in range(40)]


def table(**columns: Any) -> pa.Table:
    """A table of 40 rows; shorter columns are repeated."""
    return pa.table({name: (list(values) * 40)[:40] for name, values in columns.items()})


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "mnli", "qnli", "rte", "squad_v2"])
def test_the_pocket_tasks_are_guessed_correctly(name: str) -> None:
    task = TASKS[name]
    guess = guess_task(PocketSource().table(task, "train"), name)
    assert (guess.kind, guess.columns, guess.label) == (task.kind, task.columns, task.label)
    if task.kind == "classify":
        assert guess.labels == tuple(map(str, range(len(task.labels))))
    assert guess.range == task.range and guess.unanswerable == task.unanswerable


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["b", "a", ""], "classify", ("a", "b")),
        (["b", "a", " ", "\t"], "classify", ("a", "b")),
        (["0.25", " ", "4.5"], "regress", (0.0, 5.0)),
        ([10, 9, 2], "classify", ("2", "9", "10")),
        (["10", "9.0", "2"], "classify", ("2", "9", "10")),
        ([True, False], "classify", ("0", "1")),
        (["1", "0", "-1", None], "classify", ("0", "1")),
        ([0.25, 4.5, 3.0], "regress", (0.0, 5.0)),
        (["0.25", "-1", "3"], "regress", (-1.0, 3.0)),
        ([["b"], ["a", "b"], []], "multilabel", ("a", "b")),
        (['["b"]', '["a", "b"]'], "multilabel", ("a", "b")),
        (["b|a", "a", "b", ""], "multilabel", ("a", "b")),
        (["b, a", "a", "b"], "multilabel", ("a", "b")),
        (["1,2", "3,1,2", "3", "1"], "multilabel", ("1", "2", "3")),
        (["3.5", "3.6", *["other"] * 3], "classify", ("3.5", "3.6", "other")),
        (["news, sports", "weather"], "classify", ("news, sports", "weather")),
    ],
)
def test_the_task_type_follows_from_the_values_of_the_label_column(
    labels: list[Any], kind: str, expected: tuple[Any, ...]
) -> None:
    guess = guess_task(table(text=TEXTS, label=labels), "rows")
    assert (guess.kind, guess.range if kind == "regress" else guess.labels) == (kind, expected)


def test_the_label_column_is_recognised_by_part_of_its_name_and_few_missing_values() -> None:
    gaps = ["high", "", "low", ""]
    columns = {"body": TEXTS, "priority": gaps, "Agent's Category": ["a", "b", "c"]}
    guess = guess_task(table(**columns), "rows")
    assert (guess.label, guess.other_labels) == ("Agent's Category", ("priority",))
    columns = {"body": TEXTS, "priority": gaps, "queue": ["a", "b", "c"]}
    guess = guess_task(table(**columns), "rows")
    assert (guess.label, guess.other_labels) == ("queue", ("priority",))
    guess = guess_task(table(text=TEXTS, priority=gaps, label=["a", "b"]), "rows")
    assert (guess.label, guess.other_labels) == ("label", ())


def test_integers_are_scores_if_the_column_name_suggests_it() -> None:
    stars = [1, 2, 3, 4, 5]
    assert guess_task(table(text=TEXTS, stars=stars), "rows").range == (1.0, 5.0)
    assert guess_task(table(text=TEXTS, label=stars), "rows").labels == ("1", "2", "3", "4", "5")
    assert guess_task(table(text=TEXTS, stars=stars), "rows", kind="classify").labels[0] == "1"


@pytest.mark.parametrize(
    ("columns", "chosen", "label"),
    [
        ({"id": range(40), "text": TEXTS, "label": [0, 1]}, ("text",), "label"),
        ({"Label": [0, 1], "Sentence1": TEXTS, "Sentence2": TEXTS}, ("Sentence1", "Sentence2"), "Label"),
        ({"subject": TEXTS, "body": TEXTS, "queue": ["a", "b", "c"]}, ("subject", "body"), "queue"),
        ({"source": ["the web site"], "comment": TEXTS, "class": [0, 1]}, ("comment",), "class"),
        ({"a": TEXTS, "b": TEXTS, "text": TEXTS, "target": [0, 1]}, ("text",), "target"),
        ({"a": TEXTS, "b": [f"{t} again" for t in TEXTS], "c": TEXTS, "y": [0, 1]}, ("b",), "y"),
        ({"text": TEXTS, "class_id": [3, 4, 5]}, ("text",), "class_id"),
        ({"text": TEXTS, "grade": ["not good at all for me", "good"]}, ("text",), "grade"),
        ({"word": [t.replace(" ", "") for t in TEXTS], "label": [0, 1]}, ("word",), "label"),
    ],
)
def test_text_and_label_columns_are_guessed(
    columns: dict[str, Any], chosen: tuple[str, ...], label: str
) -> None:
    guess = guess_task(table(**columns), "rows")
    assert (guess.columns, guess.label) == (chosen, label)


DAYS = [f"2024-05-{day:02d}" for day in range(1, 9)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("created_at", [f"{day}T10:00:00Z" for day in DAYS]),
        ("createdAt", ["today", "yesterday"]),
        ("day", DAYS),
        ("day", [datetime.date(2024, 5, day) for day in range(1, 9)]),
        ("when", ["31.05.2024 10:00", "1.6.2024 9:15"]),
        ("when", ["May 31, 2024", "1 June 2024", "Mon, 3 Jun 2024 08:00:00 GMT"]),
        ("seen", [1717142400 + n for n in range(8)]),
        ("hour", ["10:00", "11:30 pm", ""]),
        ("id", range(8)),
        ("user_id", ["u1", "u2"]),
        ("userID", [1, 2, 3]),
        ("reply", [f"we have sent you a new invoice on day {n}" for n in range(9)]),
        ("comment", ["fine", "bad"]),
    ],
)
def test_dates_ids_and_free_text_are_not_taken_for_labels(name: str, values: Any) -> None:
    rows = table(**{"text": TEXTS, name: values})
    with pytest.raises(UserError) as caught:
        guess_task(rows, "rows")
    error = str(caught.value)
    assert f"no column of rows looks like labels: the columns are text, {name}" in error
    assert "`label='COLUMN'`" in error and "labelled rows" in error
    guess = guess_task(rows.append_column("queue", pa.array(["a", "b"] * 20)), "rows")
    assert (guess.label, guess.other_labels) == ("queue", ())
    assert guess_task(rows, "rows", label=name, kind="classify").label == name


def test_many_different_values_are_labels_only_if_they_have_several_rows_each() -> None:
    rows = pa.table(
        {"text": [f"row number {n}" for n in range(120)], "who": [str(n % 30) for n in range(120)]}
    )
    with pytest.raises(UserError, match="no column of rows looks like labels"):
        guess_task(rows, "rows")
    assert len(guess_task(rows.rename_columns(["text", "sub category"]), "rows").labels) == 30
    fewer = rows.set_column(1, "who", pa.array([str(n % 24) for n in range(120)]))
    assert len(guess_task(fewer, "rows").labels) == 24


def test_given_settings_are_not_guessed() -> None:
    rows = table(a=TEXTS, text=TEXTS, label=[0, 1], other=["x", "y", "z"])
    guess = guess_task(rows, "rows", columns=["a"], label="other")
    assert (guess.columns, guess.label, guess.labels) == (("a",), "other", ("x", "y", "z"))


def test_rows_without_a_label_are_recognised() -> None:
    missing = pa.chunked_array([["a", "", None, "-1"]])
    assert without_label(missing, "classify").to_pylist() == [False, True, True, True]
    assert without_label(pa.chunked_array([["-1", "", "0.5"]]), "regress").to_pylist() == [False, True, False]
    lists = pa.chunked_array([[["a"], [], None]])
    assert without_label(lists, "multilabel").to_pylist() == [False, False, True]


BYTES = pa.array([b"a", b"\xff"] * 20, pa.binary(1))
TIMES = pa.array(range(40), pa.timestamp("us", "Evil/Zone"))
NOT_UTF8 = pa.array([b"\xff", b"a"] * 20).view(pa.string())


def test_columns_that_cannot_be_text_are_left_out() -> None:
    rows = table(text=TEXTS, label=["a", "b"]).append_column("time", TIMES).append_column("bytes", BYTES)
    guess = guess_task(rows, "rows")
    assert (guess.columns, guess.label, guess.labels) == (("text",), "label", ("a", "b"))


MANY = pa.table(
    {"text": [f"row {n} of many" for n in range(10_000)], "label": [f"x{n}" for n in range(10_000)]}
)


@pytest.mark.parametrize(
    ("rows", "options", "parts"),
    [
        (pa.table({}), {}, ["rows has no rows"]),
        (table(text=TEXTS, label=[0, 1]).slice(0, 0), {}, ["rows has no rows"]),
        (table(text=TEXTS), {}, ["one column, 'text'", "`unlabelled=['FILE']`"]),
        (MANY, {}, ["'label' of rows has 10,000 different values", "at most 1,000", "`label='COLUMN'`"]),
        (MANY.rename_columns(["text", "code"]), {}, ["no column of rows looks like labels", "text, code"]),
        (table(text=TEXTS, label=["a"]), {}, ["'label' of rows has one value, 'a'"]),
        (table(text=TEXTS, label=[None]), {"label": "label"}, ["'label' of rows has no values"]),
        (
            table(text=TEXTS, label=[1, -1]),
            {},
            ["has one value, '1'", "-1: it means no label; if it is a class"],
        ),
        (table(text=TEXTS, label=[0, 1]), {"label": "lable"}, ["'lable' (did you mean 'label'?)"]),
        (table(text=TEXTS, label=[0, 1]), {"columns": ["txt"]}, ["'txt' (did you mean 'text'?)"]),
        (
            table(text=TEXTS, label=[0, 1]),
            {"kind": "rank"},
            [
                "'rank' cannot be guessed",
                "expected: classify, regress, multilabel, span",
                "docs/add-a-task.md",
            ],
        ),
        (table(text=TEXTS, label=[0, 1]), {"kind": "rang"}, ["unknown task type 'rang'"]),
        (
            table(a=TEXTS, b=["x", "y", "z"]).slice(0, 3),
            {},
            [
                "rows has too few rows to guess the label column from: 3",
                "expected: 4 rows or more",
                "`label=",
            ],
        ),
        (table(text=TEXTS, label=["a", "b"]), {"kind": "regress"}, ["rows, row 0: the label 'a'"]),
        (table(text=TEXTS, label=[1.5]), {"kind": "regress"}, ["'label' of rows does not hold scores"]),
        (
            table(text=TEXTS, label=["0.5", "2", "n/a", *["3"] * 37]),
            {},
            [
                "rows, row 2: the label 'n/a' in the column 'label' is not a number\n",
                "leave it empty",
                "`kind=",
            ],
        ),
        (
            table(text=TEXTS, label=["4", "3,5", " 0,25"]),
            {},
            [
                "rows, row 1: the label column 'label' holds numbers with a comma, such as '3,5'",
                "`kind='multilabel'`",
            ],
        ),
        (table(text=TEXTS, label=["4", "3,5"]), {"kind": "regress"}, ["with a comma, such as '3,5'"]),
        (table(n=range(40), label=[0, 1]), {}, ["no column of rows looks like text"]),
        (
            table(text=TEXTS).append_column("label", BYTES),
            {},
            ["holds fixed_size_binary[1], which cannot be"],
        ),
        (table(text=TEXTS).append_column("label", TIMES), {}, ["which cannot be read as labels"]),
        (table(text=TEXTS).append_column("label", NOT_UTF8), {}, ["holds string, which cannot be read"]),
    ],
)
def test_tables_that_cannot_be_a_task_are_errors(
    rows: pa.Table, options: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        guess_task(rows, "rows", **options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"good film": TEXTS, "yes": ["yes", "no"]},
        {"good film": TEXTS, "3.5": [1.5, 2.0, 2.5]},
    ],
)
def test_a_missing_header_line_is_an_error(columns: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="looks like a row, not like column names"):
        guess_task(table(**columns), "rows")
    label = list(columns)[1]
    assert guess_task(table(**columns), "rows", label=label).label == label, "it was named"


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["a", "b"], "span"),
        ([["a"], ["b"]], "span"),
        ([["a"], ["b"]], "regress"),
        ([["a"], ["b"]], "classify"),
        ([{"text": ["a"], "answer_start": [0]}], "multilabel"),
    ],
)
def test_labels_incompatible_with_the_given_task_type_are_errors(labels: list[Any], kind: str) -> None:
    with pytest.raises(UserError, match=rf"'label' of rows holds .*, not the labels of kind {kind}"):
        guess_task(table(text=TEXTS, label=labels), "rows", label="label", kind=kind)


def test_a_label_that_is_deeply_nested_json_is_one_label() -> None:
    deep = "[" * 200_000
    assert guess_task(table(text=TEXTS, label=["a", "b", deep]), "rows").labels == (deep, "a", "b")
    guess = guess_task(table(text=TEXTS, label=['["a", "b"]', deep]), "rows")
    assert guess.kind == "multilabel" and set(guess.labels) == {"a", "b", deep}


def test_an_empty_column_name_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown column of rows: ''"):
        guess_task(table(text=TEXTS, label=["a", "b"]), "rows", label="")
