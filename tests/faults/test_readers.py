# ruff: noqa: E501
"""Reading a file with random damage returns a value or raises UserError, never another exception."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wrong_inputs.tiny_inputs import TinyInputs

from augment.questions.endpoint.answer_log import AnswerLog
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.model_files import read_export, read_model_file
from mtkd.output_files.safetensors_shards import read_header
from mtkd.pipelines.pipeline_file import read_pipeline
from tasks.common.errors import UserError
from tasks.common.records import read_record, read_toml
from tasks.data.corpus_reader import read_corpus_manifest
from tasks.data.file_readers import read_file
from tasks.data.plain_text import TextFiles
from tasks.task_file import load_task

ROWS = [{"text": f"row {number}", "label": "ab"[number % 2]} for number in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
ANSWER = b'{"question": "a", "text": "Who?", "input_tokens": 3, "output_tokens": 2}\n'
PARAGRAPH = {
    "context": "a b",
    "qas": [{"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}],
}
INSERTED = [b'"', b"\0", b"\xff", b"[", b"{}", b"null", b"\n", b"9" * 400, b"\\ud800"]


def _parquet(inputs: TinyInputs) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), out)
    return bytes(out.getvalue())


def _header(path: Path) -> None:
    try:
        read_header(path)
    except ValueError as error:  # its callers add a description of the file
        raise UserError(str(error)) from error


# The name of the file, its content, and the reader.
Content = Callable[[TinyInputs], bytes]
READERS: list[tuple[str, Content, Callable[[Path], Any]]] = [
    ("x.csv", lambda inputs: b'text,label\n"a, b",x\nc,y\n' * 3, lambda path: read_file(path, ["text"])),
    ("x.tsv", lambda inputs: b"text\tlabel\na\tx\n" * 3, lambda path: read_file(path, ["text"])),
    ("x.jsonl", lambda inputs: LINES, lambda path: read_file(path, ["text"])),
    ("x.json", lambda inputs: json.dumps({"data": [{"paragraphs": [PARAGRAPH] * 2}]}).encode(), lambda path: read_file(path, ())),
    ("x.txt", lambda inputs: b"a line\nanother\n", lambda path: read_file(path, ["text"])),
    ("x.jsonl.gz", lambda inputs: gzip.compress(LINES, mtime=0), lambda path: read_file(path, ["text"])),
    ("x.parquet", _parquet, lambda path: read_file(path, ["text"])),
    ("x.txt", lambda inputs: b"a line\nanother\n", lambda path: list(TextFiles.open(path).placed())),
    ("run.json", lambda inputs: (inputs.teacher / "run.json").read_bytes(), lambda p: read_record(p, dict[str, Any])),
    ("model.json", lambda inputs: (inputs.teacher / "model/model.json").read_bytes(), lambda p: read_model_file(p.parent)),
    ("heads.safetensors", lambda inputs: (inputs.teacher / "model/heads.safetensors").read_bytes(), _header),
    ("export.json", lambda inputs: (inputs.export / "export.json").read_bytes(), lambda p: read_export(p.parent)),
    ("manifest.json", lambda inputs: (inputs.store / "manifest.json").read_bytes(), lambda p: read_store_manifest(p.parent)),
    ("manifest.json", lambda inputs: (inputs.corpus / "manifest.json").read_bytes(), lambda p: read_corpus_manifest(p.parent)),
    ("topics.toml", lambda inputs: (inputs.rows / "topics.toml").read_bytes(), load_task),
    ("grid.toml", lambda inputs: (inputs.grid / "grid.toml").read_bytes(), read_toml),
    ("job.toml", lambda inputs: (inputs.pipeline / "job.toml").read_bytes(), read_pipeline),
    ("answers.jsonl", lambda inputs: ANSWER * 3, AnswerLog),
]  # fmt: skip

PLACE = st.floats(0, 1, exclude_max=True)
EDIT = st.one_of(
    st.tuples(st.just("replace"), PLACE, st.binary(min_size=1, max_size=1)),
    st.tuples(st.just("insert"), PLACE, st.sampled_from(INSERTED)),
    st.tuples(st.just("cut"), PLACE, st.just(b"")),
)


def damaged(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, new in edits:
        at = int(place * len(content))
        rest = {"replace": content[at + 1 :], "insert": content[at:], "cut": b""}[kind]
        content = content[:at] + new + rest
    return content


@pytest.mark.filterwarnings("ignore::tasks.common.errors.MtkdWarning")
@pytest.mark.parametrize(("name", "content", "read"), READERS)
def test_readers_of_damaged_files_raise_only_user_errors(
    inputs: TinyInputs, tmp_path: Path, name: str, content: Content, read: Callable[[Path], Any]
) -> None:
    whole, path = content(inputs), tmp_path / name
    path.write_bytes(whole)
    read(path)

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(st.lists(EDIT, min_size=1, max_size=4))
    def read_damaged(edits: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(damaged(whole, edits))
        with contextlib.suppress(UserError):
            read(path)

    read_damaged()
