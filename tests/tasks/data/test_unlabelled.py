"""Unlabelled rows, compared with the same rows read by pyarrow."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from glob import iglob
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tasks.checks.overlap import overlap_warnings, trained_warnings
from tasks.common.errors import UserError
from tasks.common.mapped import MappedTexts, mapped
from tasks.data import appended_rows, file_readers
from tasks.data.appended_rows import append_unlabelled
from tasks.data.file_patterns import matching_files
from tasks.data.loading import digest_rows, load_rows
from tasks.data.rows import Rows, row_keys
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest, names_files
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_file import load_task
from tasks.tokens import tokeniser
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.tokeniser import Tokeniser

PAIR = Task(name="pair", kind="classify", columns=("a", "b"), labels=("no", "yes"))
TEXTS = {
    "a": [f'ünï "{n}", and\nmore' if n % 7 == 0 else f"text {n}" for n in range(25)],
    "b": [f"other {n % 5}" * (n % 3) for n in range(25)],
}
TRAIN = {"a": ["x", "y", "text 8"], "b": ["1", "2", "3"], "label": [0, 1, 1]}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=4)
    elif path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    return path


def train_rows(task: Task = PAIR, columns: dict[str, list[Any]] = TRAIN) -> Rows:
    return load_rows(open_data({task.name: {"train": columns}}), task, "train")


def appended(task: Task, unlabelled: Any, limit: int | None = None, train: Rows | None = None) -> Rows:
    request = UnlabelledRequest({task.name: unlabelled}, limit)
    batches = request.open(open_data({task.name: {}}), task)
    assert batches is not None
    start = train or train_rows(task)
    rows, added = append_unlabelled(task, start, batches, limit)
    assert len(rows) == len(start) + added
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_are_read_in_parts(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_readers, "BATCH_ROWS", 8)
    monkeypatch.setattr(appended_rows, "STEP", 3)
    path = write(tmp_path / f"more{suffix}", TEXTS)
    sizes = [raw.table.num_rows for raw in file_readers.read_batches(path, PAIR.columns)]
    assert sum(sizes) == 25 and max(sizes) <= 8
    rows = appended(PAIR, str(path))
    assert [column.to_pylist() for column in rows.texts] == [TRAIN[name] + TEXTS[name] for name in ("a", "b")]
    uids = [f"pair/train/{n}" for n in range(3)] + [f"pair/unlabelled/{n}" for n in range(25)]
    assert rows.uids.to_pylist() == uids
    assert rows.labels[:3].tolist() == [0, 1, 1] and np.isnan(rows.labels[3:]).all()
    in_memory = rows.take(np.arange(len(rows)))
    copied = replace(
        in_memory,
        uids=in_memory.uids.cast(pa.string()),
        texts=tuple(column.cast(pa.string()) for column in in_memory.texts),
        labels=np.array(in_memory.labels),
    )
    assert digest_rows(copied) == digest_rows(rows), "the digest does not depend on how texts are kept"


def test_unlabelled_rows_can_be_lists_patterns_or_files_of_a_split(tmp_path: Path) -> None:
    for number in range(2):
        part = {name: values[number * 10 : number * 10 + 10] for name, values in TEXTS.items()}
        write(tmp_path / "data" / "pair" / f"part-{number}.jsonl", part)
    expected = TRAIN["a"] + TEXTS["a"][:20]
    folder = tmp_path / "data" / "pair"
    assert appended(PAIR, str(folder / "part-*.jsonl")).texts[0].to_pylist() == expected
    files = [folder / "part-0.jsonl", folder / "part-1.jsonl"]
    assert appended(PAIR, files).texts[0].to_pylist() == expected
    with pytest.raises(
        UserError, match=r"part-0.jsonl is named twice for the unlabelled rows of task 'pair'"
    ):
        appended(PAIR, [*files, folder / "part-0*"])
    single = replace(PAIR, columns=("a",))
    for names in (list(map(str, files)), [str(folder / "part-*")], [files[0], str(files[1])]):
        assert names_files(names) and appended(single, names).texts[0].to_pylist() == expected
    for names in (["no/such.csv"], ["s3://bucket/more"], (str(files[0]), "more.jsonl.gz")):
        assert names_files(names)
    for rows in (["a nice film", "a dull one", str(files[0])], ["what?"], ["a\0*"], ["x" * 5000], []):
        assert not names_files(rows)
    assert appended(single, ["a nice film"]).texts[0].to_pylist() == [*TRAIN["a"], "a nice film"]
    with pytest.raises(UserError, match="no file of unlabelled rows of task 'pair': a nice film"):
        UnlabelledRequest.of_files({"pair": ["a nice film"]}, None).open(open_data(None), PAIR)
    named_like_pattern = tmp_path / "rows [1]" / "all [2].jsonl"
    write(named_like_pattern, TEXTS)
    for request in (named_like_pattern, [named_like_pattern]):
        assert appended(PAIR, request).texts[0].to_pylist() == TRAIN["a"] + TEXTS["a"]
    assert matching_files(["a*.jsonl"], named_like_pattern.parent) == [named_like_pattern]
    assert UnlabelledRequest().open(open_data(str(tmp_path / "data")), PAIR) is None
    write(folder / "unlabelled.csv", TEXTS)
    found = UnlabelledRequest().open(open_data(str(tmp_path / "data")), PAIR)
    assert found is not None and sum(raw.table.num_rows for raw in found()) == 25
    write(folder / "test.csv", TEXTS | {"label": [-1] * 25})
    of_test = UnlabelledRequest({"pair": "test"}).open(open_data(str(tmp_path / "data")), PAIR)
    assert of_test is not None
    assert len(append_unlabelled(PAIR, train_rows(), of_test)[0]) == 28
    sst2 = TASKS["sst2"]
    assert UnlabelledRequest().open(open_data("pocket"), sst2) is None, "only if asked for"
    generated = UnlabelledRequest({"sst2": "unlabelled"}).open(
        open_data(["pocket", str(tmp_path / "data")]), sst2
    )
    assert generated is not None and sum(raw.table.num_rows for raw in generated()) > 3900
    with pytest.raises(UserError, match="no file of unlabelled rows of task 'squad': unlabelled"):
        UnlabelledRequest({"squad": "unlabelled"}).open(open_data("pocket"), TASKS["squad"])
    with pytest.raises(UserError, match="no file of unlabelled rows of task 'pair': nothing"):
        UnlabelledRequest({"pair": "nothing.csv"}).open(open_data(str(tmp_path / "data")), PAIR)
    with pytest.raises(UserError, match="data is a directory\n  expected: a file of rows"):
        appended(PAIR, str(tmp_path / "data"))


def test_names_of_files_in_other_sequences_are_not_texts(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"part-{n}.csv", {"a": [f"text {n}"]}) for n in range(2)]
    names = list(map(str, paths))
    single = replace(PAIR, columns=("a",))
    others = (
        np.array(names),
        pandas.Series(names),
        deque(names),
        iglob(str(tmp_path / "part-*.csv")),
        iter(paths),
    )
    for given in others:
        assert sorted(appended(single, given).texts[0].to_pylist()[3:]) == ["text 0", "text 1"]
    for given in ([names[0], str(tmp_path / "part-7")], np.array([*names, "gone.txt"])):
        with pytest.raises(UserError, match=r"rows of task 'pair': .*(part-7|gone\.txt)") as refused:
            appended(single, given)
        assert "to pass texts, write `{'a': texts}`" in str(refused.value.hint)
    texts = np.array(["a nice film", "a dull film"])
    request = UnlabelledRequest({"pair": iter(texts)})
    for _ in range(2):
        batches = request.open(open_data(None), single)
        assert batches is not None and sum(raw.table.num_rows for raw in batches()) == 2
    assert appended(single, texts).texts[0].to_pylist()[3:] == texts.tolist()


def test_a_task_file_can_name_unlabelled_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", TRAIN)
    write(tmp_path / "more-1.csv", TEXTS)
    lines = [
        'name = "mine"',
        'kind = "classify"',
        'columns = ["a", "b"]',
        'labels = ["no", "yes"]',
        "[files]",
    ]
    lines += ['train = "train.csv"', 'unlabelled = "more-*.csv"']
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    task = load_task(tmp_path / "mine.toml")
    assert (task.splits, task.unlabelled) == (("train",), (str(tmp_path / "more-*.csv"),))
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    batches = UnlabelledRequest().open(open_data("pocket"), task)
    assert batches is not None and sum(raw.table.num_rows for raw in batches()) == 25
    (tmp_path / "mine.toml").write_text(
        "\n".join(lines).replace('"more-*.csv"', '["more-1.csv", "other.csv"]')
    )
    several = load_task(tmp_path / "mine.toml")
    assert several.unlabelled == (str(tmp_path / "more-1.csv"), "other.csv")
    with pytest.raises(UserError, match=r"no file of unlabelled rows of task 'mine': other\.csv"):
        UnlabelledRequest().open(open_data("pocket"), several)
    overlapping = replace(
        several, unlabelled=tuple(str(tmp_path / name) for name in ("more-1.csv", "m*.csv"))
    )
    with pytest.raises(UserError, match=r"more-1\.csv is named twice for the unlabelled rows of task 'mine'"):
        UnlabelledRequest().open(open_data("pocket"), overlapping)
    (tmp_path / "mine.toml").write_text('extends = "sst2"\n[files]\nunlabelled = "gone.csv"')
    extended = load_task(tmp_path / "mine.toml")
    assert (extended.train, extended.files) == ("train", {}), "its other splits are those of sst2"
    with pytest.raises(UserError, match=r"no file of unlabelled rows of task 'sst2': gone\.csv"):
        UnlabelledRequest().open(open_data("pocket"), extended)


def test_labelled_rows_invalid_rows_and_missing_columns_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_readers, "BATCH_ROWS", 2)
    rows: dict[str, list[Any]] = {name: values[:5] for name, values in TEXTS.items()}
    nulls = rows | {"label": [None, None, None, None, None]}
    assert len(appended(PAIR, str(write(tmp_path / "nulls.jsonl", nulls)))) == 8
    labelled = write(tmp_path / "labelled.parquet", rows | {"label": [None, None, None, None, 1]})
    with pytest.raises(UserError, match=r"labelled.parquet, row 4: column 'label' holds 1") as refused:
        appended(PAIR, str(labelled))
    assert refused.value.hint == "put these rows into the training file, or drop the column 'label'"
    other = write(tmp_path / "other.csv", rows | {"label": ["", "", "", "maybe", ""]})
    with pytest.raises(UserError, match=r"other.csv:\d+: column 'label' holds 'maybe'"):
        appended(PAIR, str(other))
    with pytest.raises(UserError, match="has no column 'b'"):
        appended(PAIR, str(write(tmp_path / "one.csv", {"a": rows["a"]})))
    with pytest.raises(UserError, match="null instead of text") as refused:
        appended(PAIR, {"a": ["x", None], "b": ["y", "z"]})
    assert refused.value.hint == "drop the rows without a text, or fill it in"
    with pytest.raises(UserError, match="there are no rows"):
        appended(PAIR, {"a": pa.array([], pa.string()), "b": pa.array([], pa.string())})
    (tmp_path / "broken.jsonl").write_text('{"a": "x", "b": "y"}\n{"a": "z"}\n')
    with pytest.raises(UserError, match=r"broken.jsonl:2: column 'b': null instead of text"):
        appended(PAIR, str(tmp_path / "broken.jsonl"))
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\xc3\xa4,y\nx,\xff\n")
    with pytest.raises(UserError, match=r"bytes.csv:3: not UTF-8: byte 0xff at position 2"):
        appended(PAIR, str(tmp_path / "bytes.csv"))


def test_samples_are_nested_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_rows, "STEP", 4)
    found = [appended(PAIR, TEXTS, limit).uids.to_pylist()[3:] for limit in (5, 12, 100)]
    assert list(map(len, found)) == [5, 12, 25]
    assert set(found[0]) < set(found[1]) < set(found[2])
    assert found[1] == [uid for uid in found[2] if uid in found[1]]
    twelve = appended(PAIR, TEXTS, 12)
    assert twelve.texts[0].to_pylist()[3:] == [TEXTS["a"][int(uid.rpartition("/")[2])] for uid in found[1]]
    assert appended(PAIR, TEXTS, 12, train_rows().take(np.arange(2))).uids.to_pylist()[2:] == found[1]


def test_groups_stay_together() -> None:
    rank = Task(name="r", kind="rank", columns=("a", "b"), labels=("no", "yes"), group="a", positive=1)
    train = train_rows(rank, {"a": ["x", "x", "y"], "b": ["1", "2", "3"], "label": [0, 1, 1]})
    new = {"a": ["x", "z", "z", "w", "w", "w"], "b": list("abcdef")}
    rows = appended(rank, new, train=train)
    assert rows.groups is not None and rows.groups.tolist() == [0, 0, 1, 2, 3, 3, 4, 4, 4]
    for limit in range(1, 7):
        part = appended(rank, new, limit, train)
        assert part.groups is not None
        sizes = {group: rows.groups.tolist().count(group) for group in part.groups.tolist()}
        assert all(part.groups.tolist().count(group) == size for group, size in sizes.items())


def test_span_and_multilabel_tasks_can_have_unlabelled_rows() -> None:
    span = Task(name="s", kind="span", columns=("question", "context"), label="answers")
    answers = [{"text": ["b"], "answer_start": [2]}]
    columns = {"question": ["q"], "context": ["a b"], "answers": answers, "id": ["1"]}
    rows = appended(
        span, {"question": ["r", "s"], "context": ["c d", "e f"]}, train=train_rows(span, columns)
    )
    assert rows.answers is not None and rows.answers.to_pylist() == [*answers, None, None]
    many = Task(name="m", kind="multilabel", columns=("a",), labels=("p", "q", "r"))
    train = train_rows(many, {"a": ["x"], "label": [["p", "r"]]})
    labels = appended(many, ["new", "text"], train=train).labels
    assert labels[0].tolist() == [1, 0, 1] and labels.shape == (3, 3) and np.isnan(labels[1:]).all()


def test_rows_that_are_also_validation_or_test_rows_are_counted() -> None:
    other = {"a": ["text 8", "text 9", "new"], "b": [TEXTS["b"][8], "different", "new"]}
    splits = {"train": TRAIN, "validation": other | {"label": [0, 1, 0]}, "test": other}
    source = open_data({"pair": splits})
    rows = appended(PAIR, TEXTS).slice(3, 28)
    assert overlap_warnings(source, PAIR, rows, None) == [
        f"1 of the 25 unlabelled rows of pair is also in the split {split}, so scores on it may be too high"
        for split in ("validation", "test")
    ]
    assert len(overlap_warnings(source, PAIR, rows, "test")) == 1
    a, b = pa.array(["x", "xy"]), pa.array(["yz", "z"])
    assert len(row_keys([a, b]).unique()) == 2


HALF = {"a": ["x", "new"], "b": ["1", "2"], "label": [0, 1]}  # the first one is a training row


def test_validation_rows_that_are_training_rows_are_counted() -> None:
    train = train_rows()
    half = train_rows(columns=HALF)
    new = {"a": ["new"] * 99, "b": ["2"] * 99, "label": [0] * 99}
    one_in_100 = train_rows(
        columns={name: [half_values[0], *new[name]] for name, half_values in HALF.items()}
    )
    assert trained_warnings(train, {"validation": one_in_100}) == []
    assert trained_warnings(train, {"validation_a": train.slice(1, 3), "validation_b": half}) == [
        f"{trained} of the 2 rows of pair/{split} ({share}) {are} also in the training rows, so scores on it "
        "are too high"
        for trained, split, share, are in (
            (2, "validation_a", "100%", "are"),
            (1, "validation_b", "50%", "is"),
        )
    ]


def test_memory_mapped_columns_equal_the_added_rows(
    monkeypatch: pytest.MonkeyPatch, minilm: Tokeniser
) -> None:
    texts = MappedTexts()
    parts = [pa.array(["a", "", "ü"]), pa.array([], pa.string()), pa.array(["x", "bc", "d"]).slice(1, 1)]
    for part in (*parts, pa.array(["e"], pa.large_string())):
        texts.add(part)
    assert texts.finish().to_pylist() == ["a", "", "ü", "bc", "e"]
    assert MappedTexts().finish().to_pylist() == []
    numbers = [np.arange(6.0).reshape(3, 2), np.ones((1, 2))]
    assert mapped(iter(numbers), np.float64).tolist() == np.concatenate(numbers).tolist()
    words = pa.array(["a film", "", "another good film"] * 3)
    plain = minilm.token_ids(words)
    monkeypatch.setattr(tokeniser, "MAPPED_TEXTS", 5)
    monkeypatch.setattr(tokeniser, "TEXTS_PER_CALL", 2)
    spooled = minilm.token_ids(words)
    assert isinstance(spooled, RaggedArray) and not spooled.values.flags.writeable
    assert spooled.values.tolist() == plain.values.tolist()
    assert spooled.offsets.tolist() == plain.offsets.tolist()
