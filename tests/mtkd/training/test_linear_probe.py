"""Linear probes compared with scikit-learn, and heads that are not changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import mtkd
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.recipes import load_settings
from mtkd.training.linear_probe import fit_linear_heads
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded


@pytest.fixture
def model(tiny_encoder: Path) -> MultiTaskModel:
    found = MultiTaskModel.without_heads(str(tiny_encoder), 32)
    found.info.head_hidden_size = 0
    found.set_tasks([TASKS["sst2"], TASKS["mnli"], TASKS["stsb"]])
    return found


def encoded(model: MultiTaskModel, task: str, rows: int = 60) -> Encoded:
    found = load_rows(open_data("pocket"), TASKS[task], "train").take(np.arange(rows))
    return Encoded.encode(model.reader.rows(found), model.tokeniser)


def features(model: MultiTaskModel, rows: Encoded) -> np.ndarray:
    batch = Collator(model.reader)(rows, np.arange(len(rows.labels)))
    with torch.no_grad():
        return model.eval().encoder(batch.inputs, OutputSpec(pooled=True)).pooled.numpy()


def scaled(vectors: np.ndarray) -> np.ndarray:
    """Return centred vectors with a mean squared length of 1, as the penalty assumes."""
    centred = vectors - vectors.mean(0)
    return centred / np.sqrt((centred**2).sum(1).mean())


@pytest.mark.parametrize("task", ["sst2", "mnli"])
def test_classification_probes_match_scikit_learn(
    task: str, model: MultiTaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.training.linear_probe._STRENGTHS", (0.1,))
    rows = encoded(model, task)
    before = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
    assert fit_linear_heads(model, TASKS, {task: rows}, batch_size=16, seed=0) == [task]
    vectors, labels = features(model, rows), rows.labels.astype(int)
    inverse = (
        5.0 if task == "mnli" else 10.0
    )  # for two classes, it has a single weight vector, the difference
    logistic = LogisticRegression(C=inverse, tol=1e-8, max_iter=5000)
    expected = logistic.fit(scaled(vectors), labels).predict_proba(scaled(vectors))
    with torch.no_grad():
        logits = model.heads[task].eval()(torch.from_numpy(vectors))
    np.testing.assert_allclose(logits.softmax(1).numpy(), expected, atol=2e-3)
    assert all(torch.equal(before[name], weight) for name, weight in model.encoder.state_dict().items())


def test_regression_probes_match_ridge_regression(
    model: MultiTaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.training.linear_probe._STRENGTHS", (1.0,))
    rows = encoded(model, "stsb")
    fit_linear_heads(model, TASKS, {"stsb": rows}, batch_size=16, seed=0)
    vectors = features(model, rows)
    expected = Ridge(alpha=1.0).fit(scaled(vectors), rows.labels).predict(scaled(vectors))
    with torch.no_grad():
        found = model.heads["stsb"].eval()(torch.from_numpy(vectors))[:, 0].numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_probes_of_a_teachers_logits_match_ridge_regression(
    model: MultiTaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are not read, and rows without labels count."""
    monkeypatch.setattr("mtkd.training.linear_probe._STRENGTHS", (1.0,))
    rows = encoded(model, "mnli")
    rows = replace(rows, labels=np.full(len(rows), -1.0))
    logits = np.random.default_rng(0).normal(size=(len(rows), 3)).astype(np.float32)
    assert fit_linear_heads(model, TASKS, {"mnli": rows}, 16, seed=0, logits={"mnli": logits}) == ["mnli"]
    vectors = scaled(features(model, rows))
    expected = Ridge(alpha=3.0).fit(vectors, logits).predict(vectors)  # the loss is the mean of three squares
    with torch.no_grad():
        found = model.heads["mnli"].eval()(torch.from_numpy(features(model, rows))).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_random_labels_give_a_head_with_small_weights(model: MultiTaskModel) -> None:
    rows = encoded(model, "sst2", 48)
    random = replace(rows, labels=np.random.default_rng(0).integers(0, 2, 48).astype(np.float64))
    vectors = features(model, rows)
    fit_linear_heads(model, TASKS, {"sst2": random}, batch_size=16, seed=0)
    with torch.no_grad():
        logits = model.heads["sst2"].eval()(torch.from_numpy(vectors))
    margins = (logits[:, 0] - logits[:, 1]).abs()
    assert margins.max() < 0.8, "more than 48 features could fit them without error"


def test_heads_with_a_hidden_layer_are_not_changed(tiny_encoder: Path) -> None:
    model = MultiTaskModel.without_heads(str(tiny_encoder), 32)
    model.set_tasks([TASKS["sst2"]])
    before = model.heads["sst2"].output.weight.clone()
    assert fit_linear_heads(model, TASKS, {"sst2": encoded(model, "sst2", 8)}, 8, seed=0) == []
    assert torch.equal(before, model.heads["sst2"].output.weight)


def test_refining_starts_from_the_probe_and_a_resumed_run_does_not_fit_again(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def counted(*args: Any, **more: Any) -> list[str]:
        calls.append(args)
        return fit_linear_heads(*args, **more)

    monkeypatch.setattr("mtkd.jobs.refine.fit_linear_heads", counted)

    def run(out: str, settings: dict[str, Any], *callbacks: mtkd.Callback) -> mtkd.Model:
        return mtkd.refine(
            tiny_encoder, data="pocket", tasks="sst2", out=tmp_path / out, limit=32, eval_limit=16, epochs=2,
            settings={"max_length": 24, **settings}, callbacks=callbacks,
        )  # fmt: skip

    class Stop(mtkd.Callback):
        """Interrupts after the first epoch's checkpoint."""

        def on_save(self, state: Any, control: Any) -> None:
            raise KeyboardInterrupt

    whole = run("whole", {})
    with pytest.raises(KeyboardInterrupt):
        run("resumed", {}, Stop())
    resumed = run("resumed", {})
    assert len(calls) == 2
    states = [model.module.state_dict() for model in (whole, resumed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    histories = [model.record["training"]["history"] for model in (whole, resumed)]
    assert histories[0] == histories[1] and [values["epoch"] for values in histories[0]] == [0, 1, 2]
    random = run("random", {"init_heads": "random"})
    assert len(calls) == 2
    assert [values["epoch"] for values in random.record["training"]["history"]] == [1, 2]
    unchanged = run("unchanged", {"train.lr": 1e-9})
    assert unchanged.record["training"]["kept_epoch"] == 0


@pytest.mark.parametrize(("rows", "epochs"), [(64, 20), (3200, 10), (100_000, 3), (1, 20)])
def test_the_number_of_epochs_depends_on_the_number_of_rows(rows: int, epochs: int) -> None:
    train = mtkd.TrainSettings(epochs="auto", batch_size=32).with_epochs(rows)
    assert train.epochs == train.n_epochs == epochs
    assert mtkd.TrainSettings(epochs=2).with_epochs(rows).epochs == 2


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 2e-5),
        ({"init_heads": "random"}, 5e-5),
        ({"head_hidden_size": 8}, 5e-5),
        ({"train.lr": 1e-3}, 1e-3),
    ],
)
def test_the_learning_rate_depends_on_rows_and_heads(
    settings: dict[str, Any], rate: float, tiny_encoder: Path, tmp_path: Path
) -> None:
    steps = {"train.steps": 1, "max_length": 16, **settings}
    rows: dict[str, Any] = {"data": "pocket", "tasks": "sst2", "limit": 16, "eval_limit": 8}
    mtkd.refine(str(tiny_encoder), out=tmp_path / "run", settings=steps, **rows)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [values["lr"] for values in log if "lr" in values] == [pytest.approx(rate)]


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 5e-5),
        ({"student.init_heads": "random"}, 2e-4),
        ({"student.head_hidden_size": 8}, 2e-4),
        ({"train.lr": 1e-3}, 1e-3),
    ],
)
def test_the_learning_rate_of_a_control_depends_on_rows_and_heads(
    settings: dict[str, Any], rate: float, tiny_encoder: Path, tmp_path: Path
) -> None:
    control = {
        "supervision": "labels",
        "student.transformer.init": "encoder",
        "student.transformer.layers": 1,
    }
    rows: dict[str, Any] = {"data": "pocket", "tasks": "sst2", "limit": 16, "eval_limit": 8}
    mtkd.distill(
        "layerwise-3", teacher=str(tiny_encoder), out=tmp_path / "run",
        settings=control | {"train.steps": 1, "student.max_length": 16} | settings, **rows,
    )  # fmt: skip
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [values["lr"] for values in log if "lr" in values] == [pytest.approx(rate)]


def test_the_learning_rate_of_a_student_that_has_a_teacher() -> None:
    for changes in ({"train.lr": "auto"}, {"stages.layers.train.lr": "auto"}):
        stage = load_settings("tinybert-4", "distill", changes).resolved_stages()[0]
        assert stage.train.lr == 2e-4


def test_a_token_budget_replaces_the_batch_size() -> None:
    given: dict[str, Any] = {"train.batch_tokens": 4096}
    for more, message in (
        ({"train.epochs": "auto"}, "an integer > 0 together with `epochs` or `steps`"),
        ({"train.batch_size": 8}, r"`train\.batch_tokens=4096` cannot be used with `train\.batch_size`"),
    ):
        with pytest.raises(mtkd.UserError, match=message):
            load_settings("mkd-lstm", "distill", given | more)
    changes = {"train.epochs": "auto", "train.steps": 9}
    assert load_settings("mkd-lstm", "distill", given | changes).train.with_epochs(100).steps == 9


def test_merged_stages_last_as_long_as_all_of_them() -> None:
    def merged(**changes: Any) -> mtkd.TrainSettings:
        settings = load_settings("tinybert-4", "distill", {"one_stage": True, **changes})
        (stage,) = settings.resolved_stages()
        return stage.with_epochs(1600).train

    first, second = "stages.layers.train", "stages.prediction.train"
    train = merged(**{f"{first}.epochs": 4, f"{second}.epochs": 3, f"{second}.lr": 1e-3})
    assert (train.epochs, train.steps, train.lr) == (7, None, 1e-3)
    assert merged(**{"train.steps": 500}).steps == 1000, "500 for each stage"
    assert merged(**{f"{first}.steps": 30, f"{second}.steps": 12}).steps == 42
    auto = mtkd.TrainSettings(epochs="auto").with_epochs(1600).n_epochs
    assert auto == 20 and merged(**{"train.epochs": "auto"}).epochs == 2 * auto
    assert merged(**{"train.epochs": "auto", f"{first}.epochs": 4}).epochs == 4 + auto
    with pytest.raises(mtkd.UserError, match=r"(?s)a number of steps and others a number of epochs.*hint"):
        merged(**{f"{first}.steps": 500})


def test_a_student_on_labels_starts_from_the_probe_of_its_own_features(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.training.linear_probe._STRENGTHS", (0.1,))
    sets = {
        "student.max_length": 24, "student.transformer.layers": 1, "student.transformer.init": "encoder",
        "student.init_heads": "linear-probe", "supervision": "labels", "train.lr": 1e-12,
    }  # fmt: skip
    given: dict[str, Any] = {
        "teacher": tiny_teacher,
        "data": "pocket",
        "tasks": "sst2",
        "limit": 60,
        "steps": 1,
    }
    student = mtkd.distill("layerwise-3", out=tmp_path / "run", settings=sets, eval_limit=16, **given).module
    sample = load_rows(open_data("pocket"), TASKS["sst2"], "train", 60)
    rows = Encoded.encode(student.reader.rows(sample), student.tokeniser)
    vectors = features(student, rows)
    logistic = LogisticRegression(C=10.0, tol=1e-8, max_iter=5000)
    expected = logistic.fit(scaled(vectors), rows.labels.astype(int)).predict_proba(scaled(vectors))
    with torch.no_grad():
        logits = student.heads["sst2"].eval()(torch.from_numpy(vectors))
    np.testing.assert_allclose(logits.softmax(1).numpy(), expected, atol=2e-3)
    with pytest.raises(UserError, match=r"linear-probe fits linear heads, but student\.head_hidden_size=8"):
        mtkd.distill(
            "layerwise-3", out=tmp_path / "no", settings={**sets, "student.head_hidden_size": 8}, **given
        )
