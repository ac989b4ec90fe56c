"""Decoupled knowledge distillation compared with a loop over rows, hand-computed numbers, and plain KL."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from mtkd.losses.decoupled import DecoupledLogits, decoupled_kl
from mtkd.losses.logits import logits_mse, soft_label_kl
from mtkd.losses.loss_term import TermInput
from mtkd.losses.objective import build_objective
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.outputs import ModelOutput
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.task import Task
from tasks.tokens.batching import Batch

LSTM = BiLSTMConfig(vocab_size=10).spec


def drawn(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, *shape, dtype=torch.float64) * 3
    return student, teacher


def row_loop(z_s: list[float], z_t: list[float], target: int, alpha: float, beta: float, t: float) -> float:
    """The loss of one row, as in the paper."""

    def softmax(z: list[float]) -> list[float]:
        e = [math.exp(value / t) for value in z]
        return [value / sum(e) for value in e]

    def kl(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    p_s, p_t = softmax(z_s)[target], softmax(z_t)[target]
    rest_s, rest_t = (softmax([v for c, v in enumerate(z) if c != target]) for z in (z_s, z_t))
    return t * t * (alpha * kl([p_t, 1 - p_t], [p_s, 1 - p_s]) + beta * kl(rest_t, rest_s))


@pytest.mark.parametrize(
    ("alpha", "beta", "temperature"), [(1.0, 8.0, 4.0), (0.5, 2.0, 1.0), (0.0, 1.0, 2.0)]
)
def test_matches_a_loop_over_rows(alpha: float, beta: float, temperature: float) -> None:
    (z_s, z_t), target = drawn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    expected = [
        row_loop(*row, alpha, beta, temperature)
        for row in zip(z_s.tolist(), z_t.tolist(), target.tolist(), strict=True)
    ]
    found = decoupled_kl(z_s, z_t, target, alpha, beta, temperature).item()
    assert found == pytest.approx(sum(expected) / 5, rel=1e-12)


def test_matches_hand_computed_values() -> None:
    # The teacher's probabilities are 1/2, 1/4, 1/4 and the student's 1/4, 1/2, 1/4; the target is the first.
    z_t, z_s = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 2.0, 1.0]]).log()
    target = torch.tensor([0])
    tckd = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    nckd = 0.5 * math.log(3 / 4) + 0.5 * math.log(3 / 2)
    assert decoupled_kl(z_s, z_t, target, 1.0, 0.0, 1.0).item() == pytest.approx(tckd, rel=1e-5)
    assert decoupled_kl(z_s, z_t, target, 0.0, 1.0, 1.0).item() == pytest.approx(nckd, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_equals_plain_kl_with_the_right_weights(temperature: float) -> None:
    (z_s, z_t), target = drawn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    beta = 1 - (z_t / temperature).softmax(-1).gather(1, target[:, None])[:, 0]
    found = decoupled_kl(z_s, z_t, target, 1.0, beta, temperature)
    log_s, log_t = ((z / temperature).log_softmax(-1) for z in (z_s, z_t))
    expected = functional.kl_div(log_s, log_t, reduction="batchmean", log_target=True) * temperature**2
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_two_classes_have_no_non_target_part() -> None:
    (z_s, z_t), target = drawn(4, 2), torch.tensor([0, 1, 1, 0])
    assert decoupled_kl(z_s, z_t, target, 0.0, 8.0).item() == 0.0
    assert decoupled_kl(z_s, z_t, target, 1.0, 8.0, 2.0).item() == pytest.approx(
        soft_label_kl(z_s, z_t, 2.0).item(), rel=1e-12
    )


def test_the_gradient_matches_finite_differences() -> None:
    (z_s, z_t), target = drawn(3, 4), torch.tensor([0, 3, 1])
    assert gradcheck(lambda z: decoupled_kl(z, z_t, target), z_s.requires_grad_())
    huge = torch.tensor([[1e4, 0.0, 0.0]], requires_grad=True)
    decoupled_kl(huge, -huge.detach(), torch.tensor([0])).backward()
    assert huge.grad is not None and huge.grad.isfinite().all()


def value_of(task: str, z_s: Tensor, z_t: Tensor, labels: Tensor) -> float:
    batch = Batch(task, np.arange(len(z_s)), labels, None, None, None)  # type: ignore[arg-type]
    given = TermInput(TASKS[task], batch, ModelOutput(logits=z_s), ModelOutput(logits=z_t), len(z_s))
    return DecoupledLogits()(given).item()


def test_the_prediction_of_the_teacher_is_the_target_of_an_unlabelled_row() -> None:
    z_s, z_t = drawn(3, 3)
    known = z_t.argmax(-1)
    labels = known.double()
    labels[1] = torch.nan
    assert value_of("mnli", z_s, z_t, labels) == 3 * decoupled_kl(z_s, z_t, known).item()
    labels[0] = (known[0] + 1) % 3
    assert value_of("mnli", z_s, z_t, labels) != 3 * decoupled_kl(z_s, z_t, known).item()


def test_regression_scores_are_compared_by_mse() -> None:
    z_s, z_t = drawn(3, 1)
    assert value_of("stsb", z_s, z_t, torch.tensor([1.0, torch.nan, 5.0])) == 3 * logits_mse(z_s, z_t).item()


def test_span_starts_and_ends_are_averaged_and_padding_is_ignored() -> None:
    z_s, z_t = drawn(2, 2, 5)
    low = torch.finfo(z_s.dtype).min
    padded = torch.tensor([[False] * 5, [False, False, False, True, True]])[:, None]
    z_s, z_t = z_s.masked_fill(padded, low), z_t.masked_fill(padded, low)
    labels = torch.tensor([[1.0, 4.0], [0.0, 2.0]])
    expected = [
        row_loop(z_s[b, e, :real].tolist(), z_t[b, e, :real].tolist(), int(labels[b, e]), 1.0, 8.0, 4.0)
        for b, real in ((0, 5), (1, 3))
        for e in range(2)
    ]
    assert value_of("squad", z_s, z_t, labels) == pytest.approx(2 * sum(expected) / 4, rel=1e-12)


def built(*tasks: Task, **term: object) -> DecoupledLogits:
    terms = {"t": {"loss": "decoupled_logits", **term}}
    settings = validate(DistillSettings, {"name": "", "summary": "", "source": "", "terms": terms})
    found = build_objective(settings.terms, LSTM, LSTM, tasks or [TASKS["rte"]]).terms["t"]
    assert isinstance(found, DecoupledLogits)
    return found


def test_tasks_with_several_labels_per_row_are_rejected() -> None:
    topics = Task("topics", "multilabel", ("text",), ("fruit", "animal", "tool"))
    with pytest.raises(UserError, match="one target class per row, but 'topics' has sets of labels"):
        built(TASKS["rte"], topics)
    assert built(TASKS["rte"], topics, task_types=["classify"]).task_types == ["classify"]


@pytest.mark.parametrize("task", ["mnli", "stsb", "squad"])
def test_classes_scores_and_spans_are_allowed(task: str) -> None:
    assert isinstance(built(TASKS[task]), DecoupledLogits)


def test_rankings_are_allowed() -> None:
    ranked = Task("ranked", "rank", ("question", "answer"), ("no", "yes"), group="question", positive=1)
    assert isinstance(built(ranked), DecoupledLogits)


def test_a_recipe_can_use_the_loss() -> None:
    assert built(beta=2.0, temperature=[[0.0, 4.0], [1.0, 1.0]])._beta == 2.0
    assert DecoupledLogits.needs_task()
    with pytest.raises(UserError, match=r"terms.t.alpha = -1"):
        built(alpha=-1)
