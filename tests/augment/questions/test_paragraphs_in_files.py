"""Questions about paragraphs that workers read from files themselves: identical output with fewer reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_process_workers import InProcessPool

import mtkd
from augment.questions.generation import paragraphs_in_files, prepare_generation
from augment.questions.generation.paragraph_selection import EnglishOnly, ParagraphSelection
from augment.questions.generation.paragraphs import Words, as_rows, open_paragraphs, select_paragraphs
from augment.questions.generation.paragraphs_in_files import ParagraphsInFiles, plan_files, select_in_files
from augment.questions.rules.generate import is_english
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.data import loading, rows
from tasks.data.loading import digest_blocks, digest_rows
from tasks.data.plain_text import TextFiles

SENTENCE = "Marie Curie discovered radium in the city of Paris in {year}."
SHARDS = ((0, 40, 7), (40, 41, 1), (41, 41, 1), (41, 97, 30))  # first row, last row, rows per row group
WORDS = Words(8, 40)


def paragraph(number: int) -> dict[str, Any]:
    """Return short, long, blank and German paragraphs."""
    text = " ".join(SENTENCE.format(year=1500 + number + extra) for extra in range(1 + number % 4))
    text = {5: " ", 6: "Die Stadt war bis zum Ende der Zeit sehr schön, aber leer."}.get(number % 8, text)
    return {"text": None if number == 13 else text, "title": None if number % 3 else f"title {number}"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    schema = pa.schema([("text", pa.string()), ("title", pa.string())])
    for number, (start, stop, group) in enumerate(SHARDS):
        table = pa.Table.from_pylist([paragraph(n) for n in range(start, stop)], schema=schema)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    return folder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks and chunks of a few rows, and let workers read even small files."""
    monkeypatch.setattr(loading, "DIGEST_BLOCK", 10)
    for module in (paragraphs_in_files, prepare_generation):
        monkeypatch.setattr(module, "CHUNK", 4)
    monkeypatch.setattr(rows, "MAPPED_ROWS", 50)


@pytest.fixture
def opened_row_groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """The row groups that are read: (file, numbers)."""
    groups: list[tuple[str, tuple[int, ...]]] = []
    iterate = pq.ParquetFile.iter_batches
    names = dict[str, str]()
    opening = paragraphs_in_files.FileRange.tables

    def tables(self: Any, *arguments: Any) -> Any:
        names["now"] = self.path.name
        return opening(self, *arguments)

    def record(self: Any, *arguments: Any, row_groups: Any = None, **options: Any) -> Any:
        groups.append((names["now"], tuple(row_groups)))
        return iterate(self, *arguments, row_groups=row_groups, **options)

    monkeypatch.setattr(paragraphs_in_files.FileRange, "tables", tables)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    return groups


def plan(text: Path, tmp_path: Path, selection: ParagraphSelection) -> ParagraphsInFiles:
    files = plan_files(TextFiles.open(text), text, "title")
    assert files is not None and [len(file.range) for file in files] == [40, 1, 56]
    paragraphs, _ = select_in_files("squad", selection, files, InProcessPool(tmp_path, None), lambda _: None)
    return paragraphs


def generate(text: Path, out: Path, workers: int, **options: Any) -> dict[str, bytes]:
    options = {"words": str(WORDS), "shard_rows": 9, "command": "generate"} | options
    mtkd.augment.generate_questions(text, out, workers=workers, **options)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")}


@pytest.mark.parametrize(
    "selection", [ParagraphSelection(), ParagraphSelection(WORDS), ParagraphSelection(WORDS, EnglishOnly())]
)
def test_any_range_equals_a_slice_of_all_paragraphs(
    text: Path, tmp_path: Path, selection: ParagraphSelection
) -> None:
    chosen, counts = select_paragraphs(open_paragraphs(str(text), "text", "title"), selection.words)
    if selection.usable:
        chosen = [paragraph for paragraph in chosen if is_english(paragraph.text)]
    everything = as_rows("squad", chosen)
    streamed, of_stream = selection.rows("squad", open_paragraphs(str(text), "text", "title"), None)
    assert digest_rows(streamed) == digest_rows(everything)
    assert (of_stream.read, of_stream.empty, of_stream.outside, of_stream.cut, of_stream.pieces) == (
        counts.read, counts.empty, counts.outside, counts.cut, counts.pieces
    )  # fmt: skip
    assert of_stream.kept == len(chosen) and of_stream.not_english == counts.kept - len(chosen)
    planned = plan(text, tmp_path, selection)
    assert len(planned) == len(chosen)
    for start, stop in ((0, len(chosen)), (0, 1), (3, 4), (20, 45), (len(chosen) - 1, len(chosen))):
        part = planned.slice(start, stop)
        assert digest_rows(part.read()) == digest_rows(everything.slice(start, stop))
        inner = planned.slice(start, len(chosen)).slice(0, 1)
        assert inner.read().uids.to_pylist() == [chosen[start].uid]
    pool = InProcessPool(tmp_path, None)
    assert paragraphs_in_files.add_digest(planned, pool).digest == digest_blocks(everything)


def test_a_range_opens_only_its_row_groups(
    text: Path, tmp_path: Path, opened_row_groups: list[tuple[str, tuple[int, ...]]]
) -> None:
    planned = plan(text, tmp_path, ParagraphSelection())
    assert {name for name, _ in opened_row_groups} == {"0.parquet", "1.parquet", "3.parquet"}
    uids = planned.read().uids.to_pylist()
    for uid, groups in (("0/9", (1,)), ("0/24", (3,)), ("3/31", (0, 1)), ("3/40", (1,)), ("1/0", (0,))):
        opened_row_groups.clear()
        number = uids.index(uid)
        assert planned.slice(number, number + 1).read().uids.to_pylist() == [uid]
        assert opened_row_groups == [(f"{uid[0]}.parquet", groups)]  # those of a chunk of 4 rows


@pytest.mark.parametrize("options", [{}, {"words": None}, {"per_paragraph": 3, "shard_rows": 7}])
def test_workers_that_read_their_paragraphs_write_identical_output(
    text: Path, tmp_path: Path, options: dict[str, Any], in_process_workers: Workers
) -> None:
    one = generate(text, tmp_path / "one", 1, **options)
    planned: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        read = ParagraphsInFiles.read
        patch.setattr(ParagraphsInFiles, "read", lambda self: planned.append(len(self)) or read(self))
        assert generate(text, tmp_path / "two", 2, **options) == one
    assert planned and max(planned) <= 10
    assert len(list(tmp_path.glob("two/data/*"))) > 4


@pytest.mark.slow(reason="starts worker processes several times")
def test_worker_processes_write_identical_output(text: Path, tmp_path: Path) -> None:
    assert generate(text, tmp_path / "two", 2) == generate(text, tmp_path / "one", 1)


def test_text_in_other_formats_is_read_by_the_planning_process(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process_workers: Workers
) -> None:
    assert generate(text, tmp_path / "a", 2, limit=20) == generate(text, tmp_path / "b", 1, limit=20)
    (text / "more.txt").write_text("Marie Curie discovered radium in Paris in 1898.\n")
    assert plan_files(TextFiles.open(text), text, "title") is None
    (text / "more.txt").unlink()
    monkeypatch.setattr(rows, "MAPPED_ROWS", 97)
    assert plan_files(TextFiles.open(text), text, "title") is None


def test_a_changed_file_is_detected(text: Path, tmp_path: Path) -> None:
    planned = plan(text, tmp_path, ParagraphSelection())
    os.utime(text / "3.parquet", ns=(0, 0))
    planned.slice(0, 10).read()
    with pytest.raises(UserError, match=r"3\.parquet has changed"):
        planned.read()
