"""Tasks with a validation split per language: the scores, their mean, and the choice of the best epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mtkd.evaluation.scoring import TaskScores, averages, is_better, selection_value
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.finetune import finetune
from mtkd.jobs.request import Request
from mtkd.recipes import load_settings
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.data.sources import open_data
from tasks.glue import TASKS

SETS = {"train.batch_size": 8, "train.epochs": 4, "learning_rates": [3e-3], "max_length": 24}


@pytest.fixture(scope="session")
def languages(build_once: Callable[..., Path]) -> Path:
    """A directory with pocket rows as XNLI in three languages, MLQA in two, and SQuAD to train on."""

    def make(place: Path) -> None:
        mnli, squad = (open_data("pocket").table(TASKS[name], "train") for name in ("mnli", "squad"))
        parts = {
            "train": 0,
            "validation_en": 1,
            "validation_de": 2,
            "validation_sw": 3,
            "test_en": 4,
            "test_de": 5,
        }
        for name, table, splits in (("xnli", mnli, parts), ("mlqa", squad, list(parts)[1:3])):
            (place / name).mkdir(parents=True)
            for number, split in enumerate(splits):
                pq.write_table(
                    table.slice(40 * number, 40 - 8 * (number > 3)), place / name / f"{split}.parquet"
                )
        (place / "squad").mkdir()
        pq.write_table(squad.slice(100, 40), place / "squad/train.parquet")

    return build_once("languages", make)


def finetune_on(data: Path, teacher: Path, out: Path, task: str = "xnli", **changes: object) -> RunDirectory:
    settings = load_settings("minilmv2-finetune", "finetune", SETS | changes, task)
    return finetune(Request(str(data), task, out), settings, teacher)


def scores(task: str, **values: float) -> list[TaskScores]:
    return [
        TaskScores(task, f"validation_{language}", 10, {"accuracy": value}, value, 0.0, 1 - value)
        for language, value in values.items()
    ]


def test_an_epoch_is_chosen_by_the_mean_over_languages() -> None:
    english, balanced = scores("xnli", en=0.9, de=0.1, sw=0.2), scores("xnli", en=0.6, de=0.5, sw=0.4)
    for metric in ("score", "loss", "xnli/accuracy"):
        old, new = selection_value(metric, english), selection_value(metric, balanced)
        assert is_better(metric, new, old) and not is_better(metric, old, new), metric
    metric = "xnli/validation_en/accuracy"
    old, new = selection_value(metric, english), selection_value(metric, balanced)
    assert (old, new) == (0.9, 0.6) and not is_better(metric, new, old)
    (mean,) = averages([*english, *scores("rte", x=0.3)])
    assert (mean.task, mean.rows, mean.primary) == ("xnli", 30, pytest.approx(0.4))
    both = [*balanced, *scores("rte", x=0.1)]
    assert selection_value("score", both) == pytest.approx(0.3), "languages first, then tasks"


@pytest.mark.parametrize("metric", ["score", "xnli/validation_sw/accuracy"])
def test_the_weights_of_the_best_epoch_are_kept(
    metric: str, languages: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    record = finetune_on(languages, tiny_teacher, tmp_path / "run", **{"train.metric": metric}).record
    splits = [f"xnli/validation_{language}" for language in ("en", "de", "sw")]
    watched_splits = splits if metric == "score" else splits[2:]
    epochs = [epoch["scores"] for epoch in record["training"]["history"]]
    assert len(epochs) == 4 and all(sorted(found) == sorted(splits) for found in epochs)
    values = [sum(found[split] for split in watched_splits) / len(watched_splits) for found in epochs]
    best = epochs[values.index(max(values))]
    assert {split: found["primary"] for split, found in record["scores"].items()} == best
    assert record["training"]["best"] == pytest.approx(max(values))


def test_each_language_and_the_mean_are_scored(
    mtkd: Callable, languages: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    finetune_on(languages, tiny_teacher, tmp_path / "run", **{"train.epochs": 1})
    found = evaluate(tmp_path / "run", str(languages), split="test")
    assert list(found) == ["xnli/test_en", "xnli/test_de"]
    words = ["evaluate", "--model", tmp_path / "run", "--data", languages, "--split", "test"]
    shown = mtkd(*words, "--json", tmp_path / "scores.json")
    assert shown.code == 0, shown.err
    mean = sum(found[name].primary for name in found) / 2
    for text in (shown.out, str(found)):
        (line,) = [line for line in text.splitlines() if "xnli/average" in line]
        assert f" {100 * mean:.1f}" in line and " 64 " in line
    assert list(json.loads((tmp_path / "scores.json").read_text())["scores"]) == list(found)
    with pytest.raises(UserError, match="no split test_fr"):
        evaluate(tmp_path / "run", str(languages), split="test_fr")


def test_mlqa_is_tuned_on_english_questions(languages: Path, span_teacher: Path, tmp_path: Path) -> None:
    sets = {"max_length": 48, "learning_rates": [1e-3], "train.epochs": 2}
    record = finetune_on(languages, span_teacher, tmp_path / "run", "mlqa", **sets).record
    assert record["rows"]["mlqa"]["train"] > 0
    english = record["scores"]["mlqa/validation_en"]["metrics"]["f1"]
    assert record["tried"] == {"0.001": english}
    (tmp_path / "data/mlqa").mkdir(parents=True)
    (tmp_path / "data/squad").symlink_to(languages / "squad")
    (tmp_path / "data/mlqa/validation_de.parquet").symlink_to(languages / "mlqa/validation_de.parquet")
    with pytest.raises(UserError, match=r"train.metric=mlqa/validation_en/f1` watches .* not have") as caught:
        finetune_on(tmp_path / "data", span_teacher, tmp_path / "none", "mlqa", **sets)
    assert "expected: validation_de" in str(caught.value) and not (tmp_path / "none").exists()
