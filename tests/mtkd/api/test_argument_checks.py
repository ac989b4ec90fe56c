"""Public functions check their arguments: a value of the wrong type is one error that names the argument."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas
import pytest
import torch

import mtkd
from mtkd.runtime import OnnxModel
from tasks.common.arguments import hints_of
from tasks.common.scalar_checks import Unfit

NO_ARGUMENTS = ("list_tasks", "list_grids")
AUGMENT = (
    *("mask", "replace", "contextual", "run"),
    *("train_questions", "generate_questions", "estimate_questions", "filter_questions"),
)
WRONG = {
    "None": None, "float": 1.5, "nan": float("nan"), "bool": True, "bytes": b"x", "complex": 1j, "set": {"a"},
    "array": np.zeros((2, 2)), "tensor": torch.tensor([1.0, float("nan")]),
    "frame": pandas.DataFrame({"a": [1]}),
    "NaT": pandas.NaT, "class": int, "object": object(), "NUL": "a\0b", "long": "x" * 5000, "range": range(3),
    "keys": {1: 2},
}  # fmt: skip
ANYTHING = ("data", "teacher")  # checked by the functions themselves


def public_functions() -> Iterator[Callable[..., Any]]:
    for name in mtkd.__all__:
        if inspect.isfunction(value := getattr(mtkd, name)) and name not in NO_ARGUMENTS:
            yield value
    yield from (getattr(mtkd.augment, name) for name in AUGMENT)
    for kind in (mtkd.Model, OnnxModel):
        names = ("__init__", "predict", "evaluate", "save", "to")
        yield from (getattr(kind, name) for name in names if name in vars(kind))


def test_every_public_function_checks_all_its_arguments() -> None:
    for function in public_functions():
        assert vars(function).get("checked"), function
        parameters = inspect.signature(function).parameters
        assert hints_of(function).keys() == parameters.keys() - {"self"}, function


def wrong_calls() -> Iterator[tuple[Callable[..., Any], str, str]]:
    """Yield (function, argument, kind of value): each argument with two values of the wrong type."""
    for function in public_functions():
        for name, (hint, _) in hints_of(function).items():
            if name in ANYTHING or name not in inspect.signature(function).parameters:
                continue
            fits = {"None"} if type(None) in get_args(hint) else set()
            for kind in random.Random(f"{function}{name}").sample(sorted(WRONG.keys() - fits), 2):
                yield function, name, kind


FITTING = {
    "models": ["x"],
    "runs": ["x"],
    "comparisons": ["x"],
    "self": None,
}  # of required arguments; the others accept a string


def test_a_value_of_the_wrong_type_is_an_error_that_names_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = 0
    for function, name, kind in wrong_calls():
        with contextlib.suppress(Unfit):
            hints_of(function)[name][1](WRONG[kind])
            continue
        parameters = inspect.signature(function).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        fitting = FITTING | ({"models": {"x": "x"}} if function is mtkd.compare_models else {})
        arguments = {key: fitting.get(key, "x") for key in required} | {name: WRONG[kind]}
        with pytest.raises(mtkd.UserError, match=f"`{name}[`=\\[]"):
            function(**arguments)
        refused += 1
    assert refused > 300 and not list(tmp_path.iterdir())
