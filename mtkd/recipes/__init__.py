"""Recipes: one TOML file each, data and not code; `--set` changes single settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from mtkd.settings import STAGES, validate
from tasks.errors import UserError, unknown


def recipe_names(stage: str = "distill") -> list[str]:
    """The recipes that ship with mtkd for one stage, in alphabetical order."""
    return sorted(name for name in _files() if _read(name)["stage"] == stage)


def recipe_text(name: str) -> str:
    """The recipe's TOML as it stands in the package.

    Raises:
        UserError: no recipe of that name.
    """
    if name not in _files():
        raise unknown("recipe", name, _files(), hint="mtkd recipes lists them all")
    return (resources.files("mtkd.recipes") / f"{name}.toml").read_text(encoding="utf-8")


def recipe_stage(name: str) -> str:
    """Which stage a recipe is for."""
    return _read(name)["stage"]


def recipe_summary(name: str) -> str:
    """What a recipe says of itself, in one line; torch is not imported."""
    return _read(name)["summary"]


def load_settings(name: str, stage: str, overrides: Mapping[str, Any], task: str = "") -> Any:
    """A recipe with overrides applied and everything checked.

    Args:
        name: the recipe.
        stage: "distill", "refine" or "finetune".
        overrides: dotted key -> value, as `parse_set` makes them. A `train.*` holds in every stage, unless
            the stage has an override of its own.
        task: what the recipe is for; if it is a single task for which the recipe has settings, these hold.

    Raises:
        UserError: unknown recipe or key (the nearest one is offered), or a value out of range.
    """
    names = recipe_names(stage)
    if name not in names:
        raise unknown(f"{stage} recipe", name, names, hint="mtkd recipes lists them all")
    if stage == "finetune" and "train.lr" in overrides:
        raise UserError(
            f"`train.lr={overrides['train.lr']}`: fine-tuning tries every rate of learning_rates",
            hint=f"`learning_rates=[{overrides['train.lr']}]`",
        )
    values = _read(name)
    values.pop("stage")
    for key, value in values.get("per_task", {}).get(task, {}).items():
        _assign(values, key, value)
    if overrides.get("train.epochs") and "train.steps" not in overrides:
        overrides = {"train.steps": None, **overrides}
    for key in overrides:
        section, _, name_of = key.partition(".")
        for place in values.get("stages", {}).values() if section == "train" else ():
            place.get("train", {}).pop(name_of, None)
    for key, value in overrides.items():
        _assign(values, key, value)
    return validate(STAGES[stage], values)


def parse_set(pairs: Sequence[str]) -> dict[str, Any]:
    """`--set a.b=v` options as dotted key -> value; v is read as TOML, else taken as a string.

    Raises:
        UserError: there is no "=".
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f"--set {pair!r} is not of the form key=value", hint="for example `train.lr=1e-4`"
            )
        try:
            found[key.strip()] = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = None if text.strip() == "none" else text.strip()
    return found


def _files() -> list[str]:
    return [
        f.name.removesuffix(".toml")
        for f in resources.files("mtkd.recipes").iterdir()
        if f.name.endswith(".toml")
    ]


def _read(name: str) -> dict[str, Any]:
    """A recipe's values, those of the recipe that it extends beneath them."""
    values = tomllib.loads((resources.files("mtkd.recipes") / f"{name}.toml").read_text(encoding="utf-8"))
    below = values.pop("extends", None)
    return _over(_read(below), values) if below else values


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another: tables are merged, anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    place = values
    for part in path:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UserError(f"the setting {key}: {part!r} holds a value, not a table of settings")
    place[last] = value
