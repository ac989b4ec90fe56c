"""Optimisers use the settings of a recipe."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mtkd.setting_errors import validate
from mtkd.train_settings import TrainSettings
from mtkd.training.optimizers import build_optimizer
from tasks.common.errors import UserError


def test_the_first_step_of_adam_follows_from_its_settings() -> None:
    settings = TrainSettings(
        optimizer="adamw", lr=0.1, betas=(0.5, 0.75), eps=1.0, weight_decay=0.25, max_grad_norm=None
    )
    module = nn.Linear(2, 1, bias=False)
    before = module.weight.detach().clone()
    optimizer = build_optimizer(module, settings)
    for gradient in (2.0, -1.0):
        module.weight.grad = torch.full_like(module.weight, gradient)
        optimizer.step()
    expected, first, second = before.double(), 0.0, 0.0
    for step, gradient in enumerate((2.0, -1.0), 1):
        expected = expected * (1 - 0.1 * 0.25)
        first, second = 0.5 * first + 0.5 * gradient, 0.75 * second + 0.25 * gradient**2
        size = (first / (1 - 0.5**step)) / ((second / (1 - 0.75**step)) ** 0.5 + 1.0)
        expected = expected - 0.1 * size
    torch.testing.assert_close(module.weight.detach().double(), expected, atol=1e-6, rtol=0)


def test_unset_settings_have_the_defaults_of_torch() -> None:
    (group,) = build_optimizer(nn.Linear(2, 1, bias=False), TrainSettings(optimizer="adam")).param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adadelta", "betas": [0.9, 0.98]}, "betas.*adadelta has no betas"),
        ({"betas": [0.9, 1.0]}, "betas.*below 1"),
        ({"warmup": 2.5}, r"warmup = 2\.5.*integer number of steps"),
        ({"eps": 0}, "eps = 0"),
    ],
)
def test_values_out_of_range_are_rejected(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        validate(TrainSettings, changes)
