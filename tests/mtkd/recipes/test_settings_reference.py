"""The reference of settings: defaults, allowed values and meanings; docs/settings.md is up to date."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

from mtkd.losses.loss_registry import BUILT_IN
from mtkd.recipes import load_settings, parse_set, recipe_names
from mtkd.recipes.settings_reference import SettingInfo, markdown, sections, settings_in_use
from mtkd.settings import SETTINGS_OF_COMMAND

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def even(value: int) -> int:
    """an even number"""
    return value


class Leaf(BaseModel):
    """A leaf.

    Attributes:
        size, depth: how large, over
            two lines.
    """

    size: int = Field(3, gt=0, le=9)
    depth: float | None = Field(None, ge=0)
    pairs: list[Literal["a", "b"]] = ["a"]
    shift: Annotated[int, AfterValidator(even)] = 0


class Tree(BaseModel):
    leaf: Leaf = Leaf()
    leaves: dict[str, Leaf] = {}
    on: bool = True


def test_the_reference_lists_defaults_allowed_values_and_meanings() -> None:
    found = settings_in_use(Tree(leaves={"x": Leaf(size=4)}))
    assert found[:4] == [
        SettingInfo("leaf.size", "3", "integer > 0, <= 9", "how large, over two lines"),
        SettingInfo("leaf.depth", "none", "number >= 0 | none", "how large, over two lines"),
        SettingInfo("leaf.pairs", '["a"]', "list of a | b", ""),
        SettingInfo("leaf.shift", "0", "an even number", ""),
    ]
    assert [(s.key, s.value) for s in found[4:]][::4] == [("leaves.x.size", "4"), ("on", "true")]


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested tables, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        table = isinstance(value, dict) and value
        found |= flatten(value, f"{prefix}{key}.") if table else {prefix + key: value}
    return found


@pytest.mark.parametrize("command", SETTINGS_OF_COMMAND)
def test_every_value_that_recipes_show_prints_can_be_set(command: str) -> None:
    """Passing every printed value with --set gives the same settings."""
    for name in recipe_names(command):
        settings = load_settings(name, command, {})
        shown = settings_in_use(settings)
        own = [s for s in shown if command != "finetune" or s.key != "train.lr"]
        again = load_settings(name, command, parse_set([f"{s.key}={s.value}" for s in own]))
        assert again == settings
        assert {s.key for s in shown} >= {
            key
            for key in flatten(settings.model_dump())
            if key not in ("name", "summary", "source") and not key.startswith(("per_task", "stages"))
        }


def test_every_setting_is_described() -> None:
    assert [s.key for section in sections() for s in section.settings if not s.description] == []


def test_every_loss_and_kind_of_student_has_a_section() -> None:
    titles = {section.title for section in sections()}
    assert {f"terms.NAME, loss = {name}" for name in BUILT_IN} <= titles
    assert {f"student.{table}" for table in ("bilstm", "static", "transformer", "waldorf")} <= titles


def test_the_settings_page_is_up_to_date(mtkd: Callable) -> None:
    printed = mtkd("recipes", "settings", "--markdown").out
    assert printed == markdown()
    assert PAGE.read_text(encoding="utf-8") == printed, "mtkd recipes settings --markdown > docs/settings.md"


def test_recipes_show_prints_a_table_of_settings(mtkd: Callable) -> None:
    answered = mtkd("recipes", "show", "tinybert-6", "--all")
    lines = answered.out.splitlines()
    place = lines.index("train.lr = 5e-05  (number > 0 | auto)")
    assert "learning rate" in lines[place + 1]
    values = json.loads(mtkd("recipes", "show", "tinybert-6", "--all", "--json").out)
    assert values["train"] == load_settings("tinybert-6", "distill", {}).train.model_dump()
