"""Training and `mtkd data check` give the same warnings about labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

import mtkd
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data
from tasks.data.sources import open_data

NO_INFORMATION = "so these labels carry no information"
NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}
ANSWER = {"text": ["Paris"], "answer_start": [0]}


def frame(labels: list[Any]) -> pandas.DataFrame:
    """Rows with these labels, in groups of four."""
    rows = range(len(labels))
    texts = {"text": [f"text {row}" for row in rows], "context": [f"Paris is {row}" for row in rows]}
    return pandas.DataFrame({**texts, "query": [f"q{row // 4}" for row in rows], "label": labels})


@pytest.mark.parametrize(
    ("kind", "options", "train", "validation", "messages"),
    [
        (
            "classify",
            {"labels": ("a", "b", "c")},
            ["a"] * 20,
            ["a", "b"] * 5,
            [
                f"all rows have the label 'a', {NO_INFORMATION}",
                "2 of 3 labels have fewer than 5 rows: b (0), c (0)",
            ],
        ),
        (
            "classify",
            {"labels": ("a", "b", "B")},
            ["a"] * 95 + ["b"] * 5,
            ["a"] * 5,
            [
                "95.0% of the rows have the label 'a'; macro_f1 is more informative than accuracy",
                "1 of 3 labels has fewer than 5 rows: B (0)",
            ],
        ),
        ("multilabel", {"labels": ("a", "b")}, [["a"]] * 20, [["b"]], ["1 of 2 labels has fewer"]),
        ("regress", {}, [1.5] * 20, [1.0, 2.0], [f"all scores are 1.5, {NO_INFORMATION}"]),
        ("regress", {"range": (0, 5)}, [2] * 20, [1.0, 2.0], [f"all scores are 2, {NO_INFORMATION}"]),
        (
            "rank",
            {"labels": ("no", "yes"), "group": "query", "positive": 1},
            ["no"] * 4 + ["yes", "no"] * 4,
            ["yes", "no"],
            ["have no candidate with the label 'yes'"],
        ),
        (
            "span",
            {"unanswerable": True},
            [NO_ANSWER] * 3,
            [ANSWER],
            [f"no row has an answer, {NO_INFORMATION}"],
        ),
        ("span", {}, [NO_ANSWER, ANSWER], [ANSWER], ["1 row has no answer, but the task is not"]),
    ],
)
def test_training_gives_the_warnings_of_data_check_about_labels(
    tmp_path: Path, kind: str, options: Any, train: list[Any], validation: list[Any], messages: list[str]
) -> None:
    columns = ("text", "context") if kind == "span" else "text"
    task = mtkd.Task("own", kind, columns, **options)
    (tmp_path / "own").mkdir()
    for split, labels in (("train", train), ("validation", validation)):
        frame(labels).to_parquet(tmp_path / "own" / f"{split}.parquet")
    checked = [
        problem.message
        for problem in mtkd.check_data(tmp_path, task).all_problems
        if problem.column in (task.label, task.group) and problem.place.endswith("train.parquet")
    ]
    loaded = load_training_data(Request(str(tmp_path), "own", tmp_path / "run"), [task])
    place = f"own/train ({tmp_path / 'own' / 'train.parquet'}): column "
    warned = [text.removeprefix(place) for text in loaded.warnings if text.startswith(place)]
    assert len(checked) == len(warned) == len(messages)
    for check, warning, message in zip(checked, warned, messages, strict=True):
        assert message in check and message in warning


def test_training_warns_of_validation_labels_unless_they_are_a_sample(tmp_path: Path) -> None:
    task = mtkd.Task("own", "classify", "text", labels=("a", "A"))
    data = {"own": {"train": frame(["a", "A"] * 5), "validation": frame(["a"] * 6 + ["A"])}}
    alike = "own: labels that differ only in case or surrounding spaces are different classes: 'a' and 'A'"
    unmeasured = (
        "own/validation: column 'label': 1 of 2 labels has fewer than 5 rows, so the scores on this split "
        "carry no information about it: A (1)"
    )

    def warnings_about_labels(eval_limit: int | None) -> list[str]:
        request = Request(open_data(data), "own", tmp_path / "run", eval_limit=eval_limit)
        return load_training_data(request, [task]).warnings[:2]

    assert warnings_about_labels(None) == [alike, unmeasured]
    assert warnings_about_labels(6)[0] == alike and unmeasured not in warnings_about_labels(6)


def test_training_prints_each_warning_once(tmp_path: Path) -> None:
    task = mtkd.Task("own", "classify", "text", labels=("a", "b"))
    data = {"own": {"train": frame(["a"] * 8), "validation": frame(["a", "b"] * 5)}}
    with pytest.warns(mtkd.MtkdWarning) as given:
        run = mtkd.refine(
            encoder="minilm", data=data, tasks=task, out=tmp_path / "run", steps=1, settings={"layers": 1}
        )
    texts = [str(warning.message) for warning in given]
    expected = f"own/train: column 'label': all rows have the label 'a', {NO_INFORMATION}"
    assert texts.count(expected) == 1 and expected in run.record["warnings"]
