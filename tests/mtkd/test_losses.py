"""Losses against loops written from their equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from mtkd.losses.hidden import HiddenMSE, masked_mse
from mtkd.losses.logits import LogitsMSE, SoftLabels, logits_mse, soft_label_kl
from mtkd.losses.objective import Objective
from mtkd.records import Need
from tasks.errors import UserError


def test_logits_mse_is_the_mean_of_squares() -> None:
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    naive = sum((student[b, c] - teacher[b, c]).item() ** 2 for b in range(5) for c in range(3)) / 15
    assert logits_mse(student, teacher).item() == pytest.approx(naive, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_label_kl_is_t_squared_times_kl(temperature: float) -> None:
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)
    naive = 0.0
    for row in range(4):
        p, q = ((z[row] / temperature).exp() for z in (teacher, student))
        p, q = p / p.sum(), q / q.sum()
        naive += sum(p[c].item() * math.log(p[c].item() / q[c].item()) for c in range(3))
    expected = naive / 4 * temperature**2
    assert soft_label_kl(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-4)


def test_masked_mse_ignores_padding_and_survives_only_padding() -> None:
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    student[~mask] = torch.nan
    tokens = [(0, 0), (0, 1), (1, 0)]
    naive = sum(((student[b, t] - teacher[b, t]) ** 2).mean().item() for b, t in tokens) / 3
    assert masked_mse(student, teacher, mask).item() == pytest.approx(naive, rel=1e-5)
    assert masked_mse(student, teacher, torch.zeros(2, 3, dtype=torch.bool)).item() == 0.0


def test_gradients_in_float64() -> None:
    student = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, dtype=torch.float64)
    assert gradcheck(lambda z: soft_label_kl(z, teacher, 2.0), student)
    assert gradcheck(lambda z: logits_mse(z, teacher), student)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    assert gradcheck(lambda h: masked_mse(h, torch.zeros_like(h), mask), hidden)


def test_an_objective_names_the_term_whose_need_is_not_met() -> None:
    objective = Objective({"states": HiddenMSE(1, 9, 4, 8)}, {"states": 1.0})
    with pytest.raises(UserError, match=r"'states'.*hidden states of layer 9.*teacher"):
        objective.check(
            Need(hidden=frozenset({0, 1}), tokens=True), Need(hidden=frozenset(range(7)), tokens=True), "r"
        )


def test_an_objective_asks_for_the_union_of_needs() -> None:
    objective = Objective(
        {"a": LogitsMSE(), "b": HiddenMSE(1, 2, 4, 8), "c": SoftLabels()}, dict(a=1, b=1, c=1)
    )
    assert objective.student_need == Need(True, frozenset({1}), True)
    assert objective.teacher_need == Need(True, frozenset({2}), True)
