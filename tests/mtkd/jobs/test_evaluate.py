"""`evaluate` and `predict`: what is scored, skipped and reported, the tasks saved in a model, devices."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report
from sklearn.metrics import confusion_matrix as count_confusions
from sklearn.preprocessing import StandardScaler

import mtkd
from mtkd.device import find_device
from mtkd.evaluation.baselines import (
    CONSTANT,
    COSINE,
    LINEAR,
    baseline_warnings,
    best_cut,
    encoder_baselines,
)
from mtkd.evaluation.class_report import class_report
from mtkd.evaluation.frozen_encoder import FrozenEncoder
from mtkd.evaluation.scoring import TaskScores, read_predictions
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.finetune import finetune
from mtkd.jobs.labelled_rows import labelled_rows
from mtkd.jobs.refine import refine
from mtkd.jobs.request import Request
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from tasks.common.errors import UserError
from tasks.data.file_readers import read_file
from tasks.data.loading import load_rows, unlabelled_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task
from tasks.task_types.classification import Classification
from tasks.task_types.task_type import TaskType


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def custom_task(
    tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory, write_task: Callable[..., Path]
) -> tuple[Path, Path]:
    """A run on a custom task, and the directory with its TOML file and rows."""
    place, labels = tmp_path_factory.mktemp("own"), ("cat", "dog", "bird")
    rows = [{"text": f"the {name} {n}", "label": name} for n in range(8) for name in labels]
    file = write_task(place / "task", "classify", labels, train=rows, validation=rows)
    settings = load_settings("refine", "refine", {"train.epochs": 1, "max_length": 16})
    request = Request(str(place / "task"), str(file), place / "run")
    refine(request, settings, str(tiny_encoder))
    return place / "run", place / "task"


def test_a_task_without_labels_is_skipped_and_the_others_are_scored(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    pair = {"sentence1": "a cat", "sentence2": "a dog"}
    write(tmp_path / "rte/test.jsonl", [{**pair, "label": n % 2} for n in range(6)])
    write(tmp_path / "sst2/test.jsonl", [{"sentence": "a film"}] * 3)
    words = ("evaluate", "--model", tiny_teacher, "--data", tmp_path, "--split", "test", "--json")
    answered = mtkd(*words)
    assert answered.code == 0, answered.err
    record = json.loads(answered.out)
    assert set(record["scores"]) == {"rte/test"} and record["scores"]["rte/test"]["rows"] == 6
    assert record["skipped"]["sst2/test"] == "not labelled (3 of 3 rows)"
    assert "no split test" in record["skipped"]["stsb"]
    assert "WARNING" in answered.err and "sst2/test is skipped" in answered.err
    shutil.rmtree(tmp_path / "rte")
    refused = mtkd(*words)
    assert refused.code == 2 and not refused.out and "no task can be scored" in refused.err
    write(tmp_path / "rte/test.jsonl", [{**pair, "label": 7}])
    assert mtkd(*words).code == 2, "a wrong row is an error, not a reason to skip"


def test_the_class_report_matches_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    task = Task(name="t", kind="classify", columns=("a",), labels=("a", "b", "c", "never"))
    labels, predictions = rng.integers(0, 3, 200).astype(float), rng.integers(0, 4, 200)
    found = class_report(task, predictions, labels)
    reference = classification_report(
        labels, predictions, labels=range(4), target_names=task.labels, output_dict=True, zero_division=0
    )
    for scores in found.classes:
        assert {
            "precision": scores.precision,
            "recall": scores.recall,
            "f1-score": scores.f1,
            "support": scores.support,
        } == pytest.approx(reference[scores.label])
    np.testing.assert_array_equal(found.confusion, count_confusions(labels, predictions, labels=range(4)))
    assert found.confused_with(3) == "-"
    wrong = found.confusion[0, 1:]
    assert found.confused_with(0) == f"{task.labels[1 + wrong.argmax()]} ({wrong.max()})"


def test_the_class_report_is_printed_and_written_as_json(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    words = ("evaluate", "--model", tiny_teacher, "--data", "pocket", "--tasks", "rte,stsb", "--quiet")
    plain, reported = mtkd(*words), mtkd(*words, "--report", "--json", tmp_path / "scores.json")
    assert "class by class" not in plain.out and "best constant prediction" in plain.out
    assert "rte/validation, class by class" in reported.out and "not_entailment" in reported.out
    record = json.loads((tmp_path / "scores.json").read_text())
    assert set(record["details"]) == {"rte/validation"} and set(record["scores"]) >= {"stsb/validation"}
    details = record["details"]["rte/validation"]
    right = sum(details["confusion"][k][k] for k in (0, 1))
    rows = record["scores"]["rte/validation"]["rows"]
    assert record["scores"]["rte/validation"]["metrics"]["accuracy"] == pytest.approx(right / rows)
    assert sum(found["support"] for found in details["classes"]) == rows


def test_a_score_within_noise_of_the_baseline_is_a_warning() -> None:
    """With 100 rows in two equal classes, 75 correct predictions are better than chance, and 54 are not."""
    labels = np.repeat([0.0, 1.0], 50)

    def scored(task: str, predictions: np.ndarray) -> TaskScores:
        rows = RowPredictions(pa.array(map(str, range(100))), labels, predictions)
        return TaskScores(task, "validation", 100, {}, 0.0, 0.0, 0.0, predictions=rows)

    def right(number: int) -> np.ndarray:
        found = 1 - labels
        chosen = np.random.default_rng(0).permutation(100)[:number]
        found[chosen] = labels[chosen]
        return found

    tasks = {name: TASKS[name] for name in ("rte", "stsb")}
    assert baseline_warnings(tasks, [scored("rte", right(75)), scored("stsb", labels)]) == []
    (close,) = baseline_warnings(tasks, [scored("rte", right(54))])
    assert "54.0 is not clearly better than always predicting the same class (50.0)" in close
    (worse,) = baseline_warnings(tasks, [scored("rte", right(10))])
    assert "10.0 is not" in worse and worse.endswith(" points.")
    (weak,) = baseline_warnings(tasks, [scored("stsb", np.tile([0.0, 1.0], 50))])
    assert "always predicting the mean" in weak and "(0.0)" in weak


def test_a_task_type_without_constants_and_probabilities(
    tiny_teacher: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("constant_predictions", "probabilities"):
        monkeypatch.setattr(Classification, name, getattr(TaskType, name))
    found = evaluate(tiny_teacher, "pocket", "sst2,stsb", limit=40, baselines=True, encoder=str(tiny_encoder))
    assert np.isnan(found["sst2"].majority) and not np.isnan(found["stsb"].majority)
    line = next(line for line in str(found).splitlines() if line.startswith("sst2"))
    assert line.split()[3] == "-"
    assert set(found.differences[CONSTANT]) == {"stsb"} and "sst2" in found.differences[LINEAR]
    assert not any(warning.startswith("sst2") for warning in found.warnings)
    [predicted] = mtkd.load(tiny_teacher).predict("sst2", ["a film"])
    assert set(predicted) == {"prediction", "prediction_id"}


def test_scores_outside_the_range_of_the_task_give_a_warning(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = save_checkpoint("Bert", "scores", num_labels=1)
    (outputs,) = evaluate(checkpoint, "pocket", replace(TASKS["stsb"], range=None), limit=16).scores
    low, high = (float(bound(outputs.predictions.predictions)) for bound in (np.min, np.max))
    for ends, warned in (((low - 1, high + 1), False), ((high + 1, high + 2), True)):
        task = replace(TASKS["stsb"], range=ends)
        rows = [{"sentence1": "a", "sentence2": text, "label": ends[0]} for text in ("b", "c", "d")]
        done = evaluate(checkpoint, {"stsb": {"validation": rows}}, task)
        assert any("outside the task's range" in text for text in done.warnings) == warned


def test_two_models_and_the_baselines_are_compared_row_by_row(
    mtkd: Callable, tiny_teacher: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    words = ["--data", "pocket", "--tasks", "rte,stsb,sst2", "--limit", 40, "--quiet"]
    answered = mtkd(
        "evaluate", "--model", tiny_teacher, "--against", tiny_teacher, "--baselines", *words,
        "--json", tmp_path / "scores.json", "--predictions", tmp_path / "rows",
    )  # fmt: skip
    assert answered.code == 0, answered.err
    assert "Compared with" in answered.out and "tied" in answered.out
    assert "fitted to up to 48 labelled rows per task" in answered.out, "as many as the model's run"
    record = json.loads((tmp_path / "scores.json").read_text())
    found = record["differences"]
    assert set(found) == {str(tiny_teacher), CONSTANT, LINEAR, COSINE}
    assert all(
        (gap["low"], gap["high"], gap["verdict"]) == (0, 0, "tied")
        for gap in found[str(tiny_teacher)].values()
    )
    assert set(found[str(tiny_teacher)]) == set(found[LINEAR]) == {"rte", "stsb", "sst2", "average"}
    assert set(found[COSINE]) == {"rte", "stsb"}, "one text has no cosine"
    scores = record["scores"]["rte/validation"]
    assert found[CONSTANT]["rte"]["reference"] == pytest.approx(scores["majority"])
    written = read_predictions(tmp_path / "rows")
    assert set(written) == {"rte", "stsb", "sst2"} and len(written["rte"]["validation"]) == 40
    rows = written["rte"]["validation"]
    assert (rows.labels == rows.predictions).mean() == pytest.approx(scores["metrics"]["accuracy"])
    missing = mtkd("evaluate", "--model", tiny_teacher, "--against", tmp_path / "none", *words)
    assert missing.code == 2 and "error: --against:" in missing.err and "hint" not in missing.err


def test_the_frozen_encoder_baseline_matches_scikit_learn(tiny_encoder: Path, tmp_path: Path) -> None:
    source = open_data("pocket")
    task = TASKS["sst2"]
    train, validation = (load_rows(source, task, split, 60) for split in ("train", "validation"))
    frozen = FrozenEncoder(str(tiny_encoder), tmp_path)
    (vectors,) = frozen.vectors(validation)
    model = MultiTaskModel.without_heads(str(tiny_encoder), 128)
    encoded = model.tokeniser.token_ids(validation.texts[0])
    layout = model.tokeniser.layout(1).specials
    ids = torch.tensor([[*layout[0], *encoded.row(3), *layout[1]]])
    with torch.inference_mode():
        hidden = model.encoder.body(input_ids=ids).last_hidden_state
    np.testing.assert_allclose(vectors[3], hidden[0].mean(0), atol=1e-5)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    again = FrozenEncoder("no such encoder", tmp_path)
    again.name = str(tiny_encoder)
    np.testing.assert_array_equal(again.vectors(validation)[0], vectors)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files, "read, not computed again"
    found = encoder_baselines(task, train, [validation], frozen)
    assert set(found) == {LINEAR}
    given = frozen.vectors(train)[0]
    scaler = StandardScaler().fit(given)
    choices = [
        LogisticRegression(C=c, max_iter=200)
        .fit(scaler.transform(given), train.labels)
        .predict(scaler.transform(vectors))
        for c in (1e-3, 1e-2, 1e-1, 1.0)
    ]
    predictions = found[LINEAR]["validation"].predictions
    assert any((predictions == choice).all() for choice in choices)


def test_the_cosine_threshold_is_the_best_of_all_thresholds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values, positive = rng.integers(0, 6, 12).astype(float), rng.random(12) < 0.5
        threshold, sign = best_cut(values, positive)
        right = ((sign * (values - threshold) > 0) == positive).sum()
        cuts = np.arange(-0.5, 6.5)
        assert right == max(((s * (values - cut) > 0) == positive).sum() for cut in cuts for s in (1, -1))


def test_a_model_contains_its_custom_tasks(
    mtkd: Callable, custom_task: tuple[Path, Path], tmp_path: Path
) -> None:
    run, task = custom_task
    by_file = evaluate(run, str(task), str(task / "topics.toml"))
    by_name = evaluate(run, "pocket", "topics")
    assert by_name.scores == by_file.scores == evaluate(run, "pocket").scores
    source, out = write(tmp_path / "in.jsonl", [{"text": "the cat 3"}]), tmp_path / "out.jsonl"
    for given in (("--task", "topics"), ()):
        assert mtkd("predict", "--model", run, *given, "--in", source, "--out", out).code == 0
    assert json.loads(out.read_text())["prediction"] in ("cat", "dog", "bird")
    unknown = mtkd("predict", "--model", run, "--task", "topic", "--in", source, "--out", out)
    assert unknown.code == 2 and "did you mean 'topics'" in unknown.err


def test_files_of_a_task_may_move_to_the_data_directory(
    custom_task: tuple[Path, Path], tmp_path: Path
) -> None:
    run, task = custom_task
    before = evaluate(run, "pocket", "topics").scores
    moved = tmp_path / "data" / "topics"
    shutil.copytree(task, moved)
    hidden = task.rename(task.with_name("elsewhere"))
    try:
        with pytest.raises(UserError, match=r"validation\.jsonl, which the model recorded .* is missing"):
            evaluate(run, "pocket", "topics")
        assert evaluate(run, str(tmp_path / "data"), "topics").scores == before
    finally:
        hidden.rename(task)


def test_a_model_can_be_moved_together_with_its_data(custom_task: tuple[Path, Path], tmp_path: Path) -> None:
    run, task = custom_task
    before = evaluate(run, None).scores
    shutil.copytree(run, tmp_path / "moved" / "runs" / "run")
    shutil.copytree(task, tmp_path / "moved" / "task")
    hidden = task.rename(task.with_name("elsewhere"))
    try:
        moved = tmp_path / "moved" / "runs" / "run"
        assert evaluate(moved, None).scores == before
        (tmp_path / "moved" / "task" / "validation.jsonl").write_text('{"text": "a cat", "label": "cat"}')
        with pytest.raises(UserError, match=r"which the model recorded .* is missing"):
            evaluate(moved, None)
    finally:
        hidden.rename(task)


def test_the_data_directory_takes_precedence_over_the_task_file(
    custom_task: tuple[Path, Path], tmp_path: Path
) -> None:
    run, task = custom_task
    held_out = tmp_path / "topics" / "validation.csv"
    (unused,) = evaluate(run, str(tmp_path), "topics").warnings
    assert "has no topics/validation.csv" in unused and str(task) in unused
    warned: list[str] = []
    settings = load_settings("finetune", "finetune", {"train.epochs": 1, "learning_rates": [1e-4]})
    finetune(
        Request(str(tmp_path), str(task / "topics.toml"), tmp_path / "fine"),
        settings,
        run,
        warn=warned.append,
    )
    assert any("has no topics/train.csv, topics/validation.csv" in warning for warning in warned)
    held_out.parent.mkdir()
    held_out.write_text("text,label\nthe cat 3,cat\n", encoding="utf-8")
    for spec in (None, str(task / "topics.toml")):
        result = evaluate(run, str(tmp_path), spec)
        assert [score.rows for score in result.scores] == [1]
        assert not any("topics/validation.csv" in warning for warning in result.warnings)
    assert evaluate(run, str(task), "topics").scores[0].rows > 1
    with pytest.raises(UserError, match="no split test in"):
        evaluate(run, str(tmp_path), split="test")
    shutil.copy(held_out, held_out.with_name("test.csv"))
    (score,) = evaluate(run, str(tmp_path), split="test").scores
    assert (score.split, score.rows) == ("test", 1)


def test_the_input_of_predict_is_never_overwritten(
    mtkd: Callable, custom_task: tuple[Path, Path], tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [{"text": "the cat"}])
    before = source.read_text()
    (tmp_path / "symbolic.jsonl").symlink_to(source)
    os.link(source, tmp_path / "hard.jsonl")
    for out in ("in.jsonl", "symbolic.jsonl", "hard.jsonl"):
        answered = mtkd("predict", "--model", custom_task[0], "--in", source, "--out", tmp_path / out)
        assert answered.code == 2 and "would be overwritten" in answered.err
        assert source.read_text() == before


def test_a_task_file_with_files_needs_no_data_source(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"sentence": "x", "label": 9}, {"sentence": "y", "label": 9}])
    rows = unlabelled_rows(TASKS["sst2"], read_file(path, ["sentence"]))
    assert rows.texts[0].to_pylist() == ["x", "y"] and np.isnan(rows.labels).all()
    with pytest.raises(UserError, match="no column 'sentence'"):
        unlabelled_rows(TASKS["sst2"], read_file(write(tmp_path / "b.jsonl", [{"text": "x"}]), []))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cuda:99", "cannot run on the device 'cuda:99'"),
        ("gpu", "unknown device 'gpu' (did you mean 'cuda'?)\n"),
        ("meta", "unknown device 'meta'\n"),
    ],
)
def test_a_missing_device_is_one_error(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, name: str, problem: str
) -> None:
    model = ("--model", tiny_teacher)
    source = write(tmp_path / "in.jsonl", [{"sentence": "x"}])
    for words in (
        ("evaluate", *model, "--data", "pocket"),
        ("predict", *model, "--task", "sst2", "--in", source, "--out", tmp_path / "out"),
        ("bench", "inference", *model),
        ("refine", "--data", "pocket", "--out", tmp_path / "run"),
    ):
        answered = mtkd(*words, "--device", name)
        assert answered.code == 2 and problem in answered.err
        assert "expected: cpu" in answered.err and not (tmp_path / "run").exists()


def test_training_uses_the_given_device_and_learning_rate(
    mtkd: Callable, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(find_device("cpu")) == "cpu" and find_device(None).type in ("cpu", "cuda", "mps")
    tiny = ("--data", "pocket", "--limit", 16, "--eval-limit", 16, "--steps", 1, "--quiet", "--device", "cpu")
    teacher = ("refine", *tiny, "--tasks", "rte", "--encoder", tiny_encoder, "--lr", "0.001")
    answered = mtkd(*teacher, "--out", tmp_path / "teacher")
    assert answered.code == 0, answered.err
    record = json.loads((tmp_path / "teacher/run.json").read_text())
    assert record["identity"]["settings"]["train"]["lr"] == 0.001
    assert "ACCELERATE_TORCH_DEVICE" not in os.environ
    tuned = ("finetune", *tiny, "--model", tmp_path / "teacher", "--task", "rte", "--lr", "0.002")
    assert mtkd(*tuned, "--out", tmp_path / "tuned").code == 0
    assert set(json.loads((tmp_path / "tuned/run.json").read_text())["tried"]) == {"0.002"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = mtkd(*teacher, "--out", tmp_path / "other")
    assert refused.code == 2 and "several processes" in refused.err


def test_predictions_only_replace_earlier_predictions(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    words = ("evaluate", "--model", tiny_teacher, "--data", "pocket", "--tasks", "rte", "--limit", 8)
    mine = tmp_path / "rows/rte/validation.parquet"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for directory, message in (
        (tmp_path / "rows", "does not hold predictions"),
        (tiny_teacher / "predictions", "belongs to a run"),
        (tiny_teacher, "lies inside"),
    ):
        answered = mtkd(*words, "--predictions", directory)
        assert answered.code == 2 and message in answered.err, answered.err
    assert mine.read_text() == "mine"
    for name in ("predictions/rte/.validation.parquet", ".scores.json"):
        leftover = tmp_path / f"{name}.0123456789abcdef.tmp"  # as a killed process leaves one
        leftover.parent.mkdir(parents=True, exist_ok=True)
        leftover.touch()
    for _ in range(2):
        more = ("--predictions", tmp_path / "predictions", "--json", tmp_path / "scores.json")
        assert mtkd(*words, *more).code == 0
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_error_for_something_that_is_not_a_model_lists_what_can_be_scored(tmp_path: Path) -> None:
    either = "an mtkd run, or a fine-tuned transformers checkpoint"
    encoder = Path(locate("minilm"))
    (tmp_path / "rows.csv").write_text("a\n")
    for model, problem in (
        (tmp_path / "none", "there is no directory"),
        (tmp_path, "does not contain an mtkd model"),
        (tmp_path / "rows.csv", r"^\S+rows.csv is a file"),
        (encoder, "has no head for a task that mtkd knows"),
    ):
        with pytest.raises(UserError, match=problem) as refused:
            mtkd.evaluate(model, "pocket", "rte")
        assert refused.value.expected is not None and refused.value.expected.startswith(either)
    with pytest.raises(UserError, match="has no head for a task that mtkd knows"):
        mtkd.distill("mkd-lstm", teacher=encoder, data="pocket", tasks="rte", out=tmp_path / "run")
    with pytest.raises(UserError, match="`encoder` has no effect without `baselines`"):
        mtkd.evaluate(encoder, "pocket", "rte", encoder="minilm")
    for pair in ((1, 2), ("a", "b"), (1, 2, 3)):
        for arguments in ({"model": pair}, {"model": tmp_path, "against": pair}):
            with pytest.raises(UserError, match=f"`{list(arguments)[-1]}` cannot be a tuple") as refused:
                mtkd.evaluate(**arguments, data="pocket", tasks="rte")  # type: ignore[arg-type]
            assert "a pair (transformers model, fast tokeniser)" in (refused.value.expected or "")


def test_an_empty_split_name_does_not_mean_validation() -> None:
    labelled, skipped = labelled_rows(open_data("pocket"), [TASKS["rte"]], "", 4)
    assert not labelled and skipped["rte"].startswith("no split '' in 'pocket'")
