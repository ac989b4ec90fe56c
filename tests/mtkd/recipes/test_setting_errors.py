"""Errors of settings: one message that names the key, a similar key, and where all settings are listed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mtkd as api
from mtkd.api.training_request import load_recipe
from mtkd.recipes import load_settings, parse_set
from tasks.common.errors import UserError


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trian.epochs", "train.epochs"),
        ("trian.epoch", "train.epochs"),
        ("studnet.kind", "student.kind"),
        ("student.transfomer.layers", "student.transformer.layers"),
        ("train.epoch", "train.epochs"),
    ],
)
def test_a_similar_setting_is_suggested(key: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        load_settings("layerwise-3", "distill", {key: 3})
    assert error.value.problem == f"unknown setting {key!r} (did you mean {meant!r}?)"
    assert error.value.hint == "`mtkd.show_recipe('NAME')` lists all settings"


def test_values_may_be_arrays() -> None:
    settings = load_recipe("distill", "layerwise-3", "rte", {"train.betas": np.array([0.8, 0.9])})
    assert tuple(settings.train.betas) == (0.8, 0.9)


@pytest.mark.parametrize(
    ("settings", "steps"), [({"train.steps": 2}, 3), ({"train": {"steps": 2}, "train.steps": 3}, None)]
)
def test_two_values_of_one_setting_contradict_each_other(settings: dict[str, Any], steps: int | None) -> None:
    with pytest.raises(UserError, match=r"steps=\d` and `train.steps=\d` contradict each other"):
        load_recipe("distill", "layerwise-3", "rte", settings, steps=steps)
    same = {"train": {"steps": 3}, "train.steps": 3}
    assert load_recipe("distill", "layerwise-3", "rte", same, steps=3).train.steps == 3


def test_epochs_that_steps_replace_are_an_error() -> None:
    for settings, shorthands, message in (
        ({}, {"epochs": 3, "steps": 20}, "`epochs=3` has no effect together with `steps=20`"),
        ({"train.epochs": 3}, {"steps": 20}, "`train.epochs=3` has no effect together with `steps=20`"),
        ({"train": {"steps": 20}}, {"epochs": 3}, "`epochs=3` has no effect together with `train.steps=20`"),
    ):
        with pytest.raises(UserError, match=message):
            load_recipe("distill", "layerwise-3", "rte", settings, **shorthands)
    for settings, shorthands in (
        ({"train.steps": "none"}, {"epochs": 3}),
        ({"train.steps": 20, "train.epochs": 3}, {"seed": 1}),  # of a grid and one of its cells
    ):
        assert load_recipe("distill", "layerwise-3", "rte", settings, **shorthands).train.epochs == 3


def test_the_two_learning_rates_of_a_fine_tuning_are_named_as_given() -> None:
    with pytest.raises(UserError, match=r"`lr=\[0.1\]` and `learning_rates=\[0.2\]` contradict"):
        load_recipe("finetune", "finetune", "rte", {"learning_rates": [0.2]}, lr=0.1)


def test_an_unknown_table_has_no_suggestion() -> None:
    with pytest.raises(UserError) as error:
        load_settings("layerwise-3", "distill", {"foo.bar": 3})
    assert error.value.problem == "unknown setting 'foo'"


def test_a_value_in_place_of_a_table_is_an_error() -> None:
    with pytest.raises(UserError) as error:
        load_settings("layerwise-3", "distill", {"terms.x": 1})
    assert error.value.problem == "terms.x = 1 is not valid"
    assert error.value.expected == "a table of settings, such as terms.x.weight"


def test_hints_name_functions_in_python_and_commands_on_the_command_line(
    mtkd: Callable, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"data": "pocket", "tasks": "sst2", "out": tmp_path / "run"}
    for recipe, in_python, command in (
        ("layerwise", "`mtkd.list_recipes()`", "hint: mtkd recipes lists"),
        ("layerwise-3", "a run of `mtkd.refine`", "a run of mtkd refine"),
    ):
        with pytest.raises(UserError) as error:
            api.distill(recipe, **given)
        assert in_python in str(error.value.hint)
        words = ("--data", "pocket", "--tasks", "sst2", "--out", tmp_path / "run")
        refused = mtkd("distill", recipe, *words)
        assert refused.code == 2 and command in refused.err, refused.err


@pytest.mark.parametrize("loss", [1, True, 0.5, [], {}, [{}], datetime.date(1979, 5, 27)])
def test_a_loss_that_is_not_a_string_is_an_error(loss: Any) -> None:
    with pytest.raises(UserError, match=r"(?s)terms\.logits\.loss = .* is not valid.*name of a loss: att"):
        load_settings("mkd-lstm", "distill", {"terms.logits.loss": loss})


@pytest.mark.parametrize("value", ["", {}, 1])
def test_a_term_without_a_loss_is_taken_for_a_misspelt_name(value: Any) -> None:
    with pytest.raises(UserError) as error:
        load_settings("mkd-lstm", "distill", {"terms.logit.weight": value})
    assert error.value.problem == "unknown term 'logit' (did you mean 'logits'?)"


@pytest.mark.parametrize("name", ["a.b", "", "forward", "training", "__class__", "\x1b", "x" * 101, "a/b"])
def test_invalid_term_names_are_errors(name: str, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'extends = "mkd-lstm"\n[terms.{json.dumps(name)}]\nloss = "labels"\n')
    with pytest.raises(UserError, match=r"(?s)is not a valid name in terms.*starting with a letter"):
        load_settings(str(recipe), "distill", {})


def test_a_stage_is_a_folder_and_its_name_stays_inside(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('extends = "mkd-lstm"\n[stages."../x"]\nterms = ["logits"]\n')
    with pytest.raises(UserError, match=r"'\.\./x' is not a valid name in stages"):
        load_settings(str(recipe), "distill", {})


@pytest.mark.parametrize("key", ["student.transformer.init", "student.bilstm.hidden_size"])
def test_settings_of_another_kind_of_student_are_rejected(key: str) -> None:
    value = "minilm" if key.endswith("init") else 8
    with pytest.raises(UserError, match=f"`{key}={value}` has no effect: .* is of kind 'static'"):
        load_settings("static", "distill", {key: value})
    load_settings("static", "distill", {"student.kind": "bilstm", "student.bilstm.hidden_size": 8})


def test_giving_a_setting_twice_on_the_command_line_is_an_error() -> None:
    with pytest.raises(UserError, match=r"--set train\.lr has two values: 0\.1 and 0\.2"):
        parse_set(["train.lr=0.1", "train.steps=3", "train.lr=0.2"])
    assert parse_set(["train.lr=1e-1", "train.lr=0.1"]) == {"train.lr": 0.1}


def test_the_earlier_name_of_the_vocabulary_of_the_teacher_can_be_read() -> None:
    settings = load_settings("mkd-lstm", "distill", {"student.vocabulary": "wordpiece"})
    assert settings == load_settings("mkd-lstm", "distill", {}) and settings.student.vocabulary == "teacher"
