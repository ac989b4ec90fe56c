"""CSV and TSV files as other programs write them: delimiters, encodings, gzip, and invalid lines."""

from __future__ import annotations

import gzip
import io
import warnings
from pathlib import Path

import pytest

from tasks.common.errors import MtkdWarning, UserError
from tasks.data.file_readers import read_batches, read_file, suffix_of
from tasks.data.file_writers import open_writer
from tasks.data.text_lines import STANDARD, delimiter_of, text_lines

ROWS = [("id", "text", "note"), ("1", "Müller, naïve; fine|odd", "a\tb"), ("2", "zwei\nZeilen", 'said "x"')]


def quoted(mark: str) -> str:
    """Return the rows as CSV in which every cell is quoted."""
    return "".join(mark.join('"' + cell.replace('"', '""') + '"' for cell in row) + "\r\n" for row in ROWS)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_delimiters_and_encodings_are_detected(tmp_path: Path, mark: str, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(quoted(mark).encode(encoding))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MtkdWarning)
        raw = read_file(path, ["text"])
    assert raw.table.to_pylist() == [dict(zip(ROWS[0], row, strict=True)) for row in ROWS[1:]]
    assert [location for location in map(raw.location, range(2))] == [f"{path}:2", f"{path}:3"]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (encoding == "cp1252")
    assert all("rows.csv is not UTF-8 (line 2): it is read as cp1252" in message for message in messages)


def test_bytes_without_a_meaning_in_windows_1252_are_latin_1(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"text\n\x81\xe9\n\xc3\xa9\n")
    with pytest.warns(MtkdWarning, match="as latin-1"):
        assert read_file(tmp_path / "rows.csv", []).table["text"].to_pylist() == ["\x81é", "Ã©"]


@pytest.mark.parametrize(
    ("header", "columns", "mark"),
    [
        ("text", ["text"], ","),
        ("", [], ","),
        ("a,b;c", [], ","),
        ("text;a,b,c", ["text"], ";"),
        ('"a;b;c",text', ["text"], ","),
        ("id|premise|hypothesis", ["premise", "hypothesis"], "|"),
    ],
)
def test_the_delimiter_is_the_one_that_finds_the_columns(header: str, columns: list[str], mark: str) -> None:
    assert delimiter_of(header, columns) == mark


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"PAR1\x15\x04", "it is a parquet file", id="parquet"),
        pytest.param(gzip.compress(b"text\n"), "it is compressed by gzip", id="gzip"),
        pytest.param(b"PK\x03\x04\x14\0", "it is a zip archive or a spreadsheet", id="zip"),
        pytest.param("text\na\n".encode("utf-32"), "it is UTF-32", id="utf-32"),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_the_error_for_a_binary_file_names_its_format(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not text: {message}"):
        read_file(tmp_path / name, ["text"])


def test_the_hint_for_compressed_text_on_standard_input_works_for_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b'{"text": "a"}\n'))))
    with pytest.raises(UserError, match="standard input is not text: it is compressed by gzip") as refused:
        list(text_lines(STANDARD, [], ""))
    assert refused.value.hint == "unpack it first: `gunzip -c rows.jsonl.gz | ...`"


def test_json_spread_over_several_lines_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('[\n {\n  "text": "a"\n }\n]\n')
    bad = read_file(tmp_path / "rows.jsonl", ["text"]).bad_lines
    assert [line.line for line in bad] == [1, 2, 3, 4, 5]
    assert bad[0].message.startswith("not JSON: the line ends inside an object, a list or a text")


def test_a_key_that_occurs_twice_in_a_json_line_is_rejected(tmp_path: Path) -> None:
    lines = (
        '{"text": "a: b", "label": 1, "more": {"id": 1}, "id": 2}',
        '{"text": "a", "label": "x", "label": "y"}',
        '{"text": "a", "answers": [{"text": "b", "text": "c"}]}',
    )
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    bad = read_file(tmp_path / "rows.jsonl", ["text"]).bad_lines
    assert [(line.line, line.message) for line in bad] == [
        (2, "the key 'label' occurs twice"),
        (3, "the key 'text' occurs twice"),
    ]


def test_tab_separated_lines_keep_their_quotes(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text('a\tb\r\n"x\ty"\r\n\n1\t2\r\n\n\n', encoding="utf-8")
    raw = read_file(tmp_path / "rows.tsv", [])
    assert raw.table.to_pylist() == [{"a": '"x', "b": 'y"'}, {"a": "1", "b": "2"}]
    assert [(bad.line, bad.message) for bad in raw.bad_lines] == [(3, "1 fields, but the header has 2")]
    assert raw.lines is not None and raw.lines.tolist() == [2, 4]


def test_a_ragged_row_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id;text\n1;"a\nb"\n2;c;d\n3;e\n', encoding="utf-8")
    raw = read_file(tmp_path / "rows.csv", ["text"])
    assert [(bad.line, bad.message) for bad in raw.bad_lines] == [(4, "3 fields, but the header has 2")]


def test_gzipped_text_is_unpacked_and_damaged_files_are_rejected(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"text": "x"}\n' * 50)
    (tmp_path / "rows.jsonl.gz").write_bytes(packed)
    sizes = [raw.table.num_rows for raw in read_batches(tmp_path / "rows.jsonl.gz", ["text"], 20)]
    assert sizes == [20, 20, 10]
    for content in (packed[:-4], b"plain text"):
        (tmp_path / "rows.jsonl.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"cannot read .*rows\.jsonl\.gz"):
            read_file(tmp_path / "rows.jsonl.gz", ["text"])
    assert [suffix_of(Path(name)) for name in ("a.CSV.gz", "b.tsv", "c.parquet.gz", "d.md", "e")] == [
        ".csv",
        ".tsv",
        None,
        None,
        None,
    ]


def test_a_long_first_line_is_read_whatever_the_other_delimiters_say(tmp_path: Path) -> None:
    names = ["text", "label", *(f"column{n}" for n in range(20_000))]
    path = tmp_path / "rows.csv"
    path.write_text(",".join(names) + "\n" + ",".join("x" for _ in names) + "\n")
    assert read_file(path, ["text"]).table.column_names == names


def test_closed_standard_streams_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        list(read_batches(STANDARD, ["text"], suffix=".jsonl"))
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(UserError, match="standard output is closed"), open_writer(STANDARD, ".jsonl"):
        pass
