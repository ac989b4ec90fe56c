"""Plain text from files of several formats, read one piece at a time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common.errors import UserError
from tasks.data.plain_text import TEXTS_PER_CHUNK, TextFiles


def read_all(path: Path, start: int = 0, column: str = "text") -> list[str]:
    return [text for chunk in TextFiles.open(path, column).chunks(start) for text in chunk.to_pylist()]


def test_every_format_gives_the_same_texts(tmp_path: Path) -> None:
    texts = ["one two", "drei", "naïve 東京"]
    lines = "\ufeff" + "\n".join(["one two", "", "  drei ", "naïve 東京"])
    objects = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts)
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(objects, encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(objects.encode()))
    pq.write_table(pa.table({"text": [*texts[:2], None, "", texts[2]]}), tmp_path / "d.parquet")
    (tmp_path / "README.md").write_text("not text to learn from")
    for name in ("a.txt", "b.jsonl", "c.jsonl.gz", "d.parquet"):
        assert read_all(tmp_path / name) == texts, name
    assert read_all(tmp_path) == texts * 4, "a directory is its files by name"


def test_reading_starts_at_any_row_and_yields_chunks(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(TEXTS_PER_CHUNK + 10)]
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    sizes = [len(chunk) for chunk in TextFiles.open(tmp_path).chunks()]
    assert sizes == [TEXTS_PER_CHUNK, 10]
    assert read_all(tmp_path, TEXTS_PER_CHUNK - 1) == texts[TEXTS_PER_CHUNK - 1 :]


def test_the_digest_depends_only_on_the_content(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = TextFiles.open(file).digest
    assert TextFiles.open(file).digest == first
    file.write_text("two")
    assert TextFiles.open(file).digest != first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\xfe", r"a.txt, line 2: not UTF-8"),
        (
            "a.jsonl",
            b'{"text": "fine"}\n{"text": ',
            r"a.jsonl, line 2: not a JSON object with the key 'text'",
        ),
        ("a.jsonl", b'{"body": "x"}', r"line 1: .*key 'text'"),
        ("a.jsonl", b'{"text": "x", "text": "y"}', r"a.jsonl, line 1: the key 'text' occurs twice"),
        ("a.parquet", b"PAR?", "cannot read .*a.parquet as parquet"),
        ("a.csv", b"text\nx", r"a.csv is a table .*\n.*\n.*read_csv\('.*a.csv'\).*`text_column="),
        ("a.doc", b"x", "is not a text file that can be read"),
    ],
)
def test_unreadable_text_is_an_error(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_all(tmp_path / name)


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.date64()])
def test_titles_that_python_cannot_hold_name_the_file(kind: pa.DataType, tmp_path: Path) -> None:
    columns = {"text": pa.array(["a"]), "title": pa.array([2**60], kind)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"cannot read .*a\.parquet as parquet"):
        list(TextFiles.open(tmp_path / "a.parquet").placed())


def test_a_missing_column_suggests_the_nearest_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"texts": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="did you mean 'texts'"):
        read_all(tmp_path)
    assert read_all(tmp_path, column="texts") == ["a"]
    with pytest.raises(UserError, match="no such file"):
        TextFiles.open(tmp_path / "nowhere")
