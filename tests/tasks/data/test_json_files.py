"""JSON files that are read as a whole: arrays of objects, and the format of SQuAD's releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.common.errors import UserError
from tasks.data.file_readers import read_batches, read_file
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task import Task

ANSWER = {"text": "Rome", "answer_start": 17}
PARAGRAPH = {
    "context": "Anna was born in Rome .",
    "qas": [
        {"id": "a", "question": "Where was Anna born?", "answers": [ANSWER, ANSWER]},
        {"id": "b", "question": "Who is Bob?", "is_impossible": True, "answers": []},
    ],
}
SPAN = Task("own", "span", ("question", "context"), label="answers", unanswerable=True)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_an_array_of_objects_is_read_in_batches(tmp_path: Path) -> None:
    rows = [{"text": f"row {n}", "n": n} if n else {"text": "row 0"} for n in range(7)]
    file = write(tmp_path / "rows.json", rows)
    whole = read_file(file, ["text"])
    assert whole.table.to_pylist() == [{"text": row["text"], "n": row.get("n")} for row in rows]
    parts = list(read_batches(file, ["text"], 3))
    assert [(part.first, part.table.num_rows) for part in parts] == [(0, 3), (3, 3), (6, 1)]
    assert parts[1].location(1) == f"{file}, row 4"
    assert read_file(write(tmp_path / "none.json", []), ["text"]).table.num_rows == 0


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_answers_may_be_written_as_in_squad_releases(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / f"train.{suffix}"
    if suffix == "json":
        write(file, {"version": "v2.0", "data": [{"title": "Anna", "paragraphs": [PARAGRAPH]}]})
        assert read_file(file, ()).table["title"].to_pylist() == ["Anna", "Anna"]
    else:
        lines = [
            {"question": q["question"], "context": PARAGRAPH["context"], "answers": q["answers"]}
            for q in PARAGRAPH["qas"]
        ]  # type: ignore[index]
        file.write_text("\n".join(map(json.dumps, reversed(lines))), encoding="utf-8")
        assert next(read_batches(file, ())).rows[0][2] == [], (
            "the values as they were read, for `mtkd predict`"
        )  # type: ignore[index]
    rows = load_rows(open_data({"own": {"train": str(file)}}), SPAN, "train")
    answers = {q: a for q, a in zip(rows.texts[0].to_pylist(), rows.answers.to_pylist(), strict=True)}  # type: ignore[union-attr]
    assert answers["Who is Bob?"] == {"text": [], "answer_start": []}
    assert answers["Where was Anna born?"] == {"text": ["Rome"] * 2, "answer_start": [17] * 2}


def test_the_first_batches_may_lack_answers_and_hidden_answers_are_null(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"answers": value}) + "\n" for value in ([ANSWER], [], [], [])))
    kinds = [part.table.schema.field("answers").type for part in read_batches(file, (), 2)]
    assert len(kinds) == 2 and all("answer_start" in str(kind) for kind in kinds)
    hidden = {"context": "c", "qas": [{"id": "x", "question": "q"}]}
    squad = write(tmp_path / "test.json", {"data": [{"paragraphs": [hidden, PARAGRAPH]}]})
    assert read_file(squad, ()).table["answers"].to_pylist()[0] is None
    rows = write(tmp_path / "data.json", {"data": [{"text": "a"}]})
    rows.write_bytes(b"\xef\xbb\xbf" + rows.read_bytes())
    assert read_file(rows, ["text"]).table.to_pylist() == [{"text": "a"}]
    rows.write_bytes(json.dumps([{"text": "b"}]).encode("utf-16"))
    assert read_file(rows, ["text"]).table.to_pylist() == [{"text": "b"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "does not hold a list of rows"),
        ('[{"a": 1}', "cannot be read as JSON: EOF"),
        ('{"data": [{"paragraphs": [{"context": "c"}]}]}', "format of SQuAD: a part of it lacks 'qas'"),
        ('{"data": [{"paragraphs": ["c"]}]}', "format of SQuAD: a part has another form"),
        ('{"data": [1]}', "row 0: not a JSON object with fields"),
        ('[{"text": "a"}, 3]', "row 1: not a JSON object with fields"),
        ('[{"text": 3}]', "row 0: the field 'text' is 3, not text"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_invalid_files_are_one_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_file(tmp_path / "rows.json", ["text"])
