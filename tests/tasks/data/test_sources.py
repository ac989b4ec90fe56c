"""Rows are the same in every format, and errors of invalid files name the line."""

from __future__ import annotations

import csv
import json
import os
import random
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.common.errors import UserError
from tasks.common.hub_loading import _HUB_CHECKS, find_file
from tasks.data.file_readers import read_batches, read_file
from tasks.data.loading import digest_rows, load_rows
from tasks.data.rows import Rows
from tasks.data.sources import open_data
from tasks.data.tables import as_table
from tasks.glue import TASKS
from tasks.task import Task

SHARED = Path(os.environ.get("MTKD_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")

OWN = Task(name="own", kind="classify", columns=("one", "two"), labels=("no", "yes"))


def content(rows: Rows) -> list[tuple]:
    """Return everything in the rows, as plain values."""
    labels = [None if np.isnan(label) else label for label in rows.labels]
    return list(zip(rows.uids.to_pylist(), *(text.to_pylist() for text in rows.texts), labels, strict=True))


def write_all(root: Path, task: str, split: str, rows: list[dict]) -> None:
    """Write the same rows as parquet, JSON lines and CSV, each in a directory of its own."""
    for kind in ("parquet", "jsonl", "csv"):
        (root / kind / task).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "parquet" / task / f"{split}.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "jsonl" / task / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    with open(root / "csv" / task / f"{split}.csv", "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


# --- every format gives the same rows ---

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 1)), min_size=1, max_size=8))
def test_parquet_jsonl_and_csv_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple]
) -> None:
    root = tmp_path_factory.mktemp("forms")
    write_all(root, "own", "train", [dict(zip(("one", "two", "label"), row, strict=True)) for row in rows])
    expected = [(f"own/train/{n}", *row) for n, row in enumerate(rows)]
    loaded = [load_rows(open_data(str(root / kind)), OWN, "train") for kind in ("parquet", "jsonl", "csv")]
    assert [content(rows) for rows in loaded] == [expected] * 3
    assert len({digest_rows(rows) for rows in loaded}) == 1


SENTENCES = [
    'He said "no" twice.',
    '"Open quote',
    "don't",
    'a ""b"" c',
    " trailing space ",
    "naïve — 日本 \x85 \u2028 x",
]


def release_file(path: Path, header: str | None, lines: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = ([header] if header else []) + ["\t".join(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8", newline="")


def test_cola_without_header_in_train_but_not_in_test(tmp_path: Path) -> None:
    release_file(
        tmp_path / "CoLA/train.tsv", None, [["gj04", str(n % 2), "*", s] for n, s in enumerate(SENTENCES)]
    )
    release_file(
        tmp_path / "CoLA/test.tsv", "index\tsentence", [[str(n), s] for n, s in enumerate(SENTENCES)]
    )
    source = open_data(str(tmp_path))
    assert source.splits(TASKS["cola"]) == ["train", "test"]
    train = load_rows(source, TASKS["cola"], "train")
    assert content(train) == [(f"cola/train/{n}", s, n % 2) for n, s in enumerate(SENTENCES)]
    test = load_rows(source, TASKS["cola"], "test")
    assert content(test) == [(f"cola/test/{n}", s, None) for n, s in enumerate(SENTENCES)]
    assert not test.labelled
    assert source.table(TASKS["cola"], "train")["idx"].to_pylist() == list(range(len(SENTENCES)))


def test_mnli_has_two_dev_sets(tmp_path: Path) -> None:
    columns = "index\tpromptID\tpairID\tgenre\ts1b\ts2b\ts1p\ts2p\tsentence1\tsentence2\tlabel1\tgold_label"
    names = ("entailment", "neutral", "contradiction")
    for file in ("train", "dev_matched", "dev_mismatched"):
        lines = [[str(n), *"abcdefg", f"{file} {n}", '"q', "neutral", name] for n, name in enumerate(names)]
        release_file(tmp_path / f"MNLI/{file}.tsv", columns, lines)
    source, task = open_data(str(tmp_path)), TASKS["mnli"]
    assert source.splits(task) == ["train", "validation_matched", "validation_mismatched"]
    rows = load_rows(source, task, "validation_mismatched")
    assert content(rows) == [
        (f"mnli/validation_mismatched/{n}", f"dev_mismatched {n}", '"q', n) for n in range(3)
    ]


MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
MRPC = [["1", "10", "11", 'a "x', "b"], ["0", "12", "13", "c", "d"], ["1", "14", "15", "e", "f"]]


def test_original_mrpc_files_are_split_by_the_dev_ids(tmp_path: Path) -> None:
    folder = tmp_path / "MRPC"
    folder.mkdir()
    text = "\r\n".join([MRPC_HEADER, *("\t".join(line) for line in MRPC)]) + "\r\n"
    (folder / "msr_paraphrase_train.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "msr_paraphrase_test.txt").write_text(text)
    (folder / "dev_ids.tsv").write_text("12\t13\n")
    source, task = open_data(str(tmp_path)), TASKS["mrpc"]
    assert content(load_rows(source, task, "train")) == [
        ("mrpc/train/0", 'a "x', "b", 1),
        ("mrpc/train/1", "e", "f", 1),
    ]
    assert content(load_rows(source, task, "validation")) == [("mrpc/validation/0", "c", "d", 0)]
    assert source.table(task, "train")["idx"].to_pylist() == [0, 2]
    assert source.raw_table(task, "train").location(1).endswith("msr_paraphrase_train.txt:4")
    assert load_rows(source, task, "test").labels.tolist() == [1, 0, 1]


def test_mrpc_as_the_download_script_writes_it(tmp_path: Path) -> None:
    release_file(tmp_path / "MRPC/train.tsv", MRPC_HEADER, MRPC)
    release_file(tmp_path / "MRPC/test.tsv", MRPC_HEADER.replace("Quality", "index"), MRPC)
    source = open_data(str(tmp_path))
    assert load_rows(source, TASKS["mrpc"], "train").labels.tolist() == [1, 0, 1]
    assert not load_rows(source, TASKS["mrpc"], "test").labelled


def test_other_releases_rename_their_columns_and_read_words(tmp_path: Path) -> None:
    score = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    release_file(tmp_path / "STS-B/dev.tsv", score, [["0", *"gfyoab", "p", "q", "3.800"]])
    release_file(
        tmp_path / "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel", [["0", "p", "q", "not_entailment"]]
    )
    release_file(tmp_path / "SST-2/dev.tsv", "sentence\tlabel", [["p ", "1"]])
    qqp = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    release_file(
        tmp_path / "QQP/train.tsv",
        qqp,
        [["0", "1", "2", "p", "q", "1"], ["1", "2", "3", "cut"], ["off", "0"]],
    )
    release_file(tmp_path / "diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2", [["0", "p", "q"]])
    source = open_data(str(tmp_path))
    read = [
        ("stsb", "validation"),
        ("rte", "validation"),
        ("sst2", "validation"),
        ("qqp", "train"),
        ("ax", "test"),
    ]
    found = [content(load_rows(source, TASKS[task], split)) for task, split in read]
    assert found == [
        [("stsb/validation/0", "p", "q", float(np.float32(3.8)))],
        [("rte/validation/0", "p", "q", 1)],
        [("sst2/validation/0", "p ", 1)],
        [("qqp/train/0", "p", "q", 1)],
        [("ax/test/0", "p", "q", None)],
    ]
    assert [error_of.line for error_of in source.raw_table(TASKS["qqp"], "train").bad_lines] == [3, 4]


@needs_shared
@pytest.mark.parametrize("name", ["sst2", "stsb", "mrpc", "rte", "wnli"])
def test_real_rows_survive_every_form(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    real = load_rows(open_data(str(SHARED)), task, "validation", limit=200)
    names = (*task.columns, task.label)
    values = [row[1:] for row in content(real)]
    write_all(tmp_path, name, "validation", [dict(zip(names, row, strict=True)) for row in values])
    folders = {"sst2": "SST-2", "stsb": "STS-B", "mrpc": "MRPC", "rte": "RTE", "wnli": "WNLI"}
    words = {"label": "score" if name == "stsb" else "label"}
    header = "\t".join(words.get(column, column) for column in names)
    if name == "mrpc":
        header = "#1 String\t#2 String\tQuality"
    release_file(
        tmp_path / "tsv" / folders[name] / "dev.tsv",
        header,
        [[*row[:-1], str(row[-1] if name == "stsb" else int(row[-1]))] for row in values],
    )
    for kind in ("parquet", "jsonl", "csv", "tsv"):
        rows = load_rows(open_data(str(tmp_path / kind)), task, "validation")
        assert [row[1:] for row in content(rows)] == values, kind


# --- places ---


def test_directory_layouts_of_the_hub_are_read(tmp_path: Path) -> None:
    table = pa.table({"sentence": ["a", "b", "c"], "label": [0, 1, 0]})
    (tmp_path / "glue" / "sst2").mkdir(parents=True)
    for number in range(2):
        pq.write_table(
            table.slice(2 * number, 2), tmp_path / f"glue/sst2/train-0000{number}-of-00002.parquet"
        )
    for root in (tmp_path, tmp_path / "glue"):
        rows = load_rows(open_data(str(root)), TASKS["sst2"], "train")
        assert rows.texts[0].to_pylist() == ["a", "b", "c"]


@needs_shared
def test_the_data_directory_and_its_glue_folder_give_the_same_rows() -> None:
    full, part = open_data(str(SHARED)), open_data(str(SHARED / "glue"))
    for name in ("cola", "rte", "stsb", "ax"):
        assert full.splits(TASKS[name]) == part.splits(TASKS[name]) != []
        split = full.splits(TASKS[name])[-1]
        assert full.table(TASKS[name], split).equals(part.table(TASKS[name], split))
    assert full.splits(TASKS["qnli"]) == ["validation", "test"]
    assert not load_rows(full, TASKS["stsb"], "test").labelled
    assert load_rows(full, TASKS["mrpc"], "test").labelled


def test_pocket_has_every_builtin_task() -> None:
    source = open_data("pocket")
    for task in TASKS.values():
        assert source.splits(task) == list(task.splits) or task.languages, "the generator writes English"
    rows = load_rows(source, TASKS["rte"], "train")
    assert rows.labelled and len(rows.texts) == 2
    assert not load_rows(source, TASKS["stsb"], "test").labelled
    with pytest.raises(UserError, match="no split 'train' of task 'own' in 'pocket'"):
        load_rows(source, OWN, "train")


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_data(str(tmp_path / "none"))
    with pytest.raises(UserError, match="no split 'train' of task 'rte'"):
        load_rows(open_data(str(tmp_path)), TASKS["rte"], "train")
    (tmp_path / "rows.csv").touch()
    with pytest.raises(UserError, match=r"is a file\n.*\n.*as DIR/TASK/validation\.csv"):
        open_data(str(tmp_path / "rows.csv"))


# --- the hub ---


def test_unreachable_hub_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def no_name(*args: object, **kwargs: object) -> None:
        asked.append(args)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    _HUB_CHECKS.clear()
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(UserError, match="hub cannot be reached") as caught:
        load_rows(open_data("hub"), TASKS["rte"], "train")
    looked_up = len(asked)
    assert find_file("no-such/model", "config.json") is None
    _HUB_CHECKS.clear()
    assert looked_up and len(asked) == looked_up, "one probe serves data sets and models"
    assert "`data='DIR'`" in str(caught.value) and "pocket" in str(caught.value)
    assert not slept  # no retries


def test_rows_are_read_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from tasks.data import hub_data as hubdata

    calls = []

    def load(*args: object, **options: object) -> datasets.Dataset:
        calls.append((args, options))
        features = datasets.Features(
            {
                "sentence": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["negative", "positive"]),
            }
        )
        return datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [1, -1]}, features=features)

    monkeypatch.setattr(hubdata, "hub_error", lambda endpoint: None)
    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = load_rows(open_data("hub"), TASKS["sst2"], "test")
    assert content(rows) == [("sst2/test/0", "a", 1), ("sst2/test/1", "b", None)]
    assert calls == [(("nyu-mll/glue", "sst2"), {"split": "test"})]


# --- limits, groups, digests ---


def test_limit_is_a_fixed_random_subset_in_file_order() -> None:
    source, task = open_data("pocket"), TASKS["sst2"]
    full = load_rows(source, task, "train")
    some = load_rows(source, task, "train", limit=50)
    numbers = [int(uid.rsplit("/", 1)[1]) for uid in some.uids.to_pylist()]
    assert len(some) == 50 and numbers == sorted(set(numbers))
    assert content(some) == content(full.take(np.array(numbers)))
    assert digest_rows(some) == digest_rows(load_rows(source, task, "train", limit=50))
    assert content(load_rows(source, task, "train", limit=10**6)) == content(full)
    with pytest.raises(UserError, match="1 or more"):
        load_rows(source, task, "train", limit=0)


def test_rank_groups_stay_whole(tmp_path: Path) -> None:
    task = Task(
        name="r", kind="rank", columns=("q", "s"), labels=("right", "wrong"), group="q", metrics=("mrr",)
    )
    stream = random.Random(0)
    rows = [{"q": f"q{n // 4}", "s": f"s{n}", "label": int(n % 4 > 0)} for n in range(40)]
    stream.shuffle(rows)
    write_all(tmp_path, "r", "train", rows)
    loaded = load_rows(open_data(str(tmp_path / "csv")), task, "train")
    assert loaded.groups is not None
    for first in range(40):
        same = [rows[first]["q"] == row["q"] for row in rows]
        assert (loaded.groups == loaded.groups[first]).tolist() == same
    some = load_rows(open_data(str(tmp_path / "csv")), task, "train", limit=13)
    assert some.groups is not None and len(some) == 12 and set(np.bincount(some.groups)) <= {0, 4}


def test_the_digest_depends_on_every_part_of_the_rows() -> None:
    base = Rows("t", "s", pa.array(["u", "v"]), (pa.array(["ab", "c"]),), np.array([0.0, np.nan]))
    others = [
        Rows("t", "s", pa.array(["u", "v"]), (pa.array(["a", "bc"]),), np.array([0.0, np.nan])),
        Rows("t", "s", pa.array(["u", "w"]), (pa.array(["ab", "c"]),), np.array([0.0, np.nan])),
        Rows("t", "s", pa.array(["u", "v"]), (pa.array(["ab", "c"]),), np.array([0.0, 1.0])),
        Rows("t", "s", base.uids, base.texts, base.labels, np.array([0, 1])),
    ]
    assert len({digest_rows(rows) for rows in [base, *others]}) == 5
    sliced = Rows(
        "t",
        "s",
        pa.array(["x", "u", "v"])[1:],
        (pa.array(["x", "ab", "c"])[1:],),
        -base.labels * 0 + base.labels,
    )
    assert digest_rows(sliced) == digest_rows(base)


# --- bad input ---


def error_of(tmp_path: Path, file: str, text: str | bytes, task: Task = OWN) -> str:
    """Return the error for a train file with this content."""
    path = tmp_path / task.name / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_rows(open_data(str(tmp_path)), task, path.name.split(".")[0])
    return str(caught.value)


ROW = '{"one": "a", "two": "b", "label": 1}' + "\n"
HEAD = "one,two,label\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.csv", HEAD + "a,b,1\na,b\n", "train.csv:3: 2 fields, but the header has 3"),
        ("train.csv", HEAD + '"a\nb",b,1\na,b,1,x\n', "train.csv:4: 4 fields"),
        ("train.csv", HEAD + 'a,b,1\n"a,b,1\n', "train.csv:3: not CSV: a quote is not closed"),
        (
            "train.csv",
            HEAD + f"{'a' * 200_000},b,1\n",
            "more than 131,072 characters (is a quote not closed?)",
        ),
        ("train.csv", "one,two,two\na,b,1\n", "'two' twice"),
        ("train.csv", HEAD.encode() + b"\xc3\xa4,b,1\na\xff,b,1\n", "train.csv:3: not UTF-8: byte 0xff"),
        ("train.csv", HEAD, "there are no rows"),
        ("train.jsonl", "", "there are no rows"),
        ("train.jsonl", ROW + '{"one": "a",\n', "train.jsonl:2: not JSON"),
        ("train.jsonl", ROW + '\n{"one": "a"}\n', "train.jsonl:3: column 'two': null instead of text"),
        ("train.jsonl", ROW + '{"one": "a", "two": "b"}\n', "train.jsonl:2: column 'label': no label"),
        ("train.jsonl", ROW.replace('"a"', "3"), "train.jsonl:1: the field 'one' is 3, not text"),
        ("train.jsonl", ROW.replace('"a"', "null"), "column 'one': null instead of text"),
        ("train.jsonl", ROW.replace('"a"', '"\\ud800"'), "train.jsonl:1: not JSON"),
        ("train.jsonl", "[1]\n", "train.jsonl:1: a JSON list in place of"),
        ("train.jsonl", ROW.replace("1}", "[1]}"), "column 'label' holds list"),
        (
            "train.csv",
            "one,tow,label\na,b,1\n",
            "no column 'two', which task 'own' needs (did you mean 'tow'?)",
        ),
        (
            "train.csv",
            HEAD + "a,b,2\n",
            "train.csv:2: column 'label': label '2'; expected: 'no' (0), 'yes' (1)",
        ),
        ("train.csv", HEAD + "a,b,-1\n", "label '-1'"),
        ("train.csv", HEAD + "a,b,\n", "no label"),
        ("train.csv", HEAD + "a,b, \n", "no label"),
        ("train.csv", HEAD + "a,b,0.5\n", "label '0.5'"),
        ("test.csv", HEAD + "a,b,7\n", "label '7'"),
        ("train.parquet", b"PAR1 no parquet", "cannot read"),
    ],
)
def test_invalid_files_are_errors_that_name_the_line(
    tmp_path: Path, file: str, text: str | bytes, message: str
) -> None:
    assert message in error_of(tmp_path, file, text)


@pytest.mark.parametrize("text", ["one,two,label\na,b\n", 'one,two,label\n"a'])
def test_a_split_without_readable_rows_has_one_problem(tmp_path: Path, text: str) -> None:
    message = error_of(tmp_path, "train.csv", text)
    assert message.startswith("1 problem in own/train:") and "is empty" not in message


@pytest.mark.parametrize("name", ["valid", "val", "dev"])
def test_other_common_names_of_splits_are_found(tmp_path: Path, name: str) -> None:
    rows = [{"one": "a", "two": "b", "label": 0}]
    with pytest.raises(UserError, match=f"rename the key '{name}' to 'validation'"):
        load_rows(open_data({"own": {"train": rows, name: rows}}), OWN, "validation")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"{name}.csv").write_text("one,two,label\na,b,0\n")
    with pytest.raises(UserError, match=rf"own/{name}\.csv to validation\.csv"):
        load_rows(open_data(str(tmp_path)), OWN, "validation")


def test_a_wrong_key_of_data_in_memory_is_an_error() -> None:
    rows = [{"one": "a", "two": "b", "label": 9}]
    with pytest.raises(UserError, match="rename the key 'owns' to 'own'"):
        load_rows(open_data({"owns": {"train": rows}}), OWN, "train")
    with pytest.raises(UserError, match=r"mtkd\.check_data\(data, tasks\)"):
        load_rows(open_data({"own": {"train": rows}}), OWN, "train")
    for table in ([{"text": "a", "label": 0}], {"text": ["a"], "label": [0]}, {"text": np.array(["a"])}):
        with pytest.raises(
            UserError, match="`data` must name tasks and splits, but its key 'text'"
        ) as refused:
            open_data(table)
        assert refused.value.expected == '{task: {split: table}}, such as {"mood": {"train": rows}}'
    splits = open_data({"own": {"train": rows, "validation": rows}})
    error = splits.missing(replace(OWN, validation=()), "validation")
    assert error.problem == "the task 'own' does not name the split 'validation' of the data"
    assert error.hint == "name the split in the task, such as `validation=('validation',)`"
    with pytest.raises(UserError, match="`data` has the key None"):
        open_data({None: {"train": rows}})
    for key, table, hint in (
        ("own", rows, "name the split of these rows"),
        ("own", "rows.csv", "name the split of these rows"),
        ("dev", rows, "name the task of the splits"),
    ):
        with pytest.raises(UserError) as refused:
            open_data({key: table})
        assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"one": "a text", "two": "b", "label": [0]}, "the column 'one' is a str, not a list of values"),
        ({"one": ["a"], "label": {0: 1}}, "the column 'label' is a dict, not a list of values"),  # to_dict()
        ({"one": None}, "the column 'one' is a NoneType, not a list of values"),
        (
            {"one": ["a", "b"], "label": [True, 2]},
            "the column 'label' mixes types: bool in row 0, int in row 1",
        ),
        ([{"one": "a"}, None], "row 1 is a NoneType, not a dict like row 0"),
        ([{"one": "\ud800"}], "the column 'one' holds .* in row 0, which is not text"),
        (pandas.Series(["a"]), "a Series is not a table"),
        (
            pandas.DataFrame({"one": [None, "a", 3.5]}),
            "the column 'one' mixes types: str in row 1, float in row 2",
        ),
        ("", "the file of own/train cannot be ''"),
    ],
)
def test_invalid_rows_in_memory_are_rejected(rows: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_rows(open_data({"own": {"train": rows}}), replace(OWN, columns=("one",)), "train")


def test_rows_of_a_split_may_be_in_a_file(tmp_path: Path) -> None:
    rows = [{"one": f"text {number}", "two": "b", "label": number % 2} for number in range(4)]
    (tmp_path / "rows.csv").write_text("one,two,label\n" + "".join(f"text {n},b,{n % 2}\n" for n in range(4)))
    source = open_data({"own": {"train": rows, "validation": tmp_path / "rows.csv"}})
    train, validation = (content(load_rows(source, OWN, split)) for split in ("train", "validation"))
    assert [row[1:] for row in train] == [row[1:] for row in validation]
    with pytest.raises(UserError, match=r"no such file: .*row\.csv \(did you mean .*rows\.csv"):
        open_data({"own": {"train": str(tmp_path / "row.csv")}})
    with pytest.raises(UserError, match=r"(?s)own/train cannot be a list.*one file.*`pandas\.concat"):
        open_data({"own": {"train": [tmp_path / "rows.csv", tmp_path / "rows.csv"]}})


def test_data_sets_of_the_datasets_library_can_be_given_in_memory() -> None:
    import datasets

    dataset = datasets.Dataset.from_list([{"one": "a", "two": "b", "label": 0}])
    splits = datasets.DatasetDict(train=dataset, validation=dataset)
    assert len(load_rows(open_data({"own": splits}), OWN, "validation")) == 1
    with pytest.raises(UserError, match=r"hint: .*`data=\{'TASK': dataset_dict\}`"):
        open_data(splits)
    with pytest.raises(UserError, match=r"own/train cannot be an IterableDataset[^`]*`list\(dataset\.take"):
        open_data({"own": {"train": dataset.to_iterable_dataset()}})


def test_files_of_a_task_may_be_paths(tmp_path: Path) -> None:
    write_all(tmp_path, "own", "train", [{"one": "a", "two": "b", "label": 0}])
    path = tmp_path / "csv" / "own" / "train.csv"
    task = replace(OWN, files={"train": path}, unlabelled=[path])  # type: ignore[arg-type]
    assert (task.files, task.unlabelled) == ({"train": str(path)}, (str(path),))
    assert replace(OWN, unlabelled=path).unlabelled == (str(path),)  # type: ignore[arg-type]
    assert len(load_rows(open_data(None), task, "train")) == 1


def test_a_single_column_may_be_given_as_a_string() -> None:
    assert Task("own", "classify", columns="one", labels=("a", "b")).columns == ("one",)  # type: ignore[arg-type]


def test_malformed_release_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "RTE").mkdir()
    path = tmp_path / "RTE" / "train.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\tb\n")
    with pytest.raises(UserError, match=r"train\.tsv:3: 3 fields instead of 4"):
        load_rows(open_data(str(tmp_path)), TASKS["rte"], "train")
    path.write_bytes(b"index\tsentence1\tsentence2\tlabel\n0\ta\xe9\tb\tentailment\n")
    with pytest.raises(UserError, match=r"train\.tsv:2: not UTF-8"):
        load_rows(open_data(str(tmp_path)), TASKS["rte"], "train")


def test_errors_list_the_first_three_invalid_rows_and_the_count(tmp_path: Path) -> None:
    lines = "".join(f"a,b,{label}\n" for label in "0789561")
    message = error_of(tmp_path, "train.csv", "one,two,label\n" + lines)
    assert message.startswith("5 problems in own/train:")
    assert [f"train.csv:{line}:" in message for line in range(2, 9)] == [
        False,
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert "`mtkd.check_data(data=" in message


def test_errors_of_invalid_parquet_labels_name_the_row(tmp_path: Path) -> None:
    (tmp_path / "stsb").mkdir()
    values = [0.0, 5.0, 5.1, float("nan"), float("inf"), -1.0, None]
    table = pa.table(
        {"sentence1": ["a"] * 7, "sentence2": ["b"] * 7, "label": pa.array(values, pa.float32())}
    )
    for split in ("train", "test"):
        pq.write_table(table, tmp_path / "stsb" / f"{split}.parquet")
    source = open_data(str(tmp_path))
    with pytest.raises(UserError, match=r"5 problems") as caught:
        load_rows(source, TASKS["stsb"], "train")
    assert "train.parquet, row 2: column 'label': label '5.09999" in str(caught.value)
    with pytest.raises(UserError, match=r"2 problems"):  # 5.1 and inf; the rest may be unlabelled
        load_rows(source, TASKS["stsb"], "test")


@pytest.mark.parametrize(
    ("kind", "cell", "shown"),
    [
        ("multilabel", "no|", "label ''; expected: 'no' (0)"),
        ("multilabel", "['no']", """label "['no']"; expected"""),
        ("multilabel", "[" * 50_000, "... (50,002 characters); expected"),
        ("regress", "1e308", "label '1e308'; expected"),
        ("regress", "1" * 200, "... (202 characters); expected"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_labels_of_the_wrong_type_are_rejected(tmp_path: Path, kind: str, cell: str, shown: str) -> None:
    labels = OWN.labels if kind == "multilabel" else ()
    task = Task(name="other", kind=kind, columns=("one",), labels=labels)
    assert shown in error_of(tmp_path, "train.csv", f'one,label\na,"{cell}"\n', task)


SPAN = Task(name="ask", kind="span", columns=("question", "context"), label="answers")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"text": ["a"], "answer_start": ["0"]},
            """:2: column 'answers' holds '{"text": ["a"], "answer_start":""",
        ),
        ({"text": ["a"], "answer_start": [10**30]}, ":2: column 'answers' holds '{"),
        ("a", ":2: column 'answers' holds 'a'\n  expected: a struct of lists: text"),
        ({"text": [None], "answer_start": [0]}, "null instead of the text or the start of an answer"),
    ],
)
def test_invalid_answers_are_rejected(tmp_path: Path, answers: object, message: str) -> None:
    good = {"question": "q", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}}
    rows = [good, good | {"answers": answers, "id": 1}]  # an id that is missing is not a repeated one
    text = "".join(json.dumps(row) + "\n" for row in [*rows, good])
    error = error_of(tmp_path, "train.jsonl", text, SPAN)
    assert message in error and "is also at" not in error


def test_labels_can_be_names_or_ids(tmp_path: Path) -> None:
    forms = [["yes", "no"], ["1", "0"], [1, 0], [1.0, 0.0]]
    (tmp_path / "own").mkdir()
    for labels in forms:
        table = pa.table({"one": ["a", "b"], "two": ["c", "d"], "label": labels})
        pq.write_table(table, tmp_path / "own" / "train.parquet")
        assert load_rows(open_data(str(tmp_path)), OWN, "train").labels.tolist() == [1, 0]
    numbered = Task(name="own", kind="classify", columns=("one",), labels=("1", "2"))
    pq.write_table(pa.table({"one": ["a", "b"], "label": [1, 2]}), tmp_path / "own" / "train.parquet")
    assert load_rows(open_data(str(tmp_path)), numbered, "train").labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "labels", [("2.0", "1.0", "0.0"), ("1.0", "1.5", "2.0"), ("1.0", "2.0", "3.0", "4.0")]
)
def test_numeric_label_names_are_not_ids(labels: tuple[str, ...], tmp_path: Path) -> None:
    task = Task(name="own", kind="classify", columns=("one",), labels=labels)
    (tmp_path / "own").mkdir()
    table = pa.table({"one": ["a", "b", "c"], "label": [float(label) for label in labels[:3]]})
    pq.write_table(table, tmp_path / "own" / "train.parquet")
    assert load_rows(open_data(str(tmp_path)), task, "train").labels.tolist() == [0, 1, 2]


def test_a_text_column_of_numbers_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    pq.write_table(pa.table({"one": [1], "two": ["d"], "label": [0]}), tmp_path / "own" / "train.parquet")
    with pytest.raises(UserError, match="column 'one' holds int64, not text") as error:
        load_rows(open_data(str(tmp_path)), OWN, "train")
    assert "convert it to text" in str(error.value.hint)


@pytest.mark.parametrize("name", ["sst2", "qnli"])
def test_a_larger_limit_keeps_the_rows_of_a_smaller_one(name: str) -> None:
    source, task = open_data("pocket"), TASKS[name]
    uids = [set(load_rows(source, task, "train", limit).uids.to_pylist()) for limit in (40, 60, 100)]
    assert [len(found) for found in uids] == [40, 60, 100]
    assert uids[0] < uids[1] < uids[2]


def test_json_lines_may_have_missing_and_additional_fields(tmp_path: Path) -> None:
    lines = [
        {"id": 1, "one": "a", "two": "b", "label": 1},
        {"two": "d", "one": "c", "label": 0},
        {"one": "e", "label": 1, "extra": {"x": 1}, "two": "f"},
    ]
    path = tmp_path / "own" / "train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rows = load_rows(open_data(str(tmp_path)), OWN, "train")
    assert [column.to_pylist() for column in rows.texts] == [["a", "c", "e"], ["b", "d", "f"]]
    assert rows.labels.tolist() == [1, 0, 1]
    whole = read_file(path, ("one", "two")).table.to_pylist()
    assert whole == [{"id": None, "extra": None, **line} for line in lines]
    parts = [raw.table.to_pylist() for raw in read_batches(path, ("one", "two"), 2)]
    assert parts == [[{"id": None, **line} for line in lines[:2]], [{"id": None, **lines[2]}]]


def test_json_lines_whose_fields_are_all_different_are_rejected(tmp_path: Path) -> None:
    lines = [{"one": "a", "two": "b", "label": 1, f"key {n}": n} for n in range(2000)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert "train.jsonl:998: the field 'key 997' is one too many" in error_of(tmp_path, "train.jsonl", text)


def test_a_row_with_too_few_values_names_the_columns() -> None:
    with pytest.raises(UserError, match=r"1 value in \('a',\); expected 2: one, two"):
        as_table([("a",)], ("one", "two"))
