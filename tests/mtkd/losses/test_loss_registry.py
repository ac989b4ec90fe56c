"""The registry of losses: what each declares, plugins, and losses given as objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtkd.losses import loss_registry
from mtkd.losses.logits import LogitsMSE, SoftLabels
from mtkd.losses.loss_registry import BUILT_IN, loss_class, losses_for
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput
from mtkd.losses.objective import Objective, build_objective
from mtkd.losses.term_settings import TermSettings
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.models.encoders.waldorf import WaldorfConfig
from mtkd.outputs import BY_LAYER, LOGITS, EncoderSpec, ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from tasks.common.errors import MtkdWarning, UserError
from tasks.glue import TASKS
from tasks.tokens.batching import Batch

RTE = TASKS["rte"]
LSTM = BiLSTMConfig(vocab_size=10).spec
WALDORF = WaldorfConfig(vocab_size=10, layers=2, hidden_size=6, heads=2, head_size=3, output_size=5).spec
EVERY = frozenset(range(4))
BERT = EncoderSpec("bert", 3, 8, 8, 2, 8, OutputSpec(True, True, True, **dict.fromkeys(BY_LAYER, EVERY)))
RED = """
from torch import Tensor
from mtkd.losses.loss_term import LossTerm
from mtkd.losses.term_settings import TermSettings
from mtkd.outputs import LOGITS

class Absolute(LossTerm):
    class Settings(TermSettings):
        scale: float = 1.0

    student_need = teacher_need = LOGITS

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, given):
        return self.scale * (given.student_outputs.logits - given.teacher_outputs.logits).abs().mean(1).sum()
"""


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[None]:
    """Forget the plugins that a test has installed."""
    loss_registry._plugins.cache_clear()
    loss_registry._plugin.cache_clear()
    yield
    loss_registry._plugins.cache_clear()
    loss_registry._plugin.cache_clear()


def settings_of(**terms: dict) -> dict[str, TermSettings]:
    values = {"name": "", "summary": "", "source": "", "terms": terms}
    found: dict[str, TermSettings] = validate(DistillSettings, values).terms
    return found


def term(name: str, student: EncoderSpec = BERT, **settings: Any) -> LossTerm:
    """Return a loss, with a projection if it can have one."""
    if "projection" in loss_class(name).Settings.model_fields:
        settings["projection"] = "shared"
    if "include_last" in loss_class(name).Settings.model_fields:
        settings["include_last"] = True
    given = loss_class(name).Settings(loss=name, **settings)
    return loss_class(name).from_settings("t", given, ModelPair(student, BERT, (RTE,)))


@pytest.mark.parametrize("name", BUILT_IN)
def test_losses_declare_their_logits_and_settings(name: str) -> None:
    loss, built = loss_class(name), term(name)
    assert type(built) is loss and f"`{name}`" in (loss.__doc__ or "")
    assert (loss.__doc__ or "").count("Averaged over: ") == 1, "what the items are"
    assert (built.student_need.logits, built.teacher_need.logits) == (
        loss.student_need.logits,
        loss.teacher_need.logits,
    )
    with pytest.raises(UserError, match="there is no key 'colour'"):
        loss.Settings(loss=name, colour="red")


@pytest.mark.parametrize(
    ("fact", "student"), [("works_without_layers", LSTM), ("works_with_strides", WALDORF)]
)
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_declared_students_of_a_loss_are_those_it_can_be_built_for(
    name: str, fact: str, student: EncoderSpec
) -> None:
    declared = getattr(loss_class(name), fact)
    listed = losses_for(fact)  # type: ignore[arg-type]
    assert (name in listed.replace(" (with", ",").split(", ")) == bool(declared)
    if declared:
        term(name, student, **(declared if isinstance(declared, dict) else {}))
    if declared is not True:
        with pytest.raises(UserError, match=r"neither layers nor attention heads|stands for 4 tokens"):
            term(name, student)


def test_whether_a_loss_needs_a_task_is_known_before_it_is_built() -> None:
    needy = ("labels", "logits_mse", "soft_labels", "sample_contrastive")
    assert all(loss_class(name).needs_task() for name in needy)
    general = ("relation", "hidden_mse", "attention_kl", "sample_similarity", "pooled_attention_score_mse")
    assert not any(loss_class(name).needs_task() for name in general)


def test_a_recipe_can_train_with_a_plugin_loss(
    install_plugin: Callable, mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    install_plugin("colours", "mtkd.losses", RED, "absolute = {module}:Absolute")
    sets = [
        "terms.mean.loss=absolute",
        "terms.mean.scale=0.5",
        "terms.logits.weight=0",
        "student.kind=bilstm",
    ]
    small = [
        "student.bilstm.hidden_size=8",
        "student.bilstm.output_size=8",
        "student.bilstm.embedding_size=8",
    ]
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher]
    words += ["--limit", 32, "--eval-limit", 16, "--epochs", 1, "--batch", 16, "--quiet"]
    words += [word for setting in sets + small for word in ("--set", setting)]
    answered = mtkd(*words, "--out", tmp_path / "run")
    assert answered.code == 0, answered.err
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in logged if "loss/mean" in line]
    assert steps and all(line["loss/mean"] == pytest.approx(line["loss"]) for line in steps)
    refused = mtkd(*words, "--set", "terms.mean.scal=1", "--out", tmp_path / "no")
    assert refused.code == 2 and "did you mean 'terms.mean.scale'" in refused.err


def test_a_plugin_is_imported_only_when_it_is_named(install_plugin: Callable) -> None:
    install_plugin("broken", "mtkd.losses", "1 / 0", "absolute = {module}:Absolute")
    install_plugin("colours", "mtkd.losses", RED, "red = {module}:Absolute")
    assert settings_of(t={"loss": "logits_mse"})["t"].loss == "logits_mse"
    assert settings_of(t={"loss": "red"})["t"].loss == "red"
    with pytest.raises(UserError, match=r"absolute = .* of the package broken .* ZeroDivisionError"):
        settings_of(t={"loss": "absolute"})


def test_a_plugin_cannot_replace_a_built_in_loss(install_plugin: Callable) -> None:
    install_plugin("greedy", "mtkd.losses", RED, "logits_mse = {module}:Absolute")
    with (
        pytest.warns(MtkdWarning, match=r"package greedy .*'logits_mse' is already taken"),
        pytest.raises(UserError, match="unknown loss"),
    ):
        settings_of(t={"loss": "absolut"})


def test_a_plugin_without_forward_is_rejected(install_plugin: Callable) -> None:
    code = "from mtkd.losses.loss_term import LossTerm\nclass Unfinished(LossTerm): pass\n"
    install_plugin("unfinished", "mtkd.losses", code, "unfinished = {module}:Unfinished")
    with pytest.raises(UserError, match="lacks the LossTerm method forward"):
        settings_of(t={"loss": "unfinished"})


def test_the_error_for_an_unknown_loss_lists_plugin_losses(install_plugin: Callable) -> None:
    install_plugin("colours", "mtkd.losses", RED, "absolute = {module}:Absolute")
    with pytest.raises(UserError, match=r"unknown loss of terms.t 'absolut' \(did you mean 'absolute'\?\)"):
        settings_of(t={"loss": "absolut"})
    assert ", absolute" in losses_for("works_without_layers")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("given.student_outputs.pooled * given.student_outputs.logits", "TypeError: unsupported operand"),
        ("given.student_outputs.logits - given.teacher_outputs.logits[:, :0]", "RuntimeError: The size"),
        ("given.student_outputs.logit", "AttributeError: 'ModelOutput' object has no attribute 'logit'"),
    ],
)
def test_errors_inside_a_plugin_name_the_loss(install_plugin: Callable, body: str, reason: str) -> None:
    code = RED.replace(
        "self.scale * (given.student_outputs.logits - given.teacher_outputs.logits)", f"({body})"
    )
    install_plugin("faulty", "mtkd.losses", code, "faulty = {module}:Absolute")
    found = build_objective(settings_of(t={"loss": "faulty"}), BERT, BERT, [RTE])
    with pytest.raises(
        UserError, match=rf"the loss 't' \(\w+:Absolute, line 18\) failed: {reason}"
    ) as caught:
        value_of(found)
    expected = "widths of both models" if reason.startswith("RuntimeError") else "student_need"
    assert expected in str(caught.value.hint) and caught.value.__cause__ is not None


def test_a_plugin_whose_init_lacks_a_setting_is_named(install_plugin: Callable) -> None:
    install_plugin("faulty", "mtkd.losses", RED.replace("self, scale", "self"), "faulty = {module}:Absolute")
    with pytest.raises(
        UserError, match=r"the loss 't' \(.*:Absolute\) failed: TypeError: .*'scale'"
    ) as caught:
        build_objective(settings_of(t={"loss": "faulty"}), BERT, BERT, [RTE])
    assert "by name: scale" in str(caught.value.hint)


def test_errors_inside_losses_of_mtkd_are_not_changed() -> None:
    found = build_objective([LogitsMSE()], BERT, BERT, [RTE])
    batch = Batch("rte", np.arange(3), torch.zeros(3), None, None, None)  # type: ignore[arg-type]
    student, teacher = ModelOutput(pooled=torch.zeros(3, 2)), ModelOutput(logits=torch.zeros(3, 2))
    with pytest.raises((AttributeError, TypeError, AssertionError)):
        found(RTE, batch, student, teacher, [3])


class AbsoluteDifference(LossTerm):
    """A custom loss, as in a notebook: the mean absolute difference of logits."""

    student_need = teacher_need = LOGITS

    def forward(self, given: TermInput) -> Tensor:
        assert given.student_outputs.logits is not None and given.teacher_outputs.logits is not None
        return (given.student_outputs.logits - given.teacher_outputs.logits).abs().mean(1).sum()


class LossOnMissingLayer(LossTerm):
    """A loss on a layer that no model has."""

    teacher_need = OutputSpec(hidden=frozenset({9}))

    def forward(self, given: TermInput) -> torch.Tensor:
        return given.teacher_outputs.hidden[9].sum()


def value_of(objective: Objective) -> tuple[float, list[float]]:
    student, teacher = (ModelOutput(logits=torch.tensor(z)) for z in ([[1.0, 2.0]] * 3, [[2.0, 4.0]] * 3))
    batch = Batch("rte", np.arange(3), torch.zeros(3), None, None, None)  # type: ignore[arg-type]
    loss, values = objective(RTE, batch, student, teacher, objective.num_items(RTE, batch))
    return loss.item(), values.tolist()


def test_losses_can_be_given_as_objects() -> None:
    assert value_of(build_objective([AbsoluteDifference()], BERT, BERT, [RTE])) == (1.5, [1.5])
    half = AbsoluteDifference()
    half.weight = 0.5
    mixed = build_objective({"mine": half, **settings_of(mse={"loss": "logits_mse"})}, BERT, BERT, [RTE])
    assert value_of(mixed) == (0.5 * 1.5 + 5.0, [1.5, 5.0])
    only = AbsoluteDifference()
    only.task_types = ["regress"]
    assert value_of(build_objective([only, LogitsMSE()], BERT, BERT, [RTE])) == (5.0, [0.0, 5.0])


@pytest.mark.parametrize("reduction, expected", [("sum", 5.0), ("mean", 2.5)])
def test_squared_logits_are_summed_or_averaged_over_the_outputs(reduction: str, expected: float) -> None:
    terms = settings_of(mse={"loss": "logits_mse", "reduction": reduction})
    assert value_of(build_objective(terms, BERT, BERT, [RTE])) == (expected, [expected])
    assert value_of(build_objective([LogitsMSE()], BERT, BERT, [RTE]))[0] == 5.0


def test_loss_objects_are_named_after_their_class() -> None:
    found = build_objective([AbsoluteDifference(), SoftLabels(), AbsoluteDifference()], BERT, BERT, [RTE])
    assert list(found.terms) == ["AbsoluteDifference", "SoftLabels", "AbsoluteDifference-2"]


def test_incompatible_loss_objects_are_rejected() -> None:
    with pytest.raises(
        UserError, match=r"'LossOnMissingLayer' needs hidden states of layer 9 from the teacher \(bert\)"
    ):
        build_objective([LossOnMissingLayer()], BERT, BERT, [RTE])
    with pytest.raises(UserError, match="no loss"):
        build_objective([], BERT, BERT, [RTE])
