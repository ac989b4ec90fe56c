"""Rows in memory: lists of plain texts are read without a table, with the result of the table."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from tasks.common.errors import MtkdWarning, UserError
from tasks.data import rows_in_memory
from tasks.data.blank_texts import count_blank
from tasks.data.loading import digest_rows
from tasks.data.rows import Rows
from tasks.data.rows_in_memory import rows_to_predict, texts_to_encode
from tasks.task import Task

ONE = Task(name="one", kind="classify", columns=("a",), labels=("no", "yes"))
TWO = Task(name="two", kind="regress", columns=("a", "b"))
MANY = Task(name="many", kind="multilabel", columns=("a",), labels=("x", "y", "z"))


class Named(str):
    """A str that is not exactly a str."""


def without_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_memory, "_plain_rows", lambda task, rows: None)


def same(one: Rows, other: Rows) -> bool:
    assert one.labels.shape == other.labels.shape and one.uids.equals(other.uids)
    assert (one.groups, one.answers, one.windows, one.soft) == (None,) * 4
    return digest_rows(one) == digest_rows(other)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (ONE, ["a text"]),
        (ONE, ["naïve 😀\0", " x ", "\u200b"]),
        (ONE, [("a",), ["b"], "c"]),
        (TWO, [("a", "b"), ["c", "d"]]),
        (MANY, ["a", "b"]),
    ],
)
def test_plain_texts_are_read_as_from_a_table(
    task: Task, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_in_memory._plain_rows(task, rows) is not None
    plain = rows_to_predict(task, rows)
    without_shortcut(monkeypatch)
    table = rows_to_predict(task, rows)
    assert plain is not None and table is not None and same(plain, table)


def test_texts_to_encode_are_read_as_from_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = texts_to_encode(["a", "b c"])
    without_shortcut(monkeypatch)
    table = texts_to_encode(["a", "b c"])
    assert plain is not None and table is not None and same(plain, table)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (ONE, [None]),
        (ONE, [1]),
        (ONE, ["a", 1.5]),
        (ONE, [b"a"]),
        (ONE, [("a", "b")]),
        (ONE, [()]),
        (ONE, ["\ud800"]),
        (ONE, [("a", None)]),
        (TWO, ["a"]),
        (TWO, ["ab"]),
        (TWO, [("a", None)]),
        (TWO, [("a", 1)]),
        (TWO, [("a", "\udfff")]),
        (TWO, [("a", "b"), ("a",)]),
        (TWO, [{"a": "x"}]),
        (Task(name="ranked", kind="rank", columns=("a", "b"), group="g", labels=("0", "1")), [("a", "b")]),
        (Task(name="grouped", kind="classify", columns=("a",), group="g", labels=("0", "1")), ["a"]),
    ],
)
def test_other_rows_are_left_to_the_table(
    task: Task, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_in_memory._plain_rows(task, rows) is None
    with pytest.raises(UserError) as one:
        rows_to_predict(task, rows)
    without_shortcut(monkeypatch)
    with pytest.raises(UserError) as other:
        rows_to_predict(task, rows)
    assert str(one.value) == str(other.value)


@pytest.mark.parametrize("rows", [(), ("a",), [Named("a")], [{"a": "x"}], iter(["a"]), {"a": ["x"]}])
def test_other_kinds_of_rows_are_read_from_a_table(rows: Any) -> None:
    assert rows_in_memory._plain_rows(ONE, rows) is None
    found = rows_to_predict(ONE, rows)
    assert found is None if rows == () else found is not None and len(found) == 1


def test_blank_texts_are_left_to_the_table() -> None:
    for text in ("", " \n", "\u3000\u2028"):
        assert rows_in_memory._plain_rows(ONE, ["a", text]) is None
        with pytest.warns(MtkdWarning, match="1 row with an empty text"):
            rows_to_predict(ONE, ["a", text])


def test_no_character_is_blank_only_for_arrow() -> None:
    """Otherwise such a text would be read without the warning about it."""
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    visible = [character for character in characters if character.strip()]
    rows = Rows("one", "in", pa.array(visible), (pa.array(visible),), pa.nulls(len(visible)))
    assert count_blank(rows) == 0


def test_plain_texts_are_read_without_a_search_for_optional_packages() -> None:
    """If dateutil is not installed, pyarrow may look for it at each call, which takes longer than a text."""
    code = """
import importlib.abc, sys
from tasks.data.rows_in_memory import rows_to_predict
from tasks.task import Task

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("dateutil", "pandas"):
            searched.append(name)
            raise ModuleNotFoundError(name=name)

searched = []
sys.meta_path.insert(0, Finder())
task = Task("t", "classify", ("text",), labels=("a", "b"))
rows_to_predict(task, ["a text"])
searched.clear()
rows_to_predict(task, ["a text"])
print(searched)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
