"""Corpora whose rows only the workers read: identical output, the same errors, and interruptions."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_process_workers import InProcessPool

import mtkd
from augment import corpus_writer, distinct_texts, tagged_files
from augment.augmenter import Copies
from augment.contextual import Contextual
from augment.corpus_writer import CorpusSpec, write_corpus
from augment.distinct_texts import find_distinct, hash_texts
from augment.masking import Masking
from augment.replacement import Replacement
from augment.source_rows import plan_source_rows, validate_source_rows
from augment.tagged_files import tag_file_rows
from augment.tagged_text import tag_rows
from augment.tagging import NoTagger
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.data import file_readers, file_rows, loading, rows
from tasks.data.corpus_reader import corpus_rows
from tasks.data.file_rows import FileRange, FileRows, plan_file_rows, validate_and_digest
from tasks.data.loading import digest_rows, load_rows
from tasks.data.rows import Rows
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task

PAIR = Task(name="pair", kind="classify", columns=("a", "b"), labels=("no", "yes"), validation=(), test=())
TABLE = [{"a": f"text {n} of many", "b": "où " * (1 + n % 4), "label": n % 2, "extra": n} for n in range(97)]
SHARDS = ((0, 40, 7), (40, 41, 1), (41, 97, 30))  # first row, last row, rows per row group
NONE = UnlabelledRequest()


def write(root: Path, table: list[dict[str, Any]], task: str = "pair") -> Path:
    folder = root / task
    folder.mkdir(parents=True, exist_ok=True)
    for number, (start, stop, group) in enumerate(SHARDS):
        path = folder / f"train-{number:05d}-of-{len(SHARDS):05d}.parquet"
        pq.write_table(pa.Table.from_pylist(table[start:stop]), path, row_group_size=group)
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", TABLE)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks, batches and shards of a few rows, and let workers read even small splits."""
    monkeypatch.setattr(loading, "DIGEST_BLOCK", 10)
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 8)
    monkeypatch.setattr(file_readers, "BATCH_ROWS", 8)
    monkeypatch.setattr(rows, "MAPPED_ROWS", 50)
    monkeypatch.setattr(Masking, "shard_copies", 60)


@pytest.fixture
def rows_must_not_be_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, but not its workers, fail if it reads rows of a parquet file."""

    def refuse(*arguments: Any, **options: Any) -> Iterator[Any]:
        raise AssertionError("the planning process reads rows")

    for name in ("iter_batches", "read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, refuse)
    monkeypatch.setattr(pq, "read_table", refuse)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.*")}


def write_masked_corpus(data: Path, out: Path, *tasks: Task, **options: Any) -> None:
    options = {"copies": 3, "p": 0.3, "seed": 5, "command": "mask"} | options
    mtkd.augment.mask(str(data), list(tasks or [PAIR]), out, **options)


@pytest.fixture
def in_one_process(data: Path, tmp_path: Path) -> Path:
    write_masked_corpus(data, tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture(params=["processes", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


def test_workers_that_read_their_rows_write_identical_output(
    data: Path, in_one_process: Path, tmp_path: Path, engine: str, rows_must_not_be_read_here: None
) -> None:
    write_masked_corpus(data, tmp_path / "two", workers=2, engine=engine)
    assert contents(tmp_path / "two") == contents(in_one_process)
    assert len(list(tmp_path.glob("two/data/*"))) == 5  # 20 rows * 3 copies per shard


def test_the_identity_of_rows_combines_the_digests_of_their_blocks(data: Path, in_one_process: Path) -> None:
    everything = load_rows(open_data(str(data)), PAIR, "train")
    expected = hashlib.sha256()
    for start in range(0, 97, 10):
        block = digest_rows(everything.slice(start, min(start + 10, 97))).encode()
        expected.update(len(block).to_bytes(8, "little") + block)
    manifest = json.loads((in_one_process / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert manifest["tasks"][0]["source_digest"] == expected.hexdigest()


MANY = replace(PAIR, name="many", kind="multilabel", columns=("a",), label="several", head="", metrics=())
SCORE = replace(PAIR, name="score", kind="regress", labels=(), range=(0.0, 1.0), head="", metrics=())


@pytest.mark.parametrize("task", [PAIR, MANY, SCORE], ids=lambda task: task.kind)
def test_any_range_equals_a_slice_of_the_whole_split(task: Task, tmp_path: Path) -> None:
    several = [row | {"several": ["no", "yes"][: n % 3]} for n, row in enumerate(TABLE)]
    source = open_data(str(write(tmp_path / "data", several, task.name)))
    everything, planned = load_rows(source, task, "train"), plan_file_rows(source, task, "train")
    assert planned is not None and len(planned) == 97
    for start, stop in ((0, 97), (0, 1), (39, 42), (40, 41), (7, 14), (50, 97), (96, 97)):
        part = planned.slice(start, stop)
        assert len(part) == stop - start
        assert digest_rows(part.read()) == digest_rows(everything.slice(start, stop))
        inner = part.slice(0, 1)
        assert inner.read().uids.to_pylist() == [f"{task.name}/train/{start}"]


@pytest.mark.parametrize(
    "changes",
    [
        {n: {"label": 7} for n in (3, 12, 20, 55, 96)},  # of one kind, in several blocks and files
        {45: {"a": None}, 9: {"label": None}, 90: {"b": None}},
        {n: {"label": 5 + n} for n in range(97)},
    ],
    ids=["many", "few", "all"],
)
def test_workers_report_invalid_rows_like_one_process(
    changes: dict[int, dict[str, Any]], tmp_path: Path, in_process_workers: Workers
) -> None:
    data = write(tmp_path / "data", [row | changes.get(n, {}) for n, row in enumerate(TABLE)])
    messages = []
    for workers in (1, 2):
        with pytest.raises(UserError, match=f"{len(changes)} problems in pair/train") as error:
            write_masked_corpus(data, tmp_path / "out", workers=workers)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert not (tmp_path / "out").exists()


def test_workers_report_broken_files_like_one_process(tmp_path: Path, in_process_workers: Workers) -> None:
    def without_column(path: Path) -> None:
        pq.write_table(pq.read_table(path).drop_columns("b"), path)

    def without_rows(path: Path) -> None:
        pq.write_table(pq.read_table(path).slice(0, 0), path)

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-20])

    for number, damage in enumerate((without_column, without_rows, cut)):
        data = write(tmp_path / f"data{number}", TABLE)
        damage(data / "pair" / "train-00002-of-00003.parquet")
        messages = []
        for workers in (1, 2):
            with pytest.raises(UserError) as error:
                write_masked_corpus(data, tmp_path / "out", workers=workers)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("check", [FileRows.read, validate_and_digest])
def test_a_changed_file_is_detected(data: Path, check: Callable[[FileRows], Any]) -> None:
    planned = plan_file_rows(open_data(str(data)), PAIR, "train")
    assert planned is not None
    path = data / "pair" / "train-00001-of-00003.parquet"
    os.utime(path, ns=(0, 0))
    check(planned.slice(0, 40))  # the other files are unchanged
    with pytest.raises(UserError, match=r"train-00001-of-00003\.parquet has changed"):
        check(planned)
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*train-00001.*No such file"):
        check(planned)


def test_a_file_that_changes_while_it_is_read_is_detected(data: Path) -> None:
    part = FileRange.of_file(data / "pair" / "train-00000-of-00003.parquet")
    tables = part.tables()
    next(tables)
    os.utime(part.path, ns=(0, 0))
    with pytest.raises(UserError, match="has changed"):
        list(tables)


def test_rows_of_other_sources_are_read_by_the_planning_process(data: Path, tmp_path: Path) -> None:
    source, two, method = open_data(str(data)), Workers(2), Masking()
    plan: Any = lambda **changed: plan_source_rows(  # noqa: E731
        **{
            "augmenter": method, "source": source, "tasks": [PAIR], "limit": None, "unlabelled": NONE,
            "workers": two,
        } | changed
    )  # fmt: skip
    assert list(plan()) == ["pair"]
    assert not plan(workers=Workers(1)) and not plan(limit=1000)
    assert list(plan(augmenter=Replacement(tagger="none"))) == ["pair"]
    assert not plan(augmenter=Contextual("none"))
    assert not plan(unlabelled=UnlabelledRequest({"pair": [("x", "y")]}))
    assert not plan(source=open_data({"pair": {"train": TABLE}}))
    rank = replace(PAIR, kind="rank", group="extra", metrics=())
    assert not plan(tasks=[rank]) and not plan(tasks=[replace(PAIR, soft_labels="extra")])
    jsonl = tmp_path / "jsonl" / "pair" / "train.jsonl"
    jsonl.parent.mkdir(parents=True)
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in TABLE))
    assert not plan(source=open_data(str(tmp_path / "jsonl")))


def test_a_job_may_mix_tasks_read_by_workers_and_by_the_planning_process(
    data: Path, tmp_path: Path, in_process_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)  # the workers run elsewhere
    small_blocks = replace(PAIR, name="small", columns=("a",), head="")
    folder = data / "small"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(TABLE[:20]), folder / "train.parquet")
    for workers in (1, 2):
        write_masked_corpus(Path(), tmp_path / str(workers), small_blocks, PAIR, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(corpus_rows(tmp_path / "2", "small")) == 60


@dataclass(frozen=True)
class MaskingThatDies(Masking):
    """A masking augmenter whose process is killed when it makes the second shard for the first time."""

    died: str = ""

    @property
    def settings(self) -> dict[str, float | int | str]:
        return {"p": self.p, "seed": self.seed, "mask_token": self.mask_token}

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        if rows.uids[0].as_py() == "pair/train/20" and not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make_copies(rows, copies)


def test_a_killed_worker_does_not_change_the_output(
    data: Path, in_one_process: Path, tmp_path: Path, engine: Any
) -> None:
    source, out = open_data(str(data)), tmp_path / "two"
    method, workers = MaskingThatDies(0.3, 5, died=str(tmp_path / "died")), Workers(2, engine)
    planned = plan_source_rows(method, source, [PAIR], None, NONE, workers)["pair"]
    done: list[int] = []
    rows_of_task = {"pair": validate_source_rows(planned, InProcessPool(tmp_path, None), source, done.append)}
    assert sum(done) == 97
    spec = CorpusSpec(method, {"pair": 3}, str(data), mtkd.__version__, "mask", shard_copies=60)
    if engine == "processes":  # Ray repeats the shard
        with pytest.raises(UserError, match="a worker process was killed"):
            write_corpus(spec, rows_of_task, out, workers=workers)
        assert not (out / "manifest.json").exists()
    write_corpus(spec, rows_of_task, out, workers=workers)
    assert (tmp_path / "died").exists()
    assert contents(out) == contents(in_one_process)


def test_a_resumed_job_leaves_identical_output(
    data: Path, in_one_process: Path, tmp_path: Path, in_process_workers: Workers
) -> None:
    before = contents(in_one_process)
    for number in (1, 3):
        (in_one_process / f"data/pair-{number:05d}.parquet").unlink()
    kept = in_one_process / "data/pair-00000.parquet"
    changed = kept.stat().st_mtime_ns
    write_masked_corpus(data, in_one_process, workers=2)
    assert contents(in_one_process) == before and kept.stat().st_mtime_ns == changed


def test_a_corpus_of_format_1_is_not_resumed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "old"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_writer, "CORPUS_FORMAT", 1)
        write_masked_corpus(data, out)
    with pytest.raises(UserError, match="another corpus: it has format 1"):
        write_masked_corpus(data, out)
    write_masked_corpus(data, out, overwrite=True)
    assert json.loads((out / "manifest.json").read_text())["format"] == 2


def write_replaced_corpus(data: Path, out: Path, *tasks: Task, **options: Any) -> None:
    options = {"copies": 3, "tagger": "none", "seed": 5, "command": "replace"} | options
    mtkd.augment.replace(str(data), list(tasks or [PAIR]), out, **options)


@pytest.fixture
def few_texts_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagged_files, "TEXTS_PER_BLOCK", 9)
    monkeypatch.setattr(distinct_texts, "_PER_BUCKET", 20)
    monkeypatch.setattr(distinct_texts, "STEP", 16)
    monkeypatch.setattr(tagged_files, "STEP", 16)
    monkeypatch.setattr(Replacement, "shard_copies", 60)


@pytest.fixture
def replaced_in_one_process(data: Path, tmp_path: Path, few_texts_per_block: None) -> Path:
    write_replaced_corpus(data, tmp_path / "replaced")
    return tmp_path / "replaced"


def test_replacement_does_not_read_rows_in_the_planning_process(
    data: Path, replaced_in_one_process: Path, tmp_path: Path, engine: str, rows_must_not_be_read_here: None
) -> None:
    write_replaced_corpus(data, tmp_path / "two", workers=2, engine=engine)
    assert contents(tmp_path / "two") == contents(replaced_in_one_process)
    assert len(list(tmp_path.glob("two/data/*"))) == 5


def test_texts_tagged_from_files_match_texts_of_loaded_rows(
    data: Path, few_texts_per_block: None, in_process_workers: Workers
) -> None:
    source = open_data(str(data))
    loaded, planned = load_rows(source, PAIR, "train"), plan_file_rows(source, PAIR, "train")
    assert planned is not None
    done: list[int] = []
    expected = tag_rows(loaded, NoTagger())
    tagged = tag_file_rows(planned, NoTagger(), done.append, in_process_workers)
    assert sum(done) == 2 * 97
    assert len(expected.texts) == 97 + 4  # the second text has four different values
    assert tagged.digest == expected.digest
    for column, numbers in zip(loaded.texts, tagged.of_rows(loaded), strict=True):
        assert np.array_equal(numbers, expected.find(column))


def test_a_worker_opens_only_the_row_groups_of_its_shard(
    data: Path, monkeypatch: pytest.MonkeyPatch, few_texts_per_block: None, in_process_workers: Workers
) -> None:
    planned = plan_file_rows(open_data(str(data)), PAIR, "train")
    assert planned is not None
    method = Replacement(tagger="none").prepare({"pair": planned}, in_process_workers)
    groups: list[list[int]] = []
    iterate = pq.ParquetFile.iter_batches

    def record(self: Any, *arguments: Any, row_groups: Any, **options: Any) -> Any:
        groups.append(row_groups)
        return iterate(self, *arguments, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    part = planned.slice(20, 43)
    copies = list(method.for_rows(part).make_copies(part.read(), 2))
    assert groups == [[2, 3, 4, 5], [0], [0]]  # rows 20 to 39, row 40, and rows 41 and 42
    assert sum(len(some.table) for some in copies) == 46


def test_hash_collisions_are_an_error() -> None:
    hashes = np.array([[1, 2], [3, 4], [1, 2], [3, 5]])
    assert find_distinct([hashes[:1], hashes[1:3]], 3).numbers.tolist() == [0, 1, 0]
    with pytest.raises(UserError, match="two different texts have the same hash"):
        find_distinct([hashes], 4)


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_distinct_texts_match_a_dictionary(count: int, few_texts_per_block: None) -> None:
    draw = np.random.default_rng(count)
    texts = [f"text {number}" for number in draw.integers(0, 1 + count // 2, count)]
    found = find_distinct((hash_texts(pa.array(texts[i : i + 7])) for i in range(0, count, 7)), count)
    order = list(dict.fromkeys(texts))
    assert found.first.tolist() == [texts.index(text) for text in order]
    assert found.occurrences.tolist() == [texts.count(text) for text in order]
    assert found.numbers.tolist() == [order.index(text) for text in texts]
