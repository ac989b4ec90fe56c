"""`mtkd init --teacher`: rows that spell the labels of the teacher in another way, or lack some of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import mtkd as library
from mtkd.teachers.label_order import respelled
from tasks.common.errors import UserError
from tasks.data.sources import PocketSource
from tasks.glue import TASKS

TEXTS = PocketSource().table(TASKS["sst2"], "train")["sentence"].to_pylist()[:80]


def balanced(teacher: Path) -> np.ndarray:
    """Change a checkpoint so that it predicts all classes; return what it predicts for `TEXTS`."""
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(teacher).eval()
    batch = transformers.AutoTokenizer.from_pretrained(teacher)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        model.classifier.bias -= model(**batch).logits.median(0).values
        classes: np.ndarray = model(**batch).logits.argmax(-1).numpy()
    model.save_pretrained(teacher)
    assert np.bincount(classes, minlength=3).min() > 5
    return classes


def write(path: Path, labels: Sequence[Any], **more: Sequence[Any]) -> Path:
    rows = [
        {"text": text, "label": label, **dict(zip(more, values, strict=True))}
        for text, label, *values in zip(TEXTS, labels, *more.values(), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score_of_teacher(pipeline: Path) -> float:
    """Run a pipeline up to the comparison with the teacher, and return the teacher's score in it."""
    text, report, _ = pipeline.read_text().partition("[steps.report]")
    assert report
    pipeline.write_text(text)
    library.run_pipeline(pipeline, settings={"steps.student.steps": 2})
    differences = json.loads((pipeline.parent / "runs" / "against-teacher.json").read_text())["differences"]
    score: float = differences["../Bert"]["reviews"]["reference"]
    return score


HALF = ("--validation-fraction", "0.5")
SPELLINGS = {
    "words": (
        ["very_negative", "Neutral", "positive"],
        [["very negative", "Very-Negative ", "VERY_NEGATIVE"], ["neutral", "Neutral"], ["positive"]],
    ),
    "numbers": (["LABEL_0", "LABEL_1", "LABEL_2"], [["0", "LABEL_0", "0.0"], ["label 1", "1"], ["2", '"2"']]),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_labels_in_several_spellings_become_those_of_the_teacher(
    case: str, tmp_path: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    names, spellings = SPELLINGS[case]
    teacher = save_checkpoint("Bert", layers=3, id2label=dict(enumerate(names)))
    random = np.random.default_rng(0)
    right = balanced(teacher)
    classes = np.where(random.random(len(TEXTS)) < 0.7, right, random.integers(0, 3, len(TEXTS)))
    data = write(tmp_path / "reviews.jsonl", [str(random.choice(spellings[number])) for number in classes])
    made = mtkd("init", data, "--out", tmp_path / "job", "--teacher", teacher, *HALF)
    assert made.code == 0, made.err
    assert " ".join(made.out.split()).count("labels are respelt to match the teacher: ") == 1
    task = tomllib.loads((tmp_path / "job" / "reviews.toml").read_text())
    assert task["labels"] == names
    held_out = pq.read_table(tmp_path / "job" / "reviews-validation.parquet").to_pylist()
    by_text = dict(zip(TEXTS, classes.tolist(), strict=True))
    assert [row["label"] for row in held_out] == [names[by_text[row["text"]]] for row in held_out]
    expected = np.mean([by_text[row["text"]] == right[TEXTS.index(row["text"])] for row in held_out])
    assert score_of_teacher(tmp_path / "job" / "pipeline.toml") == pytest.approx(expected)


def test_a_class_without_labelled_rows_is_kept_and_named(
    tmp_path: Path, save_checkpoint: Callable[..., Path]
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "good", 1: "Neutral", 2: "bad"})
    right = balanced(teacher)
    classes = np.where(right == 1, 2, right)
    labels = [["good", "neutral", "bad"][number] for number in classes]
    train, dev = tmp_path / "reviews.jsonl", tmp_path / "dev.jsonl"
    lines = write(train, labels).read_text().splitlines(keepends=True)
    train.write_text("".join(lines[:40]))
    dev.write_text("".join(lines[40:]))
    made = library.init_pipeline([train, dev], out=tmp_path / "job", teacher=teacher)
    assert made.task.labels == ("good", "Neutral", "bad")
    assert (
        "1 of 3 labels has no labelled row, so the scores do not show whether a model predicts it: 'Neutral'"
        in (made.notes)
    )
    task = tomllib.loads(made.task_file.read_text())
    assert task["files"] == {"train": "../reviews.jsonl", "validation": "../dev.jsonl"}
    assert score_of_teacher(made.pipeline) == pytest.approx(np.mean(classes[40:] == right[40:]))


def test_the_order_of_unnamed_outputs_names_classes_without_labelled_rows(
    tmp_path: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher = save_checkpoint("Bert", layers=3, num_labels=3)
    words = ("init", write(tmp_path / "reviews.jsonl", ["Good", "bad"] * 40), "--teacher", teacher)
    refused = mtkd(*words, "--out", tmp_path / "job")
    assert refused.code == 2 and "3 outputs" in refused.err and "--teacher-labels" in refused.err, refused.err
    order = ("--teacher-labels", "reviews=bad,neutral,good")
    made = mtkd(*words, "--out", tmp_path / "job", *order)
    assert made.code == 0, made.err
    assert tomllib.loads((tmp_path / "job" / "reviews.toml").read_text())["labels"] == [
        "bad",
        "neutral",
        "good",
    ]
    steps = {
        step.name: step for step in library.run_pipeline(tmp_path / "job" / "pipeline.toml", dry_run=True)
    }
    assert "--teacher-labels reviews=bad,neutral,good" in steps["student"].command


def test_the_labels_of_a_run_are_used_in_its_order(tmp_path: Path, tiny_encoder: Path) -> None:
    first = library.init_pipeline(
        write(tmp_path / "reviews.jsonl", ["bad", "good", "fine", "good"] * 20), out=tmp_path / "a"
    )
    run = library.refine(tiny_encoder, tasks=str(first.task_file), out=tmp_path / "run", steps=1)
    other = write(tmp_path / "more.jsonl", ["Good", "bad ", "bad", "Bad"] * 20)
    made = library.init_pipeline(other, out=tmp_path / "b", name="reviews", teacher=run.path)
    assert made.task.labels == ("bad", "fine", "good")
    rows = pq.read_table(made.task_file.parent / "reviews-train.parquet")["label"].to_pylist()
    assert set(rows) == {"bad", "good"} and rows.count("bad") > 2 * rows.count("good")


def test_lists_of_labels_are_respelled(tmp_path: Path, save_checkpoint: Callable[..., Path]) -> None:
    teacher = save_checkpoint(
        "Bert",
        layers=3,
        id2label={0: "fast", 1: "slow_", 2: "red"},
        problem_type="multi_label_classification",
    )
    data = write(tmp_path / "cars.jsonl", [["Fast", "fast"], ["slow", "Fast"], [], None] * 20)
    made = library.init_pipeline(data, out=tmp_path / "job", teacher=teacher)
    assert made.task.labels == ("fast", "slow_", "red")
    lists = pq.read_table(tmp_path / "job" / "cars-train.parquet")["label"].to_pylist()
    assert {tuple(labels) for labels in lists} == {("fast",), ("slow_", "fast"), ()}
    assert made.rows["unlabelled"] == 20 and any("1 of 3 labels has no labelled row" in n for n in made.notes)


def test_labels_that_the_teacher_does_not_know_are_an_error(
    tmp_path: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "good", 1: "bad", 2: "fine"})
    data = write(tmp_path / "reviews.jsonl", ["good", "Good", "bad", "badd"] * 20)
    refused = mtkd("init", data, "--out", tmp_path / "job", "--teacher", teacher)
    assert refused.code == 2 and "no output is named badd: change or leave out" in refused.err, refused.err
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ("Good bad_", "good bad", "good bad"),
        ("C++ c", "C Java", "- C"),
        ("us Us US", "us US", "us - US"),
        ("0 1.0 label-2 -1", "LABEL_0 LABEL_1 LABEL_2", "LABEL_0 LABEL_1 LABEL_2 -"),
        ("1 -1 1.0", "-1 1", "1 -1 1"),
        ("1000001", "1000000 1000001.0", "1000001.0"),
        ("0 1", "negative positive", "- -"),
    ],
)
def test_only_the_spelling_of_labels_is_ignored(labels: str, names: str, expected: str) -> None:
    found = respelled(labels.split(), names.split())
    assert [found.get(label, "-") for label in labels.split()] == expected.split()


def test_ratings_are_classes_if_the_teacher_is_a_classifier(
    tmp_path: Path, save_checkpoint: Callable[..., Path]
) -> None:
    data = tmp_path / "reviews.jsonl"
    rows = [{"text": text, "rating": number % 5 + 1} for number, text in enumerate(TEXTS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stars = {number: str(number + 1) for number in range(5)}
    made = {}
    for name, config in {"classes": {"id2label": stars}, "scores": {"num_labels": 1}}.items():
        teacher = save_checkpoint("Bert", name, layers=3, **config)
        made[name] = library.init_pipeline(data, out=tmp_path / f"job-{name}", teacher=teacher).task
    assert made["classes"].kind == "classify" and made["classes"].labels == ("1", "2", "3", "4", "5")
    assert made["scores"].kind == "regress"


def test_validation_rows_and_texts_without_labels_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "dev.jsonl", ["good", "bad"] * 40)
    (tmp_path / "crawled.csv").write_text("text\na film\nanother film\n")
    files = [tmp_path / "dev.jsonl", tmp_path / "crawled.csv"]
    with pytest.raises(UserError, match=r"one column, .*dev\.jsonl are for validation") as refused:
        library.init_pipeline(files, out=tmp_path / "job")
    assert f"pass {files[0]} alone as the data" in str(refused.value.hint)
    assert f"`unlabelled=[{str(files[1])!r}]`" in str(refused.value.hint)
    made = library.init_pipeline(files[0], unlabelled=[files[1]], out=tmp_path / "job")
    assert made.rows == {"train": 72, "validation": 8, "unlabelled": 2}


def test_rows_with_one_label_get_the_other_labels_of_the_teacher(
    tmp_path: Path, save_checkpoint: Callable[..., Path]
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "bad", 1: "Neutral", 2: "good"})
    data = write(tmp_path / "reviews.jsonl", ["Good"] * 80)
    with pytest.raises(UserError, match="one value, 'Good'") as refused:
        library.init_pipeline(data, out=tmp_path / "job")
    assert "give a `teacher` that predicts them" in str(refused.value.hint)
    made = library.init_pipeline(data, out=tmp_path / "job", teacher=teacher, validation_fraction=0.5)
    assert made.task.labels == ("bad", "Neutral", "Good")
    assert any("2 of 3 labels have no labelled row" in note for note in made.notes)
    assert 0 <= score_of_teacher(made.pipeline) <= 1


@pytest.mark.parametrize(
    ("config", "label", "message"),
    [
        ({"id2label": {0: "bad", 1: "good"}}, "fine", "'fine', and the teacher .* has the labels bad, good"),
        ({"num_labels": 1}, "fine", "all rows have the label 'fine', and the teacher"),
        ({}, "fine", "does not name its 2 outputs .* have only 1 label"),
        ({"id2label": {0: "bad", 1: "good"}}, 0, r"`teacher_labels={'reviews': \['0', '1'\]}`"),
    ],
)
def test_one_label_that_the_teacher_does_not_predict_is_an_error(
    tmp_path: Path, save_checkpoint: Callable[..., Path], config: dict, label: Any, message: str
) -> None:
    teacher = save_checkpoint("Bert", layers=3, **config)
    data = write(tmp_path / "reviews.jsonl", [label] * 80)
    with pytest.raises(UserError, match=message):
        library.init_pipeline(data, out=tmp_path / "job", teacher=teacher, kind="classify")


@pytest.mark.parametrize("numbers", [2, 3])
def test_the_error_about_numbers_as_labels_fills_in_their_order(
    tmp_path: Path, save_checkpoint: Callable[..., Path], mtkd: Any, numbers: int
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "bad", 1: "neutral", 2: "good"})
    data = write(tmp_path / "reviews.jsonl", [number % numbers for number in range(80)])
    words = ("init", data, "--out", tmp_path / "job", "--teacher", teacher)
    refused = mtkd(*words)
    option = "--teacher-labels reviews=0,1,2"
    assert refused.code == 2 and option in refused.err, refused.err
    assert "if 0 stands for bad, 1 stands for neutral, 2 stands for good, pass" in refused.err
    made = mtkd(*words, *option.split())
    assert made.code == 0, made.err


def test_few_validation_rows_give_a_note(tmp_path: Path) -> None:
    data = write(tmp_path / "reviews.jsonl", ["good", "bad"] * 40)
    notes = library.init_pipeline(data, out=tmp_path / "job", validation_fraction=0.5).notes
    assert any("a score of 80% is known only to within 12 points" in note for note in notes)


def test_the_tokens_of_a_row_are_counted_as_the_teacher_splits_it(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import transformers

    teacher = save_checkpoint("Roberta", layers=3, id2label={0: "bad", 1: "good"})
    train, dev = (
        write(tmp_path / f"{split}.jsonl", ["good", "bad"] * 40, other=TEXTS[::-1])
        for split in ("train", "dev")
    )
    made = [
        str(
            library.init_pipeline([train, dev], out=tmp_path, columns=["text", "other"], dry_run=True, **more)
        )
        for more in ({"teacher": teacher}, {})
    ]
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    ids = transformers.AutoTokenizer.from_pretrained(teacher)(pairs, truncation=False)["input_ids"]
    expected = 16 * np.ceil(np.percentile([len(row) for row in ids], 95) / 16)
    assert [f"at most {expected:.0f} tokens per row" in text for text in made] == [True, False]
