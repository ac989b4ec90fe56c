"""The record of a run describes losses that are passed as objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtkd.jobs.distillation.python_objects import describe_losses
from mtkd.losses.loss_term import LossTerm, TermInput


class Schedule:
    def __init__(self, start: float):
        self.start = start


class CustomLoss(LossTerm):
    def __init__(self, value: Any):
        super().__init__()
        self.value = value

    def forward(self, inputs: TermInput) -> torch.Tensor:
        raise AssertionError("a description computes no loss")


def describe(value: Any) -> str:
    return json.dumps(describe_losses({"own": CustomLoss(value)}), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (lambda: [1, 2], [1, 3]),
        (lambda: {"a": (1, 2)}, {"a": (1, 4)}),
        (lambda: {"red", "blue"}, {"red"}),
        (lambda: torch.tensor(1.5), torch.tensor(2.5)),
        (lambda: torch.zeros(0), torch.zeros(0, 2)),
        (lambda: torch.ones(3, dtype=torch.bfloat16), torch.ones(3)),
        (lambda: np.array(["a", "b"]), np.array(["a", "c"])),
        (lambda: np.array([None, "b"]), np.array([None, "c"])),
        (lambda: np.float32(0.5), np.float32(0.25)),
        (lambda: float("nan"), float("inf")),
        (lambda: Path("a"), Path("b")),
        (lambda: Schedule(0.1), Schedule(0.2)),
        (lambda: partial(max, 1), partial(max, 2)),
        (lambda: lambda x: x + 1, lambda x: x + 2),
        (lambda: dict, list),
        (lambda: torch.relu, torch.sigmoid),
    ],
)
def test_a_changed_attribute_makes_a_different_loss(value: Callable[[], Any], other: Any) -> None:
    assert describe(value()) == describe(value()) != describe(other)


def test_attributes_that_contain_themselves_are_described() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert describe(endless)
