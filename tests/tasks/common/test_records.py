"""Records: JSON and TOML files that are read back, and the error for invalid ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.common.errors import UserError
from tasks.common.files import write_json
from tasks.common.records import Count, Name, Record, Share, parse_toml, read_record, read_toml, write_record


@dataclass(frozen=True)
class Part(Record):
    share: Share


@dataclass(frozen=True)
class Document(Record):
    name: Name
    rows: Count
    parts: tuple[Part, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


GOOD: dict[str, Any] = {"name": "rte", "rows": 3, "parts": [{"share": 1}], "more": {"a": [None, "où"]}}


def read(directory: Path, value: Any) -> Document:
    write_json(directory / "a.json", value)
    return read_record(directory / "a.json", Document, newest=2, hint="make it again")


def test_a_record_is_unchanged_after_writing_and_reading(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == Document("rte", 3, (Part(1.0),), {"a": [None, "où"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": True}, "rows = True is not valid"),
        ({"rows": 3.0}, "rows = 3.0"),
        ({"rows": -1}, "greater than or equal to 0"),
        ({"rows": 10**30}, "rows = "),
        ({"rows": None}, "rows = None"),
        ({"name": ".."}, "name = '..'"),
        ({"name": "a.b"}, "name = 'a.b'"),
        ({"name": "x" * 101}, "name = 'xxx"),
        ({"parts": [{"share": float("nan")}]}, "parts.0.share = nan"),
        ({"parts": [{"share": 2}]}, "parts.0.share = 2"),
        ({"parts": [{}]}, "lacks the key 'parts.0.share'"),
        ({"parts": {}}, "parts = {}"),
        ({"other": 1}, "there is no key 'other'"),
        ({"format": 3}, "is of format 3"),
    ],
)
def test_the_first_wrong_value_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"a\.json") as caught:
        read(tmp_path, GOOD | change)
    assert message in str(caught.value) and len(str(caught.value)) < 400
    assert caught.value.hint


def test_invalid_json_is_an_error(tmp_path: Path) -> None:
    raws = (
        b"",
        b"{",
        b"{\xff",
        b"[" * 100_000,
        b'{"rows": %s}' % (b"9" * 5000),
        b'{"name": "\\ud800"}',
        b"\0",
    )
    for raw in raws:
        (tmp_path / "a.json").write_bytes(raw)
        with pytest.raises(UserError, match="is not valid JSON"):
            read_record(tmp_path / "a.json", Document)
    with pytest.raises(UserError, match="no such file"):
        read_record(tmp_path / "none.json", Document)
    with pytest.raises(UserError, match="is a directory"):
        read_record(tmp_path, Document)


def test_invalid_toml_is_an_error(tmp_path: Path) -> None:
    for raw in (b"a = ", b"a = '\xff'", b"a = " + b"[" * 9999, b"a = " + b"9" * 5000, b'a = "\\ud800"'):
        with pytest.raises(UserError, match="x is not valid TOML"):
            parse_toml(raw, "x")
    with pytest.raises(UserError, match="no such file"):
        read_toml(tmp_path / "none.toml")
    assert parse_toml(b"\xef\xbb\xbfa = 1", "x") == {"a": 1}  # with a byte-order mark


def test_a_digest_key_in_a_file_that_is_not_a_record_is_ignored(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"check": True})
    assert read_record(tmp_path / "a.json", dict[str, Any]) == {"check": True}


def test_a_changed_value_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_record(file, GOOD | {"more": {"seconds": 1.5, "où": [1e-7, None]}})
    assert read_record(file, Document).more == {"seconds": 1.5, "où": [1e-7, None]}
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("  ", ""), encoding="utf-8")
    assert read_record(file, Document).more["seconds"] == 1.5
    for one, other in (
        ("1.5", "2.5"),
        ("1e-07", "2e-07"),
        ('"rows": 3', '"rows": 2'),
        ("où", "ou"),
        ("rte", "rta"),
    ):
        file.write_text(text.replace(one, other), encoding="utf-8")
        with pytest.raises(UserError, match=r"a\.json has changed since it was written"):
            read_record(file, Document)


def test_records_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Their digests do not cover times."""
    file = tmp_path / "a.json"
    write_record(file, {"rows": 3})
    file.write_text(file.read_text(encoding="utf-8").replace("3,", '3, "seconds": 1.5,'), encoding="utf-8")
    assert read_record(file, dict[str, Any]) == {"rows": 3, "seconds": 1.5}


def test_a_flipped_bit_in_the_name_of_the_digest_is_noticed(tmp_path):
    file = tmp_path / "a.json"
    write_record(file, {"files": {"a": "0123456789abcdef"}})
    file.write_text(file.read_text().replace('"check"', '"chuck"'))
    with pytest.raises(UserError, match="has changed since it was written"):
        read_record(file, dict[str, Any])
