"""Recipes: one TOML file each, containing only settings, which `--set` can override."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from mtkd.setting_errors import validate
from mtkd.settings import COMMANDS
from tasks.errors import UserError, brief, unknown
from tasks.records import plain_toml


def recipe_names(command: str = "distill") -> list[str]:
    """The built-in recipes of one command, in alphabetical order."""
    return sorted(name for name in _files() if _read(name)["command"] == command)


def recipe_text(name: str) -> str:
    """The text of a recipe's TOML file.

    Raises:
        UserError: unknown recipe.
    """
    if name not in _files():
        raise unknown("recipe", name, _files(), hint="`mtkd recipes` lists all recipes")
    return (resources.files("mtkd.recipes") / f"{name}.toml").read_text(encoding="utf-8")


@cache
def recipe_command(name: str) -> str:
    """The command that a recipe is for: "distill", "refine" or "finetune".

    Raises:
        UserError: unknown recipe.
    """
    if name not in _files():
        raise unknown("recipe", name, _files(), hint="`mtkd recipes` lists all recipes")
    return _read(name)["command"]


def recipe_summary(name: str) -> str:
    """The one-line summary of a recipe; does not import torch."""
    return _read(name)["summary"]


def load_settings(name: str, command: str, overrides: Mapping[str, Any], task: str = "") -> Any:
    """Load a recipe, apply overrides, and validate the settings.

    Args:
        name: the recipe.
        command: "distill", "refine" or "finetune".
        overrides: dotted key -> value, as returned by `parse_set`. `train.*` applies to every stage of the
            recipe that has no override of its own.
        task: the task or tasks to train on; for a single task, the recipe's settings for this task apply.

    Raises:
        UserError: unknown recipe or key (the most similar one is suggested), or a value out of range.
    """
    if name not in _files() or recipe_command(name) != command:
        raise unknown(
            f"{command} recipe", name, recipe_names(command), hint="`mtkd recipes` lists all recipes"
        )
    if command == "finetune" and "train.lr" in overrides:
        raise UserError(
            f"`train.lr={overrides['train.lr']}` has no effect: fine-tuning tries all learning_rates",
            hint=f"use `learning_rates=[{overrides['train.lr']}]`",
        )
    if overrides.get("train.batch_size") and overrides.get("train.batch_tokens"):
        raise UserError(
            f"`train.batch_tokens={overrides['train.batch_tokens']}` is instead of `train.batch_size`",
            hint="set one of them",
        )
    values = _read(name)
    values.pop("command")
    for key, value in values.get("per_task", {}).get(task, {}).items():
        assign_setting(values, key, value)
    if overrides.get("train.epochs") and "train.steps" not in overrides:
        overrides = {"train.steps": None, **overrides}
    if command == "finetune" and (overrides.get("train.epochs") or overrides.get("train.steps")):
        overrides = {"epoch_counts": [], **overrides}
    for key in overrides:
        section, _, setting = key.partition(".")
        for table in values.get("stages", {}).values() if section == "train" else ():
            table.get("train", {}).pop(setting, None)
    for key, value in overrides.items():
        assign_setting(values, key, value)
    return validate(COMMANDS[command], values)


def parse_set(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `--set a.b=v` options to dotted key -> value; v is parsed as TOML if possible, else a string.

    Raises:
        UserError: an option has no "=".
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f"--set {pair!r} is not of the form key=value", hint="for example `train.lr=1e-4`"
            )
        try:
            found[key.strip()] = plain_toml(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = None if text.strip() == "none" else text.strip()
        except ValueError as error:  # thousands of digits or brackets
            raise UserError(f"--set {brief(pair)} is not valid: {error}") from error
    return found


def _files() -> list[str]:
    return [
        f.name.removesuffix(".toml")
        for f in resources.files("mtkd.recipes").iterdir()
        if f.name.endswith(".toml")
    ]


def _read(name: str) -> dict[str, Any]:
    """The values of a recipe, merged over those of the recipe that it extends."""
    values = tomllib.loads((resources.files("mtkd.recipes") / f"{name}.toml").read_text(encoding="utf-8"))
    base = values.pop("extends", None)
    return _merge(_read(base), values) if base else values


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; values that are not tables are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def assign_setting(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    table = values
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"the setting {key} does not exist: {part!r} is a value, not a table of settings")
    table[last] = None if value == "none" else value  # TOML has no null
