"""Training jobs: validation before writing, objects in place of names, and no repeated work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_students import SMALL_LSTM

from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.finetune import _Finetune, finetune, rate_names
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data, trainable_tasks
from mtkd.losses.logits import Labels, LogitsMSE, SoftLabels
from mtkd.losses.loss_term import LossTerm, TermInput
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import LOGITS
from mtkd.recipes import load_settings
from mtkd.training.callbacks import Callback, TrainingControl, TrainingState
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.data.sources import PocketSource, open_data
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser

SMALL = SMALL_LSTM | {"train.epochs": 1}
TASKS = "sst2,rte"


def settings_of(**changes: object):
    return load_settings("mkd-lstm", "distill", {**SMALL, **changes})


def distill_by_name(out: Path, teacher: Path, **changes: object) -> RunDirectory:
    return distill(Request("pocket", TASKS, out, 40, 16), settings_of(**changes), str(teacher))


def test_tasks_that_share_a_head_are_not_trained_together() -> None:
    mnli, rte = resolve("mnli,rte")
    shared = replace(mnli, name="own", head="mnli")
    assert trainable_tasks([shared, rte]) == [shared, rte]
    with pytest.raises(UserError, match="'mnli' and 'own' share the head 'mnli'"):
        trainable_tasks([mnli, rte, shared])


def assert_same(one: MultiTaskModel, other: MultiTaskModel) -> None:
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_store_of_other_rows_is_rejected_before_anything_is_written(
    mtkd, tiny_teacher: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    built = mtkd(
        *("store", "build", "--recipe", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--limit", 16),
        *("--teacher", tiny_teacher, "--out", store, "--quiet"),
    )
    assert built.code == 0, built.err
    request = Request("pocket", "rte", tmp_path / "run", 40, 16)
    with pytest.raises(UserError, match="was built from other rte rows"):
        distill(request, settings_of(), None, store=store)
    assert not (tmp_path / "run").exists()


def test_recorded_scores_match_mtkd_evaluate_in_fp32(tiny_teacher: Path, tmp_path: Path) -> None:
    run = distill_by_name(tmp_path / "run", tiny_teacher, **{"train.precision": "bf16"})
    again = evaluate(tmp_path / "run", "pocket", TASKS, limit=16, device="cpu")
    assert {f"{s.task}/{s.split}": s.loss for s in again.scores} == {
        name: scores["loss"] for name, scores in run.record["scores"].items()
    }


def test_tasks_data_and_teacher_given_as_objects_give_the_same_student(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    named = distill_by_name(tmp_path / "named", tiny_teacher)
    teacher = MultiTaskModel.load(tiny_teacher)
    request = Request(PocketSource(), resolve(TASKS), tmp_path / "objects", 40, 16)
    given = distill(request, settings_of(), teacher)
    assert_same(named.model(), given.model())
    identity = given.record["identity"]
    assert (identity["data"], identity["tasks"]) == ("pocket", TASKS)
    assert distill(request, settings_of(), teacher).finished, "the same objects are the same run"
    with torch.no_grad():
        next(iter(teacher.parameters())).add_(1.0)
    with pytest.raises(UserError, match="the teacher has changed"):
        distill(request, settings_of(), teacher)


def test_losses_given_as_objects_match_the_recipe(tiny_teacher: Path, tmp_path: Path) -> None:
    named = distill_by_name(tmp_path / "named", tiny_teacher)
    request = Request("pocket", TASKS, tmp_path / "given", 40, 16)
    given = distill(request, settings_of(), str(tiny_teacher), losses={"logits": LogitsMSE()})
    assert_same(named.model(), given.model())
    for losses, difference in (
        ([SoftLabels(2.0), Labels()], r"losses \(logits, now SoftLabels and Labels\)"),
        ({"logits": SoftLabels(2.0)}, r"losses\.logits\.class \('LogitsMSE', now 'SoftLabels'\)"),
        ({"logits": LogitsMSE("mean")}, r"losses\.logits\._is_sum \(True, now False\)"),
        (None, r"losses \(logits, now those of the recipe\)"),
    ):
        with pytest.raises(UserError, match=rf"holds another run: it differs in {difference}\n"):
            distill(request, settings_of(), str(tiny_teacher), losses=losses)


def test_a_copy_of_a_student_given_as_an_object_is_trained(tiny_teacher: Path, tmp_path: Path) -> None:
    start = distill_by_name(tmp_path / "start", tiny_teacher, **{"train.seed": 1}).model()
    weights = {name: value.clone() for name, value in start.state_dict().items()}
    request = Request("pocket", TASKS, tmp_path / "run", 40, 16)
    done = distill(request, settings_of(), str(tiny_teacher), student=start)
    assert all(torch.equal(weights[name], value) for name, value in start.state_dict().items())
    assert any(not torch.equal(weights[name], value) for name, value in done.model().state_dict().items())
    assert done.record["identity"]["settings"]["student"]["max_length"] == start.info.max_length


def test_losses_given_as_settings_match_the_recipe(tiny_teacher: Path, tmp_path: Path) -> None:
    named = distill_by_name(tmp_path / "named", tiny_teacher)
    terms = settings_of().terms
    for name, losses in (("settings", terms), ("table", {"logits": {"loss": "logits_mse"}})):
        request = Request("pocket", TASKS, tmp_path / name, 40, 16)
        assert_same(named.model(), distill(request, settings_of(), str(tiny_teacher), losses=losses).model())
    with pytest.raises(UserError, match=r"holds another run: it differs in losses\.logits\.reduction"):
        changed = [{"loss": "logits_mse", "reduction": "mean"}]
        distill(request, settings_of(), str(tiny_teacher), losses=dict(logits=changed[0]))
    request = Request("pocket", TASKS, tmp_path / "new", 40, 16)
    for losses, message in (
        ([{"loss": "logit_mse"}], "unknown loss of terms.0 'logit_mse' .did you mean 'logits_mse'"),
        ({"a": {"loss": "logits_mse", "reduce": 1}}, "unknown setting 'terms.a.reduce'"),
        ([{"weight": 1.0}], r"`losses\['0'\]` does not name its loss"),
    ):
        with pytest.raises(UserError, match=message):
            distill(request, settings_of(), str(tiny_teacher), losses=losses)
    mixed = distill(request, settings_of(), str(tiny_teacher), losses=[{"loss": "logits_mse"}, Labels()])
    assert list(mixed.record["identity"]["losses"]) == ["logits_mse", "Labels"]


class Projected(LossTerm):
    """The squared difference of projected logits; counts its calls in an attribute and in a buffer."""

    student_need = teacher_need = LOGITS

    def __init__(self, projection: torch.nn.Module) -> None:
        super().__init__()
        self.projection, self.calls = projection, 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, inputs: TermInput) -> torch.Tensor:
        self.calls += 1
        self.total += 1
        student, teacher = inputs.student_outputs.logits, inputs.teacher_outputs.logits
        return (self.projection(student) - teacher).square().sum()


def test_copies_of_losses_given_as_objects_are_trained(tiny_teacher: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    shared = torch.nn.Linear(2, 2)
    losses: dict[str, Any] = {"one": Projected(shared), "two": Projected(shared), "labels": Labels()}
    weights, printed = shared.weight.clone(), list[str]()

    def run(name: str) -> MultiTaskModel:
        request = Request("pocket", TASKS, tmp_path / name, 40, 16)
        settings = settings_of(**{"train.checkpoint_steps": 2})
        return distill(request, settings, str(tiny_teacher), losses=losses, warn=printed.append).model()

    first = run("first")
    warned = [line for line in printed if "changes its attribute 'calls'" in line]
    assert len(warned) == 2 and "register_buffer('calls'" in warned[0], "one warning for each loss"
    assert torch.equal(weights, shared.weight) and losses["one"].calls == 0 and not losses["one"].total
    assert_same(first, run("second"))
    assert_same(first, run("first"))


def test_a_recipe_for_plain_text_warns_of_its_steps_when_used_on_tasks(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    small = {"layers": 1, "hidden_size": 8, "heads": 2, "intermediate_size": 8}
    sets = {f"student.transformer.{key}": value for key, value in small.items()}
    sets |= {"student.max_length": 24, "terms.relation.relation_heads": 2}

    def warnings(**train: int) -> list[str]:
        settings = load_settings(
            "minilmv2-12x384", "distill", sets | {f"train.{key}": value for key, value in train.items()}
        )
        warned: list[str] = []
        request = Request("pocket", "sst2", tmp_path / f"run-{train}", 16, 16)
        with pytest.raises(ZeroDivisionError):  # training stops before the first step
            distill(request, settings, str(tiny_teacher), callbacks=[StopAtStart()], warn=warned.append)
        return [text for text in warned if "epochs" in text]

    (text,) = warnings()
    assert "400,000 steps of 256 rows are about 6,400,000 epochs over the 16 training rows" in text
    assert "`steps=N` or `epochs=N`" in text
    assert warnings(steps=6) == warnings(epochs=6) == []


class StopAtStart(Callback):
    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        raise ZeroDivisionError


def test_truncated_texts_cause_a_warning(tiny_teacher: Path, tmp_path: Path) -> None:
    words = [3] * 18 + [9] * 2
    rows = [{"sentence": "cat " * n, "label": i % 2} for i, n in enumerate(words)]
    data = {"sst2": {"train": rows, "validation": rows}}

    def warnings(out: str, job: Callable[..., object], *given: object) -> list[str]:
        warned: list[str] = []
        request = Request(open_data(data), "sst2", tmp_path / out)
        with pytest.raises(ZeroDivisionError):  # training stops before the first step
            job(request, *given, callbacks=[StopAtStart()], warn=warned.append)
        return [text for text in warned if "truncated" in text]

    rows_of_sst2 = "10.0% of the training rows of sst2"
    warning = rows_of_sst2 + " have more than 8 tokens{}, and will be truncated; a larger {} keeps more"
    for length, expected in ((8, [warning.format("", "max_length")]), (11, [])):
        tuned = load_settings("finetune", "finetune", {"max_length": length})
        assert warnings(f"tuned-{length}", finetune, tuned, tiny_teacher) == expected
    student = settings_of(**{"student.max_length": 8})
    expected = [warning.format(" per text", "student.max_length")]
    assert warnings("student", distill, student, str(tiny_teacher)) == expected


def test_fine_tuning_does_not_change_the_given_model(tiny_teacher: Path, tmp_path: Path) -> None:
    changes = {"learning_rates": [1e-4, 1e-3], "train.epochs": 1}
    settings = load_settings("finetune", "finetune", changes)
    model = MultiTaskModel.load(tiny_teacher)
    given = finetune(Request("pocket", resolve("rte"), tmp_path / "given", 32, 16), settings, model)
    named = finetune(Request("pocket", "rte", tmp_path / "named", 32, 16), settings, tiny_teacher)
    assert_same(given.model(), named.model())
    assert_same(model, MultiTaskModel.load(tiny_teacher))
    assert json.loads((tmp_path / "given" / "run.json").read_text())["tried"] == named.record["tried"]
    left = sorted(path.name for path in (tmp_path / "given").iterdir())
    assert left == [
        ".mtkd.lock",
        "digests.json",
        "log.jsonl",
        "model",
        "predictions",
        "run.json",
        "tensorboard",
    ]


@pytest.mark.parametrize("metric", ["loss", "score"])
def test_fine_tuning_tries_every_learning_rate_with_every_number_of_epochs(
    metric: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    changes = {
        "learning_rates": [1e-4, 3e-3],
        "epoch_counts": [1, 2],
        "max_length": 12,
        "train.metric": metric,
    }
    settings = load_settings("finetune", "finetune", changes)
    run = finetune(Request("pocket", "rte", tmp_path / "run", 32, 16), settings, tiny_teacher)
    tried = run.record["tried"]
    assert set(tried) == {
        f"{rate}, {epochs}" for rate in ("0.0001", "0.003") for epochs in ("1 epoch", "2 epochs")
    }
    (scores,) = run.record["scores"].values()
    best = min(tried.values()) if metric == "loss" else max(tried.values())
    assert scores["loss" if metric == "loss" else "primary"] == best
    chosen = next(key for key in tried if tried[key] == best)
    assert f", {run.record['training']['epochs']} epoch" in chosen
    assert run.model().info.max_length == 12 and MultiTaskModel.load(tiny_teacher).info.max_length != 12
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".mtkd.lock",
        "digests.json",
        "log.jsonl",
        "model",
        "predictions",
        "run.json",
        "tensorboard",
    ]
    with pytest.raises(UserError, match="max_length 5000 is more than"):
        longer = settings.model_copy(update={"max_length": 5000})
        finetune(Request("pocket", "rte", tmp_path / "not"), longer, tiny_teacher)
    assert not (tmp_path / "not").exists()


def test_the_initial_model_of_fine_tuning_is_scored_once_and_kept_if_no_epoch_is_better(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[float] = []
    original = _Finetune._score_start

    def counted(self: _Finetune, model: MultiTaskModel) -> list[TaskScores]:
        known = self._start_scores
        scores = original(self, model)
        scored.extend([scores[0].primary] if known is None else [])
        return scores

    monkeypatch.setattr(_Finetune, "_score_start", counted)
    changes = {"learning_rates": [1e-9, 1e-8], "train.epochs": 2}  # which change no prediction
    settings = load_settings("finetune", "finetune", changes)
    run = finetune(Request("pocket", "rte", tmp_path / "run", 32, 16), settings, tiny_teacher)
    training = run.record["training"]
    start, *epochs = training["history"]
    assert start == {"epoch": 0, "score": scored[0], "scores": {"rte/validation": scored[0]}}
    assert [record["epoch"] for record in epochs] == [1, 2] and len(scored) == 1
    assert training["kept_epoch"] == 0 and training["best"] == scored[0]
    kept, teacher = run.model().state_dict(), MultiTaskModel.load(tiny_teacher).state_dict()
    assert all(torch.equal(value, teacher[name]) for name, value in kept.items())
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "epoch" in line] == [0, 1, 2]
    assert lines[0]["step"] == 0

    new = finetune(Request("pocket", "mrpc", tmp_path / "new", 32, 16), settings, tiny_teacher)
    assert [record["epoch"] for record in new.record["training"]["history"]] == [1, 2], "its head is random"


class RaiseOnce(Callback):
    """Raises at the first call of a method."""

    def __init__(self, event: str):
        def stop(state: TrainingState, control: TrainingControl) -> None:
            raise KeyboardInterrupt

        setattr(self, event, stop)


@pytest.mark.parametrize("event", ["on_evaluate", "on_step_end", "on_save"])
def test_killed_fine_tuning_records_the_score_of_the_initial_model_once(
    event: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    changes = {"learning_rates": [1e-2], "train.epochs": 1, "train.batch_size": 16}
    settings = load_settings("finetune", "finetune", changes | {"train.checkpoint_steps": 1})
    request = Request("pocket", "rte", tmp_path / "killed", 32, 16)
    with pytest.raises(KeyboardInterrupt):
        finetune(request, settings, tiny_teacher, callbacks=[RaiseOnce(event)])
    killed = finetune(request, settings, tiny_teacher)
    whole = finetune(replace(request, out=tmp_path / "whole"), settings, tiny_teacher)
    assert (killed.path / "log.jsonl").read_text() == (whole.path / "log.jsonl").read_text()
    training = [run.record["training"] | {"seconds": 0} for run in (killed, whole)]
    assert training[0] == training[1] and len(training[0]["history"]) == 2


def test_nearly_equal_learning_rates_have_separate_names_and_folders(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    assert list(rate_names([2e-5, 1e-4, 5e-4]).values()) == ["2e-05", "0.0001", "0.0005"]
    close = [1e-3, 1.0000001e-3]
    assert list(rate_names([*close, *close, 0.1]).values()) == ["0.001", "0.0010000001", "0.1"]
    settings = load_settings("finetune", "finetune", {"learning_rates": close, "train.epochs": 1})
    run = finetune(Request("pocket", "rte", tmp_path / "run", 32, 16), settings, tiny_teacher)
    assert set(run.record["tried"]) == {"0.001", "0.0010000001"}


def test_rows_are_tokenised_once(tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}
    original = Tokeniser.token_ids

    def counted(self: Tokeniser, texts):  # type: ignore[no-untyped-def]
        key = texts[0].as_py() + str(len(texts))
        counts[key] = counts.get(key, 0) + 1
        return original(self, texts)

    monkeypatch.setattr(Tokeniser, "token_ids", counted)
    distill_by_name(tmp_path / "run", tiny_teacher)
    settings = load_settings("finetune", "finetune", {"learning_rates": [1e-4, 1e-3], "train.epochs": 1})
    assert set(counts.values()) == {1}
    counts.clear()
    finetune(Request("pocket", "rte", tmp_path / "tuned", 32, 16), settings, tiny_teacher)
    assert set(counts.values()) == {1}


class CountingSource(PocketSource):
    """Counts how often each split is read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def batches(self, task, split, *, whole=False):  # type: ignore[no-untyped-def]
        self.read.append(f"{task.name}/{split}")
        return super().batches(task, split, whole=whole)


def test_rows_that_a_corpus_was_made_from_are_read_once(mtkd, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    words = ["augment", "mask", "--data", "pocket", "--tasks", "rte", "--limit", 24, "--copies", 2]
    assert mtkd(*words, "--out", corpus, "--quiet").code == 0
    source = CountingSource()
    data = load_training_data(Request(source, "rte", tmp_path, 16, 8), resolve("rte"), [corpus])
    assert sorted(source.read) == ["rte/train", "rte/validation"]
    assert len(data.parts[0].train) == 16 * 3


def test_students_no_better_than_a_constant_prediction_cause_a_warning(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    settings, request = settings_of(), Request("pocket", "sst2", tmp_path / "student", 16, 16)
    warned: list[str] = []
    distill(request, settings, str(tiny_teacher), warn=warned.append)
    assert (
        "sst2/validation: the score" in warned[-1]
        and "is not clearly better than always predicting" in warned[-1]
    )
    warned.clear()  # fine-tuning reads the scores of the best learning rate from a file
    tuning = load_settings("finetune", "finetune", {"learning_rates": [1e-5], "train.epochs": 1})
    finetune(replace(request, out=tmp_path / "tuned"), tuning, tmp_path / "student", warn=warned.append)
    assert "is not clearly better than always predicting" in warned[-1]
