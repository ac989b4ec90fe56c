"""The data report, compared with counts from plain loops and by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.checks.data_report import report_on
from tasks.checks.label_quality import GroupSizes
from tasks.checks.split_report import SplitReport
from tasks.common.errors import UserError, unknown
from tasks.data.loading import load_rows
from tasks.data.row_checks import summarise
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser

SHARED = Path(os.environ.get("MTKD_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))

PAIR = Task(name="pair", kind="classify", columns=("a", "b"), labels=("no", "yes"), test=())
TRAIN = [("x y", "z", 0), ("x y", "z", 0), ("x y", "z", 1), ("x", "y z", 1), ("", "three word text", 9)]
VALIDATION = [("x y", "z", 1), ("z", "x y", 0), (None, "c", 1)]


def write(path: Path, rows: list[tuple], names: tuple[str, ...] = ("a", "b", "label")) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)


def test_the_report_of_hand_made_splits(tmp_path: Path) -> None:
    write(tmp_path / "pair/train.parquet", TRAIN)
    write(tmp_path / "pair/validation.parquet", VALIDATION)
    report = report_on(open_data(str(tmp_path)), [PAIR])
    train, validation = report.splits
    assert (train.rows, train.duplicates, train.overlap) == (5, 1, None)
    assert [(count.label, count.rows) for count in train.balance] == [("no", 2), ("yes", 2)]
    assert [(length.mean, length.median, length.max) for length in train.lengths] == [
        (1.4, 2, 2),
        (1.6, 1, 3),
    ]
    assert [(problem.place[-5:], problem.column, problem.level) for problem in train.problems] == [
        ("row 4", "a", "warning"),
        ("row 4", "label", "error"),
        ("rquet", "label", "warning"),
    ]
    assert "2 of 2 labels have fewer than 5 rows: no (2), yes (2)" in train.problems[-1].message
    assert (validation.overlap, validation.overlap_share) == (1, 1 / 3)  # "x y","z": with whatever label
    null, leaked, unmeasured = (problem.message for problem in validation.problems)
    assert unmeasured.startswith("2 of 2 labels have fewer than 5 rows, so the scores on this split")
    assert null == "null instead of text"
    assert "1 row (33.3%) is also in the training split" in leaked and "row 0: 'x y | z'" in leaked
    assert report.error_count == 2
    value = json.loads(json.dumps(report.to_json()))
    assert value["errors"] == 2 and value["splits"][1]["overlap_share"] == pytest.approx(1 / 3)


def test_invalid_lines_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    lines = [json.dumps({"a": "t", "b": str(n), "label": n % 2}) for n in range(20)]
    lines[3], lines[7], lines[11] = "{", '{"a": 1}', '{"a": "t", "b": "u", "label": 5}'
    (tmp_path / "pair/train.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "pair/validation.csv").write_text("a,label\nt,1\n")
    report = report_on(open_data(str(tmp_path)), [PAIR, TASKS["rte"]])
    (train,) = report.splits
    assert [problem.place.rsplit(":", 1)[1] for problem in train.problems] == ["4", "8", "12"]
    assert train.rows == 18 and sum(count.rows for count in train.balance) == 17
    assert [problem.place for problem in report.problems] == ["pair/validation", "rte"]
    assert "no column 'b'" in report.problems[0].message
    assert report.error_count == 5


def test_the_report_of_span_tasks(tmp_path: Path) -> None:
    answers = [
        {"text": ["cat"], "answer_start": [4]},
        {"text": ["cat"], "answer_start": [5]},
        {"text": [], "answer_start": []},
        {"text": ["a", "b"], "answer_start": [0]},
    ]
    rows = [(f"i{n % 3}", "the cat", f"q{n}", answer) for n, answer in enumerate(answers)]
    write(tmp_path / "squad/train.parquet", rows, ("id", "context", "question", "answers"))
    (train,) = report_on(open_data(str(tmp_path)), [TASKS["squad"]]).splits
    assert [(problem.place[-5:], problem.column) for problem in train.problems] == [
        ("row 1", "answers"),
        ("row 3", "answers"),
        ("row 3", "id"),
        ("rquet", "answers"),
    ]
    assert [(count.label, count.rows) for count in train.balance] == [("answer", 1), ("no answer", 1)]
    assert train.invalid == 2
    assert train.problems[-1].message.startswith("1 row has no answer, but the task is not `unanswerable`")
    task = dataclasses.replace(TASKS["squad"], unanswerable=True)
    (train,) = report_on(open_data(str(tmp_path)), [task]).splits
    assert train.problems[-1].column == "id"


def test_long_questions_give_a_warning(tmp_path: Path) -> None:
    answer = {"text": ["cat"], "answer_start": [4]}
    rows = [(f"i{n}", "the cat", f"q{n} " + "why " * (80 * (n == 1)), answer) for n in range(3)]
    write(tmp_path / "squad/train.parquet", rows, ("id", "context", "question", "answers"))
    (train,) = report_on(open_data(str(tmp_path)), [TASKS["squad"]]).splits
    assert [problem.message for problem in train.problems] == [
        "1 question has more than 64 tokens; the rest is cut off"
    ]


def test_the_pocket_data_has_no_problems() -> None:
    tasks = [task for task in TASKS.values() if not task.languages]  # pocket is in English
    report = report_on(open_data("pocket"), tasks)
    assert [str(problem) for problem in report.all_problems] == []
    assert len(report.splits) == sum(len(task.splits) for task in tasks)
    assert not any(split.overlap or split.duplicates for split in report.splits)


def plain(path: Path, columns: tuple[str, ...], train: set | None) -> tuple[int, int | None, list[float]]:
    """Return duplicates, overlap and mean lengths, computed by a plain loop."""
    rows = pq.read_table(path).to_pylist()
    seen = Counter((*(row[name] for name in columns), row["label"]) for row in rows)
    overlap = None if train is None else sum(tuple(row[name] for name in columns) in train for row in rows)
    means = [statistics.mean(len(row[name].split()) for row in rows) for name in columns]
    return sum(seen.values()) - len(seen), overlap, means


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")
@pytest.mark.parametrize("name", ["cola", "stsb", "rte"])
def test_the_report_of_real_data_matches_a_plain_loop(name: str) -> None:
    task = TASKS[name]
    report = report_on(open_data(str(SHARED)), [task])
    assert report.error_count == 0
    folder = SHARED / "glue" / name
    known = {
        tuple(row[c] for c in task.columns) for row in pq.read_table(folder / "train.parquet").to_pylist()
    }
    for split in report.splits:
        reference = known if split.split != "train" else None
        duplicates, overlap, means = plain(folder / f"{split.split}.parquet", task.columns, reference)
        assert (split.duplicates, split.overlap) == (duplicates, overlap)
        np.testing.assert_allclose([length.mean for length in split.lengths], means)
        assert sum(count.rows for count in split.balance) == split.rows


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared data in {SHARED}")
@pytest.mark.slow(reason="reads all of SQuAD")
def test_real_squad_answers_are_in_their_contexts() -> None:
    splits: dict[str, SplitReport] = {
        s.split: s for s in report_on(open_data(str(SHARED)), [TASKS["squad"]]).splits
    }
    assert (splits["train"].rows, splits["validation"].rows) == (87599, 10570)
    assert not [p for split in splits.values() for p in split.problems if p.column == "answers"]


def test_an_unread_column_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    row = '{"sentence1": "a b", "sentence2": "a", "label": 0, "lable": 1, "idx": 3}\n'
    (tmp_path / "rte" / "train.jsonl").write_text(row, encoding="utf-8")
    report = report_on(open_data(str(tmp_path)), [TASKS["rte"]])
    found = [problem for split in report.splits for problem in split.problems]
    assert [(p.column, p.level) for p in found if "does not read" in p.message] == [("lable", "warning")]


def test_id_columns_are_not_reported_and_other_unread_columns_are_named_once(tmp_path: Path) -> None:
    names = ("a", "b", "label", "ticket_id", "label_id", "source")
    for split, rows in (("train", 12), ("validation", 10)):
        write(
            tmp_path / f"pair/{split}.parquet",
            [(f"{split} {n}", "w", n % 2, f"t{n}", n % 2, "web") for n in range(rows)],
            names,
        )
    report = report_on(open_data(str(tmp_path)), [PAIR])
    found = [(split.split, p.column) for split in report.splits for p in split.problems]
    assert found == [("train", "label_id"), ("train", "source")]


def test_a_task_that_cannot_be_trained_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "pair/train.parquet", TRAIN[:4] * 5)
    (problem,) = report_on(open_data(str(tmp_path)), [PAIR]).problems
    assert (problem.place, problem.level) == ("pair", "error") and "no validation split" in problem.message
    (tmp_path / "pair/train.parquet").rename(tmp_path / "pair/validation.parquet")
    (problem,) = report_on(open_data(str(tmp_path)), [PAIR]).problems
    assert problem.level == "error" and "no training split 'train'" in problem.message
    unjudged = replace(PAIR, files={"train": str(tmp_path / "pair/validation.parquet")}, validation=())
    (problem,) = report_on(open_data(str(tmp_path)), [unjudged]).problems
    assert "(none is named under [files])" in problem.message


def test_labels_of_an_invalid_type_are_an_error() -> None:
    frame = pandas.DataFrame({name: ["a", "b"] for name in PAIR.columns})
    frame[PAIR.label] = pandas.interval_range(0, 2)
    report = report_on(open_data({"pair": {"train": frame, "validation": frame}}), [PAIR])
    assert report.error_count and "which cannot be read as labels" in str(report)


def test_a_file_that_does_not_exist_is_named_first(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        write(tmp_path / f"rows/{split}.parquet", [(f"{split} {n}", "w", n % 2) for n in range(20)])
    files = "train = '../rows/traning.parquet'\nvalidation = '../rows/validation.parquet'\n"
    keys = "name = 'own'\nkind = 'classify'\ncolumns = ['a', 'b']\nlabels = ['no', 'yes']\n"
    task_file = tmp_path / "job" / "own.toml"
    task_file.parent.mkdir()
    task_file.write_text(f"{keys}[files]\n{files}")
    (task,) = resolve(str(task_file))
    assert task.files["validation"] == str(tmp_path / "rows/validation.parquet"), "without `..`"
    (problem,) = report_on(open_data(None), [task]).problems
    assert problem.place == "own/train" and problem.level == "error"
    assert problem.message.startswith("the file '../rows/traning.parquet' of own/train does not exist")
    assert "did you mean '../rows/training.parquet'?" in problem.message.splitlines()[0]


def test_missing_test_rows_are_not_a_warning(tmp_path: Path) -> None:
    rows = [{"a": f"row {n}", "label": n % 2} for n in range(20)]
    task = Task(name="own", kind="classify", columns=("a",), labels=("x", "y"))
    report = report_on(open_data({"own": {"train": rows, "validation": rows[:6]}}), [task])
    assert not report.problems


CONTRADICTION = "the same texts occur with different labels"


def warnings_of(tmp_path: Path, rows: list[tuple], max_length: int = 128) -> list[str]:
    """Return the warnings about a training split with these rows, next to an ordinary validation split.

    Warnings about equal texts with different labels are left out.
    """
    write(tmp_path / "pair/train.parquet", rows)
    write(tmp_path / "pair/validation.parquet", [(f"v {n}", "w", n % 2) for n in range(10)])
    report = report_on(open_data(str(tmp_path)), [PAIR], max_length)
    assert report.error_count == 0 and not report.splits[1].problems
    messages = [problem.message for problem in report.splits[0].problems]
    return [message for message in messages if CONTRADICTION not in message]


def test_texts_with_different_labels_are_a_warning(tmp_path: Path) -> None:
    def messages(rows: list[tuple], task: Task = PAIR) -> list[str]:
        write(tmp_path / "pair/train.parquet", rows)
        write(tmp_path / "pair/validation.parquet", [(f"v {n}", "w", n % 2) for n in range(10)])
        problems = report_on(open_data(str(tmp_path)), [task]).splits[0].problems
        return [problem.message for problem in problems if CONTRADICTION in problem.message]

    rows: list[tuple] = [(f"a {n}", "b", n % 2) for n in range(20)]
    assert messages([*rows, *rows]) == [], "these are only duplicates"
    assert messages([*rows, ("a 0", "b", 1)]) == [f"{CONTRADICTION} (1 case)"]
    assert messages([*rows, ("a 0", "b", 1), ("a 0", "b", 1), ("a 3", "b", 0)]) == [
        f"{CONTRADICTION} (2 cases)"
    ]
    assert messages([*rows, ("a 0", "b", -1)]) == [], "it has no label"
    scores = replace(PAIR, kind="regress", labels=(), range=(0, 1))
    assert messages([*rows, ("a 0", "b", 1)], scores) == [], "scores of the same text may differ"


def test_imbalanced_labels_are_a_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, [(f"a {n}", "b", int(n >= 90)) for n in range(100)]) == []
    (largest,) = warnings_of(tmp_path, [(f"a {n}", "b", int(n >= 94)) for n in range(100)])
    assert largest.startswith("94.0% of the rows have the label 'no'")
    largest, rare = warnings_of(tmp_path, [(f"a {n}", "b", int(n >= 98)) for n in range(100)])
    assert rare == "1 of 2 labels has fewer than 5 rows: yes (2)"


def test_a_class_with_almost_no_validation_rows_is_a_warning(tmp_path: Path) -> None:
    def warnings_about(train_yes: int, validation_yes: int) -> list[str]:
        for split, rows in (("train", train_yes), ("validation", validation_yes)):
            write(
                tmp_path / f"pair/{split}.parquet",
                [(f"{split} {n}", "w", int(n >= 20)) for n in range(20 + rows)],
            )
        return [problem.message for problem in report_on(open_data(str(tmp_path)), [PAIR]).splits[1].problems]

    assert warnings_about(20, 5) == []
    for rows in (0, 4):
        (warning,) = (message for message in warnings_about(20, rows) if "fewer than 5" in message)
        assert warning == (
            "1 of 2 labels has fewer than 5 rows, so the scores on this split carry no information about it: "
            f"yes ({rows})"
        )
    assert not any("fewer than 5" in message for message in warnings_about(0, 4)), "training has no such rows"


def test_rows_that_will_be_truncated_are_counted(tmp_path: Path) -> None:
    """One token per word, one per text, three special tokens: 12 - 3 - 1 = 8 words fit."""
    rows = [(" ".join(["cat"] * words), "dog", n) for n in (0, 1) for words in (1, 7, 8, 9, 1200)]
    (truncated,) = warnings_of(tmp_path, rows, max_length=12)
    assert truncated == (
        "40.0% of the rows have more than 12 tokens of the default tokeniser, and will be truncated if the "
        "max_length of a model is 12; a larger max_length keeps more"
    )
    (truncated,) = warnings_of(tmp_path, rows)
    assert truncated.startswith("20.0% of the rows have more than 128 tokens")
    assert warnings_of(tmp_path, [("cat", "dog", n % 2) for n in range(10)]) == []


@pytest.mark.parametrize("text", ["привет мир", "สวัสดี", "😀 😀"])
def test_text_outside_the_vocabulary_is_a_warning(tmp_path: Path, text: str) -> None:
    (unknown,) = warnings_of(tmp_path, [(f"{text} {n}", text, n % 2) for n in range(10)])
    assert "unknown to the default vocabulary" in unknown
    assert warnings_of(tmp_path, [("déjà vu: naïve café", "Übung", n % 2) for n in range(10)]) == []


def test_tokens_are_counted_as_the_teacher_splits_them(
    tmp_path: Path, roberta: Tokeniser, minilm: Tokeniser
) -> None:
    rows = [("ᚠᚢ ᚦ" if n else "cat", "dog", n % 2) for n in range(10)]
    write(tmp_path / "pair/train.parquet", rows)
    write(tmp_path / "pair/validation.parquet", [("cat", "dog", n % 2) for n in range(10)])
    lengths = [
        len(ids) for ids in roberta.hf([row[0] for row in rows], [row[1] for row in rows])["input_ids"]
    ]

    def messages(tokeniser: Tokeniser | None, max_length: int) -> list[str]:
        report = report_on(open_data(str(tmp_path)), [PAIR], max_length, tokeniser=tokeniser)
        found = [problem.message for problem in report.splits[0].problems]
        return [message for message in found if CONTRADICTION not in message]

    assert messages(roberta, max(lengths)) == []
    (truncated,) = messages(roberta, max(lengths) - 1)
    assert truncated.startswith(
        f"90.0% of the rows have more than {max(lengths) - 1} tokens of the teacher's"
    )
    (foreign,) = messages(None, 64)
    assert "which is English" in foreign
    # Two unknown words per row, and "dog"; the first row has two known words.
    assert messages(minilm, 64) == ["62% of the tokens are unknown to the vocabulary of the teacher"]


def test_many_rows_with_the_same_problem_are_one_line(tmp_path: Path) -> None:
    names = tuple(f"label_{n}" for n in range(77))
    task = Task(name="intent", kind="classify", columns=("a",), labels=names, test=())
    write(
        tmp_path / "intent/train.parquet", [("t", "label_7x")] * 9 + [(None, "label_1")] * 2, ("a", "label")
    )
    write(tmp_path / "intent/validation.parquet", [("v", "label_1")], ("a", "label"))
    report = report_on(open_data(str(tmp_path)), [task])
    first, *_ = report.splits[0].problems
    assert first.message.startswith("label 'label_7x' (did you mean 'label_7'?); expected: 'label_7' (7)")
    assert first.message.endswith(" and 69 more") and len(first.message) < 230
    lines = [line for level, line in summarise(report.all_problems) if level == "error"]
    assert len(lines) == 4 + 2
    assert "column 'label': unknown label: 9 rows, the first are:" in lines[0]
    assert [line.endswith("null instead of text") for line in lines] == [False] * 4 + [True] * 2
    with pytest.raises(UserError, match=r"11 problems") as caught:
        load_rows(open_data(str(tmp_path)), task, "train")
    assert len(str(caught.value).splitlines()) == 8


def test_long_lists_of_names_are_shortened() -> None:
    names = [f"name_{n:02}" for n in range(77)]
    expected = unknown("label", "nam_55", names).expected
    assert expected is not None
    assert expected.startswith("name_55, ") and expected.endswith(" and 69 more") and expected.count(",") == 7
    assert unknown("label", "x", ["b", "a"]).expected == "a, b"


def test_unlabelled_rows_are_reported_as_a_split(tmp_path: Path) -> None:
    texts = [("x y", "z"), ("new", "n"), ("new", "n"), ("old one", "o"), ("", "e")]
    source = {"pair": {"train": [dict(zip(("a", "b", "label"), row, strict=True)) for row in TRAIN[:4]]}}
    source["pair"]["validation"] = [{"a": "old one", "b": "o", "label": 1}]
    source["pair"]["unlabelled"] = [{"a": a, "b": b} for a, b in texts]
    split = report_on(open_data(source), [PAIR]).splits[-1]
    assert (split.split, split.rows, split.duplicates, split.overlap) == ("unlabelled", 5, 1, 1)
    assert [(length.mean, length.max) for length in split.lengths] == [(1.2, 2), (1.0, 1)]
    assert [problem.message[:28] for problem in split.problems] == [
        "1 empty text",
        "1 of the 5 unlabelled rows o",
    ]
    source["pair"]["unlabelled"][0]["label"] = 1
    found = report_on(open_data(source), [PAIR])
    assert found.error_count == 1 and "column 'label' holds 1" in found.problems[-1].message


@pytest.mark.parametrize("label", [None, "yes"])
def test_soft_labels_are_checked_and_need_no_other_labels(tmp_path: Path, label: str | None) -> None:
    task = replace(PAIR, soft_labels="llm")
    write(
        tmp_path / "pair/train.parquet",
        [(f"t {n}", "w", [0.25, 0.75], None if n else label) for n in range(6)],
        ("a", "b", "llm", "label"),
    )
    write(tmp_path / "pair/validation.parquet", [(f"v {n}", "w", n % 2) for n in range(10)])
    train = report_on(open_data(str(tmp_path)), [task]).splits[0]
    assert train.problems == ()
    counts = [(count.label, count.rows) for count in train.balance if count.rows]
    assert counts == [*([("yes", 1)] if label else []), ("soft labels", 5 if label else 6)]


def test_labels_that_differ_only_in_case_or_spaces_are_a_warning(tmp_path: Path) -> None:
    task = replace(PAIR, labels=("no", "yes", "YES", "no "))
    write(tmp_path / "pair/train.parquet", [(f"t {n}", "w", task.labels[n % 3]) for n in range(30)])
    write(tmp_path / "pair/validation.parquet", [(f"v {n}", "w", task.labels[n % 2]) for n in range(10)])
    report = report_on(open_data(str(tmp_path)), [task])
    (alike,) = report.problems
    assert alike.level == "warning" and alike.message.endswith("classes: 'yes' and 'YES', 'no' and 'no '")
    assert report.splits[0].problems[-1].message == "1 of 4 labels has fewer than 5 rows: 'no ' (0)"


def test_groups_that_cannot_be_ranked_are_counted(tmp_path: Path) -> None:
    task = Task("r", "rank", ("a",), ("no", "yes"), group="q", positive=1, test=())
    rows = [("x", "q0", 0), ("y", "q0", 1), ("z", "q1", 1), ("u", "q2", 0), ("v", "q2", 0), ("w", "q3", 1)]
    write(tmp_path / "r/train.parquet", rows, ("a", "q", "label"))
    write(tmp_path / "r/validation.parquet", rows[:2], ("a", "q", "label"))
    train, validation = report_on(open_data(str(tmp_path)), [task]).splits
    single, none_right = train.problems
    assert single.message.startswith("2 of 4 groups (the first is 'q1') have only one candidate")
    assert none_right.message.startswith("1 of 4 groups (the first is 'q2') have no candidate with the label")
    assert {problem.level for problem in train.problems} == {"warning"}
    assert [problem.column for problem in validation.problems] == [None]  # training rows


def test_groups_are_counted_across_tables() -> None:
    task = Task("r", "rank", ("a",), ("no", "yes"), group="q", positive=1)
    sizes = GroupSizes(task)
    for groups, labels in (([7, 8, None], [1, 0, 1]), ([9, 7], [np.nan, 0]), ([8], [np.nan])):
        sizes.add(pa.array(groups, pa.int64()), np.array(labels, float))
    (single,) = sizes.problems("rows")  # 8 and 9 have unlabelled rows, so their right candidate is unknown
    assert single.message.startswith("1 of 3 groups (the first is 9) have only one candidate")
