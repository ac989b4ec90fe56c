"""Slow build: when layers are on, which outputs are requested, the learning rate, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.losses.logits import soft_label_kl
from mtkd.losses.loss_term import TermInput
from mtkd.losses.objective import Objective, build_objective
from mtkd.losses.slow_build import SlowBuild
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from mtkd.recipes import load_settings
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.train_settings import TrainSettings
from mtkd.training.optimizers import learning_rate
from mtkd.training.trainer import Trainer
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.batching import Batch, ModelInputs, Tokens

RTE = TASKS["rte"]
MASK = torch.ones(2, 3, dtype=torch.bool)
TERMS = {
    "emb": {"loss": "hidden_mse", "layer_map": [[0, 0]]},
    "hid": {"loss": "hidden_mse", "layer_map": "uniform"},
    "cls": {"loss": "cls_mse", "include_last": True},
    "soft": {"loss": "soft_labels"},
    "ss": {"loss": "sample_similarity"},
}
SMALL = {
    "student.max_length": 24,
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "train.batch_size": 4,
    "one_stage": True,
    "stages.layers.train.epochs": 1,
    "stages.prediction.train.epochs": 1,
    "slow_build": 0.5,
}


def spec_of(layers: int) -> EncoderSpec:
    states, every = frozenset(range(layers + 1)), frozenset(range(1, layers + 1))
    offers = OutputSpec(pooled=True, cls=states, hidden=states, scores=every)
    return EncoderSpec("bert", layers, 4, 4, 2, 4, offers)


def objective(share: float, **terms: dict) -> Objective:
    values = {"name": "", "summary": "", "source": "", "terms": terms or TERMS}
    settings = validate(DistillSettings, values)
    return build_objective(settings.terms, spec_of(2), spec_of(4), [RTE], share)


def outputs(layers: int) -> ModelOutput:
    states = {layer: torch.randn(2, 3, 4) for layer in range(layers + 1)}
    cls = {layer: hidden[:, 0] for layer, hidden in states.items()}
    return ModelOutput(cls=cls, hidden=states, logits=torch.randn(2, 2), mask=MASK)


def test_layers_are_switched_on_one_after_the_other() -> None:
    built = SlowBuild(0.9, tuple(range(9)))
    for step in range(1000):
        on = built.active_layers(step / 1000)
        assert on == frozenset(range(min(9, step // 100 + 1)))
        assert built.done(step / 1000) == (step >= 900)
    two = SlowBuild(0.5, (3, 4))
    assert two.active_layers(0.0) == {3} and two.active_layers(0.25) == {3, 4}
    assert SlowBuild().done(0.0)


def test_each_term_sums_the_layers_that_are_on() -> None:
    torch.manual_seed(0)
    slow, student, teacher = objective(0.6), outputs(2), outputs(4)
    batch = Batch("rte", np.arange(2), torch.zeros(2), None, ModelInputs(Tokens(MASK, MASK, MASK)), None)
    units = slow.num_items(RTE, batch)
    names = list(TERMS)

    def at(progress: float) -> dict[str, float]:
        loss, values = slow(RTE, batch, student, teacher, units, progress)
        assert loss.item() == pytest.approx(values.sum().item(), rel=1e-5)
        return dict(zip(names, values.tolist(), strict=True))

    whole = at(0.6)
    assert all(whole.values()) and whole == at(1.0)
    assert {name for name, value in at(0.0).items() if value} == {"emb"}
    assert {name for name, value in at(0.2).items() if value} == {"emb", "hid", "cls"}
    assert {name for name, value in at(0.59).items() if value} == {"emb", "hid", "cls"}
    given = TermInput(RTE, batch, student, teacher, num_items=0)
    hid = slow.terms["hid"]
    pairs = [hid.pair_loss(given, *pair).item() for pair in hid.layer_pairs]
    assert at(0.2)["hid"] == pytest.approx(pairs[0], rel=1e-5)
    assert at(0.4)["hid"] == pytest.approx(sum(pairs), rel=1e-5) == pytest.approx(whole["hid"])
    assert at(0.4)["cls"] == pytest.approx(whole["cls"], rel=1e-5)


@pytest.mark.parametrize(
    ("share", "temperatures"), [(0.6, {0.6: 4, 0.8: 3, 1.0: 2}), (0.0, {0.0: 4, 0.5: 3, 1.0: 2})]
)
def test_the_temperature_falls_after_all_layers_are_on(share: float, temperatures: dict[float, int]) -> None:
    torch.manual_seed(0)
    falling = {"loss": "soft_labels", "temperature": [[0.0, 4.0], [1.0, 2.0]]}
    slow, student, teacher = objective(share, emb=TERMS["emb"], soft=falling), outputs(2), outputs(4)
    assert student.logits is not None and teacher.logits is not None
    batch = Batch("rte", np.arange(2), torch.zeros(2), None, ModelInputs(Tokens(MASK, MASK, MASK)), None)
    for progress, temperature in temperatures.items():
        _, values = slow(RTE, batch, student, teacher, slow.num_items(RTE, batch), progress)
        expected = soft_label_kl(student.logits, teacher.logits, temperature)
        assert values[1].item() == pytest.approx(expected.item(), rel=1e-5)


def test_outputs_of_switched_off_layers_are_not_requested() -> None:
    slow = objective(0.6)
    zero, one = frozenset({0}), frozenset({0, 1})
    assert slow.needs(0.0) == (OutputSpec(hidden=zero), OutputSpec(hidden=zero))
    assert slow.needs(0.2) == (
        OutputSpec(hidden=one, cls=frozenset({1})),
        OutputSpec(hidden=frozenset({0, 2}), cls=frozenset({2})),
    )
    assert slow.needs(0.6) == (slow.student_need, slow.teacher_need)


def test_a_flow_starts_when_all_layers_are_on_and_logits_alone_reject_slow_build() -> None:
    flow = objective(0.6, emb=TERMS["emb"], all={"loss": "hidden_mse", "layer_map": "emd"})
    assert flow.slow_build.layers == (0,) and flow.needs(0.5)[0] == OutputSpec(hidden=frozenset({0}))
    assert objective(0.6, soft=TERMS["soft"]).slow_build == SlowBuild()
    with pytest.raises(UserError, match="slow_build"):
        load_settings("tinybert-4", "distill", {"slow_build": 1.0})


def test_the_learning_rate_is_constant_while_layers_are_switched_on() -> None:
    linear = TrainSettings(lr=1.0, warmup=0.1)
    rates = [learning_rate(linear, step, 20, 0.5) for step in range(20)]
    assert rates[:2] == pytest.approx([1 / 3, 2 / 3]) and rates[2:11] == [1.0] * 9
    assert rates[11:] == pytest.approx([n / 10 for n in range(9, 0, -1)])
    plain = [learning_rate(linear, step, 20) for step in range(20)]
    assert plain[2:] == pytest.approx([n / 18 for n in range(18, 0, -1)])
    constant = TrainSettings(lr=1.0, schedule="constant")
    assert {learning_rate(constant, step, 20, 0.5) for step in range(20)} == {1.0}


@pytest.mark.parametrize(("warmup", "peak"), [(0.25, 5), (5, 5), (1, 1), (50, 20)])
def test_warm_up_is_a_fraction_or_a_number_of_steps(warmup: float, peak: int) -> None:
    settings = TrainSettings(lr=1.0, schedule="constant", warmup=warmup)
    rates = [learning_rate(settings, step, 20) for step in range(21)]
    assert rates.index(1.0) == peak if peak < 20 else max(rates[:20]) < 1.0
    with pytest.raises(UserError, match="integer number"):
        TrainSettings(warmup=1.5)


def trained(out: Path, teacher: Path) -> dict[str, torch.Tensor]:
    settings = load_settings("tinybert-4", "distill", SMALL | {"train.checkpoint_steps": 5})
    distill(Request("pocket", "rte", out, 32, 16), settings, str(teacher))
    return MultiTaskModel.load(out).state_dict()


def test_any_recipe_can_use_slow_build_and_resumes(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[OutputSpec, bool]] = []
    real, step = OnlineTeacher.outputs, Trainer.step

    def noted(
        self: OnlineTeacher, task: object, batch: object, need: OutputSpec | None = None
    ) -> ModelOutput:
        found = real(self, task, batch, need)
        asked.append((need, found.logits is None))
        return found

    monkeypatch.setattr(OnlineTeacher, "outputs", noted)
    whole = trained(tmp_path / "whole", tiny_teacher)
    assert len(asked) == 16
    assert [without for _, without in asked] == [True] * 8 + [False] * 8
    assert [len(need.hidden) for need, _ in asked[:8]] == [1, 1, 1, 2, 2, 2, 3, 3]

    class SimulatedKill(Exception):
        pass

    def stopping(self: Trainer, draw: object) -> float:
        if self.position.step == 5:
            raise SimulatedKill
        return step(self, draw)

    monkeypatch.setattr(Trainer, "step", stopping)
    with pytest.raises(SimulatedKill):
        trained(tmp_path / "parts", tiny_teacher)
    monkeypatch.setattr(Trainer, "step", step)
    parts = trained(tmp_path / "parts", tiny_teacher)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    log = [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    terms = [{name.removeprefix("loss/") for name in record if "loss/" in name} for record in log]
    assert terms[0] == {"rte", "embedding"}, "the other terms are not computed yet"
    assert {"hidden", "attention", "prediction"} <= terms[-1] | terms[-2]
