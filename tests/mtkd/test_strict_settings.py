"""Settings: booleans and numbers are not confused, and an invalid value in a call is one error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mtkd
from mtkd.grids import load_grid
from mtkd.recipes import load_settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": "x"}, "lr = 'x' is not valid"),
        ({"lr": float("nan")}, r"lr = nan is not valid\n  expected: a finite number"),
        ({"lr": float("-inf")}, r"lr = -inf is not valid\n  expected: a finite number"),
        ({"lr": 1e10}, r"lr = 10000000000.0 is not valid\n  expected: a number up to 1,000,000,000"),
        ({"lr": True}, r"lr = True is not valid\n  expected: a number"),
        ({"epochs": True}, r"epochs = True is not valid\n  expected: a whole number or text"),
        ({"epochs": 1.0}, r"epochs = 1.0 is not valid\n  expected: a whole number or text"),
        ({"group_by_length": 1}, r"group_by_length = 1 is not valid\n  expected: true or false"),
        ({"class_weights": [True, 2]}, r"class_weights = \[True, 2\] is not valid"),
        ({"seed": 2**60}, "seed = 1152921504606846976 is not valid"),
        ({"rate": 1}, "there is no key 'rate'"),
    ],
)
def test_an_invalid_value_in_a_call_is_one_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(mtkd.UserError, match=f"^TrainSettings: {message}"):
        mtkd.TrainSettings(**values)


def test_numpy_numbers_and_integers_for_floats_are_accepted() -> None:
    given: dict[str, Any] = {"epochs": np.int64(2), "lr": np.float32(0.5), "weight_decay": 0, "warmup": 100}
    settings = mtkd.TrainSettings(**given)
    assert (settings.epochs, settings.lr, settings.weight_decay, settings.warmup) == (2, 0.5, 0, 100)
    assert type(settings.epochs) is int and type(settings.lr) is float


@pytest.mark.parametrize(
    "values", [{"train.epochs": True}, {"train.seed": 1.0}, {"terms.logits.weight": True}]
)
def test_invalid_recipe_settings_are_errors(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(mtkd.UserError, match=f"{key} = .* is not valid"):
        load_settings("mkd-lstm", "distill", values)


@pytest.mark.parametrize("values", [{"seeds": [True]}, {"seeds": [0.0]}, {"baselines": 1}])
def test_invalid_grid_values_are_errors(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(mtkd.UserError, match=f"{key}.* = .* is not valid"):
        load_grid("mlkd-table-7", values, {}, ())
