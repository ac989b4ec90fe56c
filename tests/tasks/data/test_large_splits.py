"""Splits that are larger than memory: the same rows and reports, with bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from augment.corpus_writer import CorpusSpec, write_corpus
from augment.masking import Masking
from tasks.checks import row_hashes
from tasks.checks.data_report import report_on
from tasks.checks.row_hashes import RowHashes, contained
from tasks.checks.split_statistics import SplitStatistics
from tasks.common import mapped
from tasks.common.errors import UserError
from tasks.data import file_readers, loading, rows
from tasks.data.loading import digest_rows, load_rows
from tasks.data.raw_table import RawTable
from tasks.data.sources import open_data
from tasks.task import Task

PAIR = Task(name="pair", kind="classify", columns=("a", "b"), labels=("no", "yes"), validation=(), test=())
SPAN = Task(name="span", kind="span", columns=("question", "context"), label="answers", test=())
RANK = replace(PAIR, name="rank", kind="rank", group="of", metrics=(), head="")
MANY = Task(name="many", kind="multilabel", columns=("a",), labels=("p", "q"), test=())
SOFT = replace(PAIR, soft_labels="probs")
ROWS = [
    {
        **{"a": f"text {n % 7}", "b": "ü" * (n % 3), "label": n % 2, "of": f"g{n % 5 // 2}"},
        **{"probs": [0.25, 0.75] if n < 4 else [3.0, -1.0], "question": "q", "context": f"c {n}"},
        "answers": {"text": ["c"] if n % 2 else [], "answer_start": [0] if n % 2 else []},
    }
    for n in range(23)
]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that sets how many rows are read at once; twice as many are kept in memory."""

    def set_size(size: int) -> None:
        monkeypatch.setattr(file_readers, "BATCH_ROWS", size)
        monkeypatch.setattr(rows, "MAPPED_ROWS", 2 * size)
        monkeypatch.setattr(row_hashes, "_MAX_WAITING", 2 * size)
        for module in (rows, loading):
            monkeypatch.setattr(module, "STEP", size)

    return set_size


def write(root: Path, task: Task, suffix: str, found: list[dict]) -> None:
    path = root / task.name / f"train{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
    elif suffix == ".csv":
        pa.csv.write_csv(pa.Table.from_pylist(found).select(["a", "b", "label", "of"]), path)
    else:  # shards of 10 rows, in groups of 4
        for n in range(3):
            some = pa.Table.from_pylist(found[10 * n : 10 * n + 10])
            pq.write_table(some, path.with_stem(f"train-0000{n}-of-00003"), row_group_size=4)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
@pytest.mark.parametrize("task", [PAIR, RANK, MANY, SPAN, SOFT], ids=lambda task: task.kind)
def test_rows_read_in_parts_equal_rows_read_at_once(
    suffix: str, task: Task, tmp_path: Path, small_parts: Callable[[int], None]
) -> None:
    if suffix == ".csv" and task not in (PAIR, RANK):
        pytest.skip("CSV has no lists")
    found = [row | {"label": ["p", "q"][: n % 3]} for n, row in enumerate(ROWS)] if task is MANY else ROWS
    write(tmp_path, task, suffix, found)
    source = open_data(str(tmp_path))
    in_memory, report = load_rows(source, task, "train"), report_on(source, [task]).to_json()
    small_parts(4)
    parts = load_rows(source, task, "train")
    assert digest_rows(parts) == digest_rows(in_memory)
    assert parts.uids.equals(in_memory.uids) and parts.uids.type == pa.string()
    assert parts.texts == in_memory.texts and len(list(parts.parts())) == 6
    if task is not SOFT:  # its kind depends on all rows, which are read at once
        assert not parts.labels.flags.writeable, "memory-mapped"
    assert report_on(source, [task]).to_json() == report


def test_all_bad_rows_of_all_parts_are_counted(tmp_path: Path, small_parts: Callable[[int], None]) -> None:
    found = [
        row | ({"label": 7} if n in (9, 21) else {"a": None} if n > 17 else {}) for n, row in enumerate(ROWS)
    ]
    write(tmp_path, PAIR, ".parquet", found)
    errors = []
    for _ in range(2):
        with pytest.raises(UserError, match="6 problems in pair/train") as caught:
            load_rows(open_data(str(tmp_path)), PAIR, "train")
        errors.append(sorted(str(caught.value).splitlines()))
        small_parts(4)
    assert errors[0] == errors[1]
    assert any("row 18" in line for line in errors[1]) and any("row 9" in line for line in errors[1])


def test_a_split_may_exceed_the_limits_of_a_plain_array(small_parts: Callable[[int], None]) -> None:
    small_parts(2)
    parts = [load_rows(open_data({"pair": {"train": ROWS}}), PAIR, "train").slice(n, n + 5) for n in (0, 5)]
    wide = replace(parts[1], texts=tuple(text.cast(pa.large_string()) for text in parts[1].texts))
    assert rows.concat([parts[0], wide]).texts[0].to_pylist() == [row["a"] for row in ROWS[:10]]


def test_hashes_are_distinct_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(-(2**63), 2**63, 500).repeat(2)
    monkeypatch.setattr(row_hashes, "_MAX_WAITING", 100)
    monkeypatch.setattr(row_hashes, "_BLOCK", 70)
    hashes = RowHashes()
    for start in range(0, 1000, 30):
        hashes.add(values[::-1][start : start + 30])
    distinct = hashes.distinct()
    np.testing.assert_array_equal(distinct, np.unique(values))
    queries = np.concatenate([values[:20], values[:20] + 1])
    np.testing.assert_array_equal(contained(queries, distinct), np.isin(queries, values))
    assert len(RowHashes().distinct()) == 0 and not contained(queries, np.zeros(0, np.int64)).any()


def test_only_part_of_the_hashes_is_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_hashes, "_MAX_WAITING", 100)
    monkeypatch.setattr(row_hashes, "_BLOCK", 100)
    maps, finish, others = [], mapped.MappedArray.finish, set(mapped._MAPS)

    def finish_and_count(array: mapped.MappedArray) -> np.ndarray:
        values = finish(array)
        maps.append(len(set(mapped._MAPS) - others))
        return values

    monkeypatch.setattr(mapped.MappedArray, "finish", finish_and_count)
    hashes = RowHashes()
    hashes.add(np.random.default_rng(0).integers(-(2**63), 2**63, 1000))
    distinct = hashes.distinct()
    assert len(maps) > 10 and max(maps) == 1, "sorted one file after the other"

    searches: list[None] = []
    monkeypatch.setattr(row_hashes, "release_pages", lambda: searches.append(None))
    assert contained(distinct[::100], distinct).all()
    assert len(searches) == 10, "pages are released after each 100 hashes"


def test_length_statistics_match_numpy() -> None:
    sizes = np.random.default_rng(0).integers(0, 90, 2501)
    texts = pa.array(["w " * int(size) for size in sizes])
    found = SplitStatistics(replace(PAIR, columns=("a",)), None)
    for start in range(0, len(texts), 100):
        found.add(RawTable(pa.table({"a": texts.slice(start, 100)}), "file"))
    (lengths,) = found.lengths()
    expected = [sizes.mean(), *np.percentile(sizes, [50, 95]), sizes.max()]
    np.testing.assert_allclose([lengths.mean, lengths.median, lengths.p95, lengths.max], expected)
    assert found.sample.num_rows == 1000
    drawn = pc.count_substring(found.sample["a"], "w").to_numpy()
    assert abs(drawn.mean() - sizes.mean()) < 3 * sizes.std() / 1000**0.5, "a sample of all rows"


@pytest.fixture
def peak() -> Iterator[Callable[[Callable[[], object]], int]]:
    """A function that measures the peak memory of Python, numpy and Arrow during a call."""
    default = pa.default_memory_pool()

    def measured(call: Callable[[], object]) -> int:
        pool = pa.proxy_memory_pool(default)
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            call()
            return pool.max_memory() + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(default)

    yield measured


@pytest.mark.parametrize("what", ["load", "check", "mask"])
def test_memory_does_not_grow_with_the_rows(
    what: str, tmp_path: Path, small_parts: Callable[[int], None], peak: Callable[[Callable[[], object]], int]
) -> None:
    small_parts(250)

    def job(count: int) -> Callable[[], object]:
        root = tmp_path / str(count)
        texts = [f"{n} " + "word " * 20 for n in range(count)]
        table = pa.table({"a": texts, "b": texts, "label": [n % 2 for n in range(count)]})
        (root / "pair").mkdir(parents=True)
        pq.write_table(table, root / "pair/train.parquet", row_group_size=1000)
        source = open_data(str(root))
        if what == "check":
            return lambda: report_on(source, [PAIR])
        if what == "load":
            return lambda: digest_rows(load_rows(source, PAIR, "train"))
        mask = CorpusSpec(Masking(), {"pair": 1}, "made", "0", "mask", shard_copies=250)
        return lambda: write_corpus(mask, {"pair": load_rows(source, PAIR, "train")}, root / "corpus")

    peak(job(1000))  # modules are loaded, caches filled
    small, large = peak(job(2000)), peak(job(6000))
    assert large < 1.2 * small, f"{large:,} bytes for 6,000 rows, {small:,} for 2,000"
