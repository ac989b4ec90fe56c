"""Settings: booleans and numbers are not confused, and an invalid value in a call is one error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mtkd
from mtkd.grids import load_grid
from mtkd.recipes import load_settings, parse_set


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": "x"}, "lr = 'x' is not valid"),
        ({"lr": float("nan")}, r"lr = nan is not valid\n  expected: a finite number"),
        ({"lr": float("-inf")}, r"lr = -inf is not valid\n  expected: a finite number"),
        ({"lr": 1e10}, r"lr = 10000000000.0 is not valid\n  expected: a number up to 1,000,000,000"),
        ({"lr": True}, r"lr = True is not valid\n  expected: a number"),
        ({"epochs": True}, r"epochs = True is not valid\n  expected: an integer or text"),
        ({"epochs": 1.0}, r"epochs = 1.0 is not valid\n  expected: an integer or text"),
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
    "values",
    [
        *({"train.epochs": True}, {"train.seed": 1.0}, {"terms.logits.weight": True}),
        *({"train.epochs": "3"}, {"train.lr": "1e-3"}, {"one_stage": "yes"}, {"terms.logits.weight": "2"}),
    ],
)
def test_invalid_recipe_settings_are_errors(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(mtkd.UserError, match=f"{key} = .* is not valid"):
        load_settings("mkd-lstm", "distill", values)


def test_set_options_may_be_written_as_in_python() -> None:
    parsed = parse_set(
        ["one_stage=True", "train.lr=.5", "train.weight_decay=0.", "train.epochs=3", "title=Yes"]
    )
    assert list(parsed.values()) == [True, 0.5, 0.0, 3, "Yes"]
    assert load_settings("mkd-lstm", "distill", {"train.lr": parsed["train.lr"]}).train.lr == 0.5


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            {"control": "yes"},
            "control = 'yes' is not valid\n  expected: true | false\n"
            "  hint: write true or false, without quotes",
        ),
        (
            {"limit": "5"},
            "limit = '5' is not valid\n  expected: integer > 0 | none\n  hint: write it without quotes: 5",
        ),
    ],
)
def test_text_in_place_of_a_number_or_a_boolean_in_a_grid_is_an_error(
    cell: dict[str, Any], message: str
) -> None:
    with pytest.raises(mtkd.UserError) as error:
        load_grid("mlkd-table-7", {"cells": {"a": cell}}, {}, ())
    assert str(error.value) == f"cells.a.{message}"


@pytest.mark.parametrize(
    "values",
    [
        *({"seeds": [True]}, {"seeds": [0.0]}, {"seeds": ["0"]}, {"baselines": 1}, {"baselines": "no"}),
        *({"bench": {"batches": ["64"]}}, {"bench": {"seq_len": "64"}}),
    ],
)
def test_invalid_grid_values_are_errors(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(mtkd.UserError, match=f"{key}.* = .* is not valid"):
        load_grid("mlkd-table-7", values, {}, ())
