"""Custom tasks in TOML files: valid keys, and errors for invalid ones."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.checks.data_report import report_on
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_file import check_task, load_task
from tasks.task_names import resolve

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("MTKD_SHARED_DATA", ROOT.parent / "shared" / "data"))

GOOD = 'name = "own"\nkind = "classify"\ncolumns = ["a", "b"]\nlabels = ["no", "yes"]\n'


RANK: dict[str, Any] = {"name": "r", "kind": "rank", "columns": ("a", "b"), "group": "a"}


def load(tmp_path: Path, text: str):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return load_task(path)


def test_defaults_of_a_task_file(tmp_path: Path) -> None:
    task = load(tmp_path, GOOD)
    assert (task.name, task.kind, task.columns, task.labels) == ("own", "classify", ("a", "b"), ("no", "yes"))
    assert (task.head, task.metrics, task.splits) == ("own", ("accuracy",), ("train", "validation", "test"))


@pytest.mark.parametrize("labels", [("no", "yes"), ["no", "yes"]])
def test_the_positive_label_of_a_task_object_may_be_named(labels: Any) -> None:
    task = Task(**RANK, labels=labels, positive="yes")
    assert task == Task(**RANK, labels=("no", "yes"), positive=1) and task.positive == 1
    assert Task(**RANK, labels=("1", "0"), positive="1").positive == 0
    with pytest.raises(
        UserError, match=r"unknown positive label of the task 'r': 'yess' \(did you mean 'yes'"
    ):
        Task(**RANK, labels=labels, positive="yess")
    with pytest.raises(UserError, match=r"`positive=True` is not valid\n  expected: the name or the id"):
        Task(**RANK, labels=labels, positive=True)


def test_a_regression_task_file(tmp_path: Path) -> None:
    task = load(
        tmp_path,
        'name = "s"\nkind = "regress"\ncolumns = ["a"]\nrange = [-1, 1]\nlabel = "score"\ncopies = 3\n',
    )
    assert (task.range, task.label, task.metrics, task.copies) == (
        (-1.0, 1.0),
        "score",
        ("pearson", "spearman"),
        3,
    )


def test_files_are_relative_to_the_task_file_or_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here.csv").write_text("a,b,label\nx,y,yes\n")
    (tmp_path / "data" / "there.csv").write_text("a,b,label\nz,y,no\n")
    files = '[files]\ntrain = "here.csv"\nvalidation_hard = "there.csv"\nvalidation_easy = "none.csv"\n'
    task = load(tmp_path, GOOD + files)
    assert task.splits == ("train", "validation_hard", "validation_easy")
    source = open_data(str(tmp_path / "data"))
    assert source.splits(task) == ["train", "validation_hard"]
    assert load_rows(source, task, "train").texts[0].to_pylist() == ["x"]
    assert load_rows(source, task, "validation_hard").labels.tolist() == [0]
    assert load_rows(open_data("pocket"), task, "train").labels.tolist() == [1]
    with pytest.raises(UserError, match=r"the file 'there\.csv' .* does not exist"):
        load_rows(open_data("pocket"), task, "validation_hard")


def test_a_misspelt_file_name_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,label\nx,y,yes\n")
    task = load(tmp_path, GOOD + '[files]\ntrain = "trian.csv"\nvalidation = "train.csv"\n')
    wrong = r"the file 'trian\.csv' of own/train does not exist \(did you mean 'train\.csv'\?\)"
    for data in ("pocket", str(tmp_path), ["pocket", str(tmp_path)], None):
        with pytest.raises(UserError, match=wrong):
            load_rows(open_data(data), task, "train")
        assert any(re.search(wrong, str(p)) for p in report_on(open_data(data), [task]).all_problems)
    for name in (".", "/"):
        folder = load(tmp_path, GOOD + f'[files]\ntrain = "{name}"\n')
        with pytest.raises(UserError, match=r"the file '/.*' of own/train is a directory"):
            load_rows(open_data(None), folder, "train")
    gone = load(tmp_path, GOOD + '[files]\ntrain = "/gone/trian.csv"\nvalidation = "train.csv"\n')
    with pytest.raises(UserError, match=r"'/gone/trian\.csv' of own/train does not exist\n"):
        load_rows(open_data(None), gone, "train")


def test_without_data_only_files_of_task_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,label\nx,y,yes\n")
    source = open_data(None)
    assert len(load_rows(source, load(tmp_path, GOOD + '[files]\ntrain = "train.csv"\n'), "train")) == 1
    with pytest.raises(UserError, match="'rte' names no files of its own"):
        load_rows(source, TASKS["rte"], "train")


def test_extends_changes_a_builtin_task(tmp_path: Path) -> None:
    text = 'extends = "qnli"\nkind = "rank"\ngroup = "question"\npositive = "entailment"\n'
    task = load(tmp_path, text)
    assert (task.name, task.kind, task.metrics, task.positive) == ("qnli", "rank", ("mrr",), 0)
    assert (task.columns, task.hub, task.head) == (TASKS["qnli"].columns, TASKS["qnli"].hub, "qnli")
    renamed = load(tmp_path, 'name = "ranked"\n' + text)
    assert renamed.head == "ranked"
    rows = load_rows(open_data("pocket"), renamed, "train")  # finds qnli's rows
    assert rows.groups is not None and rows.uids[0].as_py() == "ranked/train/0"


MAP = 'head = "mnli"\nmap = { entailment = "yes", neutral = "no", contradiction = "no" }\n'


def test_a_task_can_use_the_head_of_another_task(tmp_path: Path) -> None:
    task = load(tmp_path, GOOD + MAP)
    assert (task.head, task.labels, task.map["neutral"]) == ("mnli", ("no", "yes"), "no")
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    same = load(tmp_path, 'extends = "mnli"\nname = "own"\nhead = "mnli"\n')
    assert (same.head, same.labels, same.map) == ("mnli", TASKS["mnli"].labels, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD + MAP.replace('neutral = "no"', 'neutral = "mo"'),
            "unknown label in .*map: 'mo' .did you",
        ),
        (GOOD + MAP.replace('"yes"', '"no"'), "map has no label that becomes 'yes'"),
        (GOOD + MAP.replace('head = "mnli"\n', ""), "`map` is set, but `head` is not"),
        (GOOD.replace("classify", "multilabel") + MAP, "multilabel tasks have no key 'map'"),
        (GOOD + "map = {}\n", "map = {} is not valid"),
        (GOOD + 'head = "m n"\n', "head = 'm n' is not valid"),
        (GOOD + 'lables = ["a"]\n', "unknown key in .*'lables' .did you mean 'labels'"),
        (GOOD.replace("own", "rte"), "built-in task"),
        (GOOD.replace("own", "my own"), "name = 'my own' is not valid"),
        (GOOD.replace("classify", "clasify"), "'clasify' .did you mean 'classify'"),
        (GOOD.replace('["a", "b"]', '["a", "b", "c"]'), "columns"),
        (
            GOOD.replace('["a", "b"]', '["a", "a"]'),
            r"columns = \['a', 'a'\] is not valid\n  expected: a list of one or two different column names",
        ),
        (GOOD.replace('["no", "yes"]', '["no"]'), "classify tasks need labels"),
        (GOOD.replace("columns", "# columns"), "lacks the key 'columns'"),
        (GOOD + "copies = -1\n", "copies = -1 is not valid"),
        (GOOD + "copies = true\n", "copies = True is not valid"),
        (GOOD + "range = [0, 1]\n", "classify tasks have no key 'range'"),
        (GOOD + 'label = "a"\n', "one column has two roles: .*\n  expected: different columns"),
        (GOOD.replace("classify", "rank"), "need the key 'group'"),
        (GOOD.replace("classify", "rank") + 'group = "g"\npositive = "yess"\n', "did you mean 'yes'"),
        (GOOD + '[files]\ndev = "x.csv"\n', "'dev' under .files. .did you mean 'validation'"),
        (GOOD + '[files]\nvaldation = "x.csv"\n', "'valdation' under .files. .did you mean 'validation'"),
        (GOOD + "[files]\ntrain = 3\n", "train = 3 under .files. is not valid"),
        (GOOD + "[files]\nunlabelled = [3]\n", r"unlabelled = \[3\] under .files. is not valid"),
        (GOOD + "[files]\n", "files = {} is not valid"),
        (GOOD.replace("own", "nli"), "name = 'nli' is a built-in group of tasks: mnli"),
        ('extends = "rte"\nname = "nli"\n', "name = 'nli' is a built-in group of tasks: mnli"),
        ('extends = "qnly"\n', "did you mean 'qnli'"),
        ("name = \n", "not valid TOML"),
        ('name = "r"\nkind = "regress"\ncolumns = ["a"]\nrange = [1, 1]\n', r"range = \[1, 1\] is not valid"),
    ],
)
def test_invalid_task_files_are_user_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, text)


def test_a_missing_task_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_task(tmp_path / "none.toml")


def test_metrics_are_checked_where_tasks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(GOOD + 'metrics = ["acuracy"]\n')
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        resolve(f"rte,{path}")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")
def test_example_task_files_can_be_read() -> None:
    source = open_data(str(SHARED))
    sizes = {"quora": (10000, 10000), "snli": (9842, 9824), "qnli_squad": (105270, 5463)}
    for task in resolve(",".join(str(ROOT / "examples" / "tasks" / f"{name}.toml") for name in sizes)):
        rows = [load_rows(source, task, split) for split in task.splits]
        assert tuple(map(len, rows)) == sizes[task.name]
        assert all(set(part.labels.tolist()) == set(range(len(task.labels))) for part in rows)


def test_span_tasks_may_be_unanswerable(tmp_path: Path) -> None:
    text = 'name = "ask"\nkind = "span"\ncolumns = ["question", "context"]\nlabel = "answers"\n'
    task = load(tmp_path, text + "unanswerable = true\n")
    assert (task.unanswerable, task.metrics) == (True, ("exact_match", "f1"))
    assert not load(tmp_path, text).unanswerable
    with pytest.raises(UserError, match="span tasks need two columns"):
        load(tmp_path, text.replace('"question", ', ""))
    with pytest.raises(UserError, match="classify tasks have no key 'unanswerable'"):
        load(tmp_path, GOOD + "unanswerable = true\n")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"columns": ()}, r"columns = \[\] is not valid"),
        ({"group": "question"}, "classify tasks have no key 'group'"),
        ({"range": (0, 5)}, "classify tasks have no key 'range'"),
        ({"copies": -1}, "copies = -1 is not valid"),
        ({"kind": "rank", "group": "question", "positive": 2}, "positive = 2 is not valid"),
        ({"kind": "rank", "group": "question", "positive": -1}, "positive = -1 is not valid"),
    ],
)
def test_tasks_made_in_python_are_checked_like_task_files(wrong: dict[str, object], message: str) -> None:
    values = {"name": "own", "kind": "classify", "columns": ("text",), "labels": ("no", "yes")} | wrong
    with pytest.raises(UserError, match=message):
        check_task(Task(**values))


def test_a_task_of_another_kind_does_not_keep_the_keys_of_the_one_that_it_extends(tmp_path: Path) -> None:
    task = load(tmp_path, 'extends = "stsb"\nname = "s"\nkind = "classify"\nlabels = ["no", "yes"]\n')
    assert task.range is None and task.metrics == ("accuracy",)
    assert check_task(task) == task
