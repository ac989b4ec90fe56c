"""Custom recipes, given by the path of their file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mtkd
from mtkd.grids import load_grid
from mtkd.pipelines.inputs import input_files
from mtkd.pipelines.step import Step
from mtkd.recipes import load_settings, parse_set, recipe_files
from tasks.common.errors import UserError


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that extends another file, which extends a built-in recipe."""
    (tmp_path / "base.toml").write_text(
        'extends = "mkd-lstm"\nname = "base"\ntrain = { lr = 1e-3, steps = 2, batch_size = 8 }\n'
        "student = { max_length = 24, bilstm = { hidden_size = 4 } }\n"
    )
    own = tmp_path / "mine.toml"
    own.write_text('extends = "base.toml"\ntrain = { lr = 2e-3 }\n')
    return own


def test_a_file_changes_what_it_extends(recipe: Path) -> None:
    built_in, shown = mtkd.show_recipe("mkd-lstm"), mtkd.show_recipe(str(recipe))
    assert (shown.name, shown.train.lr, shown.train.batch_size) == ("mine", 2e-3, 8)
    assert shown.terms == built_in.terms and shown.train.optimizer == built_in.train.optimizer
    assert recipe_files(str(recipe)) == [recipe, recipe.parent / "base.toml"]
    assert recipe_files("mkd-lstm") == []
    step = Step.of(
        "student", "", "distill", {"recipe": str(recipe), "data": "pocket", "tasks": "sst2"}, "runs"
    )
    assert input_files(step) == [recipe.parent / "base.toml", recipe], "what makes a pipeline repeat the step"


def test_a_student_can_be_distilled_with_a_recipe_file(
    recipe: Path, tiny_teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    limits = ["--limit", 16, "--eval-limit", 8]
    words = ["--data", "pocket", "--tasks", "sst2", "--teacher", tiny_teacher, *limits]
    done = mtkd("distill", recipe, *words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    grid = tmp_path / "grid.toml"
    grid.write_text(f'title = "mine"\nrecipe = "{recipe}"\ntasks = ["sst2"]\n[cells.mine]\n')
    planned = mtkd("compare", grid, *words[:2], *words[4:], "--out", tmp_path / "table", "--dry-run")
    assert f"mtkd distill {recipe} --tasks sst2" in planned.out, planned.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 1", "does not say which command it is for"),
        ('extends = "own.toml"', "extends itself"),
        ('extends = "mkd-lstn"', r"did you mean 'mkd-lstm'\?"),
        ('extends = "other.toml"', "no such file: .*other.toml"),
        ('extends = "mkd-lstm"\nlr = 1', "unknown setting 'lr'"),
        ("lr = ", "not valid TOML"),
        ('extends = "refine"', "is for mtkd refine"),
    ],
)
def test_invalid_recipe_files_are_errors(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        mtkd.distill(str(tmp_path / "own.toml"), data="pocket", tasks="sst2", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train = { lrr = 1 }", "unknown setting"),
        ('stages.one.terms = ["nope"]', "unknown term of the stage"),
    ],
)
def test_an_invalid_recipe_is_not_shown(
    text: str, message: str, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'extends = "static"\n{text}\n')
    for words in ([own], [own, "--all"]):
        refused = mtkd("recipes", "show", *words)
        assert refused.code == 2 and message in refused.err and not refused.out


def test_tables_of_settings_are_merged_into_the_recipe(tmp_path: Path) -> None:
    recipe = mtkd.show_recipe("static")
    shown = mtkd.show_recipe("static", {"train": {"steps": 3}, "student": {"max_length": 32}, "terms": {}})
    for pairs in (["train.steps=3", "student.max_length=32"], ["train={steps=3}", "student={max_length=32}"]):
        assert shown == load_settings("static", "distill", parse_set(pairs))
    assert shown.student.kind == recipe.student.kind
    with pytest.raises(UserError, match=r"did you mean 'train.lr'"):
        mtkd.show_recipe("static", {"train": {"lrr": 1}})

    changes = {"logits": {"loss": "labels"}, "labels": {"weight": 2}}
    labels = mtkd.show_recipe("static", {"terms": changes}).terms
    assert labels["logits"] == recipe.terms["labels"].model_copy(update={"weight": 1.0}), "another loss"
    assert labels["labels"] == recipe.terms["labels"].model_copy(update={"weight": 2}), "the same loss"

    for sets, text in (
        (
            {"terms.logits.loss": "soft_labels", "terms.logits.temperature": 2},
            'loss = "soft_labels"\ntemperature = 2',
        ),
        (
            {"terms.logits.temperature": 2, "terms.logits.loss": "soft_labels"},
            'temperature = 2\nloss = "soft_labels"',
        ),
    ):
        own = tmp_path / "other-loss.toml"
        own.write_text(f'extends = "layerwise-3"\nname = "layerwise-3"\n[terms.logits]\n{text}\n')
        other = mtkd.show_recipe("layerwise-3", sets).terms
        assert other == mtkd.show_recipe(str(own)).terms, (
            "the setting `reduction` of the recipe's loss is left out"
        )
        assert (other["logits"].loss, other["logits"].temperature) == ("soft_labels", 2)
    cosine = mtkd.show_recipe("layerwise-3", {"terms.hidden.loss": "hidden_cosine"}).terms["hidden"]
    assert cosine.layer_map == "uniform", "both losses have this setting"
    with pytest.raises(UserError, match=r"unknown setting 'terms\.logits\.reduction'"):
        mtkd.show_recipe("layerwise-3", {"terms.logits.loss": "soft_labels", "terms.logits.reduction": "sum"})

    own = tmp_path / "per-task.toml"
    own.write_text('extends = "layerwise-3"\n[per_task.rte]\n"terms.logits.loss" = "labels"\n')
    assert load_settings(str(own), "distill", {}, "rte").terms["logits"].loss == "labels"

    own = tmp_path / "own.toml"
    own.write_text('extends = "static"\nper_task.rte.train.steps = 3\n')
    assert load_settings(str(own), "distill", {}, "rte").train == recipe.train.model_copy(update={"steps": 3})

    grid = tmp_path / "grid.toml"
    grid.write_text(
        'title = "tables"\nrecipe = "static"\ntasks = ["sst2"]\nset.train.lr = 1e-3\n'
        "[cells.one]\nset = { train = { steps = 3 } }\n"
    )
    loaded = load_grid(str(grid), {}, {"train": {"batch_size": 8}})
    assert loaded.sets_of("one") == {"train.lr": 1e-3, "train.batch_size": 8, "train.steps": 3}
