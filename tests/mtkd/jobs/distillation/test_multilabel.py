"""Tasks of type `multilabel`: forms of labels, loss, thresholds, metrics, and every command."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional

import mtkd as api
from mtkd.losses.logits import soft_label_kl
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.raw_table import RawTable
from tasks.data.sources import open_data
from tasks.scoring.metrics import score
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.task_names import resolve

LABELS = ("fruit", "animal", "tool")
TOPICS = Task("topics", "multilabel", ("text",), LABELS, metrics=("micro_f1", "macro_f1"))
TYPE = TOPICS.type
WORDS = {"fruit": ("apple", "pear"), "animal": ("dog", "cow"), "tool": ("drill", "axe")}


def parse(values: Any, split: str = "train", task: Task = TOPICS) -> Any:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return task.type.read_labels(task, split, RawTable(pa.table({"label": column}), "file"))


@pytest.mark.parametrize(
    "values",
    [
        [["fruit", "tool"], [], ["animal"]],
        [[0, 2], [], [1]],
        [[0.0, 2.0], [], [1.0]],
        ["fruit|tool", "[]", "animal"],
        ["tool, fruit", "[]", "1"],
        ['["fruit", "tool"]', "[]", "[1]"],
        pa.array([["0", "2"], [], ["1"]], pa.large_list(pa.string())),
        pa.array(["fruit|tool", "[]", "animal"]).dictionary_encode(),
    ],
)
def test_labels_are_parsed_in_every_form(values) -> None:
    found = parse(values)
    assert found.problems == []
    assert found.values.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert dict(TYPE.balance(TOPICS, found)) == {"fruit": 1, "animal": 1, "tool": 1, "no label": 1}


def test_a_label_may_contain_a_comma() -> None:
    task = Task("t", "multilabel", ("text",), ("a, b", "c"))
    assert parse(["a, b", "a, b|c", '["a, b"]'], task=task).values.tolist() == [[1, 0], [1, 1], [1, 0]]


def test_wrong_and_missing_labels_are_errors() -> None:
    found = parse(["fruit|stone", "", None, "[1"])
    assert [(problem.row, problem.message.split(";")[0]) for problem in found.problems] == [
        (0, "label 'stone'"), (1, "no label"), (2, "no label"), (3, "label '[1'"),
    ]  # fmt: skip
    assert np.isnan(found.values).all()
    found = parse(["fruit", "", None], "test")
    assert found.problems == [] and np.isnan(found.values).any(axis=1).tolist() == [False, True, True]
    assert dict(TYPE.balance(TOPICS, found))["unlabelled"] == 2


def test_loss_is_the_mean_over_labels_and_the_sum_over_labelled_rows() -> None:
    logits = torch.randn(3, 3, requires_grad=True)
    labels = torch.tensor([[1.0, 0, 1], [math.nan] * 3, [0, 0, 0]])
    found = TYPE.loss(TOPICS, logits, labels)
    expected = 0.0
    for row in (0, 2):
        for z, y in zip(logits[row].tolist(), labels[row].tolist(), strict=True):
            p = 1 / (1 + math.exp(-z))
            expected -= math.log(p if y else 1 - p) / 3
    assert found.total.item() == pytest.approx(expected, abs=1e-5)
    assert int(found.count) == TYPE.count_items(TOPICS, labels) == 2
    found.total.backward()
    assert logits.grad is not None and logits.grad[1].abs().sum() == 0


def test_soft_labels_have_a_binary_kl_divergence_per_label() -> None:
    z_s, z_t, temperature = torch.randn(4, 3), torch.randn(4, 3), 2.5
    found = soft_label_kl(TYPE.softmax_logits(z_s), TYPE.softmax_logits(z_t), temperature)
    p = (z_t / temperature).sigmoid()
    cross = functional.binary_cross_entropy_with_logits(z_s / temperature, p)
    entropy = functional.binary_cross_entropy(p, p)
    torch.testing.assert_close(found, (cross - entropy) * temperature**2, atol=1e-6, rtol=1e-5)


def test_metrics_agree_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        labels, predictions = (random.random((2, 12, 3)) < random.random(3)).astype(float)
        found = score(TOPICS, predictions, labels).by_metric
        for average in ("micro", "macro"):
            expected = f1_score(labels, predictions, average=average, zero_division=0.0)
            assert found[f"{average}_f1"] == pytest.approx(expected)
        constants = [np.tile(labels.mean(0) > 0.5, (12, 1)), np.ones((12, 3))]
        best = max(
            sum(f1_score(labels, c, average=a, zero_division=0.0) for a in ("micro", "macro")) / 2
            for c in constants
        )
        rows = RowPredictions(pa.array(list("abcdefghijkl")), labels, predictions)
        constant = TYPE.best_constant(TOPICS, rows).predictions
        assert score(TOPICS, constant, labels).primary == pytest.approx(best)


def test_thresholds_maximise_the_f1_of_each_label() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        logits = random.normal(size=(15, 3)).round(1)
        labels = (random.random((15, 3)) < 0.3).astype(float)
        labels[:, 2] = 0
        labels[4] = np.nan
        known = ~np.isnan(labels[:, 0])
        thresholds = TYPE.best_threshold(TOPICS, logits, labels)
        assert thresholds[2] == 0.5
        decoded = TYPE.decode(TOPICS, logits, threshold=thresholds)
        for label in np.flatnonzero(labels[known].any(axis=0)):
            cuts = [-np.inf, *np.unique(logits[known, label])]
            best = max(f1_score(labels[known, label], logits[known, label] > cut) for cut in cuts)
            reached = f1_score(labels[known, label], decoded[known, label])
            assert reached == pytest.approx(best)


def test_far_logits_give_finite_probabilities() -> None:
    assert TYPE.probabilities(TOPICS, np.array([[-1e4, 0.0, 1e4]])).tolist() == [[0.0, 0.5, 1.0]]
    assert TYPE.decode(TOPICS, np.array([[-1.0, 0.0, 1.0]])).tolist() == [[0, 0, 1]]


def test_invalid_multilabel_task_files_are_errors(tmp_path: Path, write_task: Callable[..., Path]) -> None:
    place = write_task(tmp_path, "multilabel", LABELS, train=[], validation=[])
    text = place.read_text()
    assert resolve(str(place))[0].metrics == ("micro_f1", "macro_f1")
    place.write_text(text.replace('["fruit", "animal", "tool"]', '["fruit"]'))
    with pytest.raises(UserError, match="multilabel tasks need labels"):
        resolve(str(place))
    place.write_text(text.replace("[files]", 'metrics = ["accuracy"]\n[files]'))
    with pytest.raises(UserError, match="'accuracy' does not suit task 'topics'"):
        resolve(str(place))


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory, write_task: Callable[..., Path]) -> Path:
    """A task file and its rows: CSV with "|", JSON lines with names, parquet with ids."""
    place = tmp_path_factory.mktemp("topics")
    random = np.random.default_rng(0)
    rows = []
    for _ in range(96):
        chosen = [label for label in LABELS if random.random() < 0.4]
        rows.append((" and ".join(["the", *(random.choice(WORDS[label]) for label in chosen)]), chosen))
    with open(place / "train.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerows([("text", "label"), *((text, "|".join(found) or "[]") for text, found in rows[:64])])
    named = [{"text": text, "label": found} for text, found in rows[64:80]]
    write_task(place, "multilabel", LABELS, train="train.csv", validation=named, test="test.parquet")
    ids = [[LABELS.index(name) for name in found] for _, found in rows[80:]]
    pq.write_table(pa.table({"text": [text for text, _ in rows[80:]], "label": ids}), place / "test.parquet")
    return place


def test_every_format_gives_a_matrix(topics: Path) -> None:
    [task] = resolve(str(topics / "topics.toml"))
    sizes = {split: load_rows(open_data("pocket"), task, split).labels.shape for split in task.splits}
    assert sizes == {"train": (64, 3), "validation": (16, 3), "test": (16, 3)}


def test_a_multilabel_task_runs_through_every_command(
    topics: Path, tiny_encoder: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    def run(*words: object) -> str:
        found = mtkd(*words)
        assert found.code == 0, found.err
        return found.out

    data = ["--data", "pocket", "--tasks", topics / "topics.toml"]
    quick = ["--epochs", 1, "--batch", 8, "--quiet"]
    assert "0 errors" in run("data", "check", *data)
    teacher, corpus = tmp_path / "teacher", tmp_path / "corpus"
    both = ["--data", "pocket", "--tasks", f"{topics / 'topics.toml'},rte", "--limit", 48, "--eval-limit", 16]
    run("refine", *both, "--encoder", tiny_encoder, "--out", teacher, *quick, "--set", "max_length=32")
    run("augment", "mask", *data, "--copies", 2, "--out", corpus, "--quiet")
    small = ["--set", "student.max_length=16", "--set", "student.transformer.layers=2"]
    bilstm = [word for key in ("embedding", "projection", "hidden", "output")
              for word in ("--set", f"student.bilstm.{key}_size=8")]  # fmt: skip
    students = {"mkd-lstm": [*bilstm, "--corpus", corpus], "distilbert-6": small}
    for recipe, more in students.items():  # logits_mse and soft_labels
        run("distill", recipe, *data, "--teacher", teacher, "--out", tmp_path / recipe, *quick, *more)
    tuned = tmp_path / "tuned"
    task = ["--task", topics / "topics.toml"]
    run("finetune", "--model", tmp_path / "distilbert-6", *task, "--data", "pocket", "--out", tuned, *quick)
    kept = json.loads((tuned / "run.json").read_text())["scores"]["topics/validation"]
    assert len(kept["threshold"]) == 3 and set(kept["metrics"]) == {"micro_f1", "macro_f1"}
    run("evaluate", "--model", tuned, *data, "--json", tmp_path / "scores.json", "--quiet")
    again = json.loads((tmp_path / "scores.json").read_text())
    assert kept["metrics"] == pytest.approx(again["scores"]["topics/validation"]["metrics"])
    answers = tmp_path / "answers.jsonl"
    asked = topics / "validation.jsonl"
    run("predict", "--model", tuned, *task, "--in", asked, "--out", answers, "--quiet")
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    labels, predicted = (
        np.array([[name in row[key] for name in LABELS] for row in found]) for key in ("label", "prediction")
    )
    expected = f1_score(labels, predicted, average="micro", zero_division=0.0)
    assert kept["metrics"]["micro_f1"] == pytest.approx(expected)
    for row in found:
        assert list(row["probabilities"]) == list(LABELS)
        for (name, p), cut in zip(row["probabilities"].items(), kept["threshold"], strict=True):
            assert abs(p - cut) < 1e-6 or (name in row["prediction"]) == (p > cut)  # p is rounded
    others = (
        topics / "others.toml"
    )  # with the head, and therefore the thresholds, of the task that it was trained on
    others.write_text((topics / "topics.toml").read_text().replace('"topics"', '"others"\nhead = "topics"'))
    words = ["--data", "pocket", "--tasks", others, "--split", "test", "--json", tmp_path / "scores.json"]
    run("evaluate", "--model", tuned, *words, "--quiet")
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert scores["others/test"]["threshold"] == kept["threshold"]


def test_the_threshold_of_the_first_validation_split_is_used_for_all(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)

    def rows(number: int) -> list[dict[str, Any]]:
        words = [random.choice([word for pair in WORDS.values() for word in pair]) for _ in range(number)]
        return [{"text": w, "label": [label for label in LABELS if random.random() < 0.4]} for w in words]

    task = api.Task("topics", "multilabel", ("text",), LABELS, validation=("validation", "other"))
    data = {"topics": {"train": rows(16), "validation": rows(24), "other": rows(24)}}
    model = api.refine(str(tiny_encoder), data=data, tasks=task, out=tmp_path / "run", epochs=1)
    scores = model.scores
    assert scores["topics/validation"].threshold == scores["topics/other"].threshold
    again = model.evaluate(data)
    for split in ("topics/validation", "topics/other"):
        assert again[split].metrics == pytest.approx(scores[split].metrics)
