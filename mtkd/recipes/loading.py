"""Loading recipes by name, with the settings that override theirs.

A recipe is named by the name of a built-in one, or by the path of a file that ends in `.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.losses.term_settings import find_settings
from mtkd.setting_errors import validate
from mtkd.settings import SETTINGS_OF_COMMAND
from tasks.common.errors import UserError, unknown
from tasks.common.reading import require_file
from tasks.common.records import read_toml
from tasks.common.toml_kinds import refuse_other_kind

if TYPE_CHECKING:
    from mtkd.models.encoders.encoder import StudentSettings


def recipe_names(command: str = "distill") -> list[str]:
    """The built-in recipes of one command, in alphabetical order."""
    return sorted(name for name in _files() if _read_built_in(name)["command"] == command)


def recipe_text(name: str) -> str:
    """The text of a recipe's TOML file.

    Raises:
        UserError: unknown recipe, or a file that is not TOML.
    """
    recipe_command(name)  # raises the errors
    file = Path(name) if _is_path(name) else resources.files("mtkd.recipes") / f"{name}.toml"
    return file.read_text(encoding="utf-8")


def recipe_command(name: str) -> str:
    """The command that a recipe is for: "distill", "refine" or "finetune".

    Raises:
        UserError: unknown recipe, or a file that is not a recipe.
    """
    if not _is_path(name) and name not in _files():
        raise unknown("recipe", name, _files(), hint="`mtkd.list_recipes()` lists all recipes")
    return str(_values(name)["command"])


def recipe_summary(name: str) -> str:
    """The one-line summary of a recipe; does not import torch."""
    return str(_values(name)["summary"])


def recipe_files(name: str) -> list[Path]:
    """The files of a user's recipe, with those that it extends; none for a built-in recipe.

    Raises:
        UserError: a file does not exist or is not a recipe.
    """
    return [file for file, _ in _files_with_values(Path(name))] if _is_path(name) else []


def load_settings(name: str, command: str, overrides: Mapping[str, Any], task: str = "") -> Any:
    """Load a recipe, apply overrides, and validate the settings.

    Args:
        name: the recipe, or its file.
        command: "distill", "refine" or "finetune".
        overrides: dotted key -> value, as returned by `parse_set`; a table of settings is merged into the
            recipe's. `train.*` applies to every stage of the recipe that has no override of its own.
        task: the task or tasks to train on; for a single task, the recipe's settings for this task apply.

    Raises:
        UserError: unknown recipe or key (the most similar one is suggested), or a value out of range.
    """
    if not _is_path(name) and name not in recipe_names(command):
        raise unknown(
            f"{command} recipe",
            name,
            recipe_names(command),
            hint="`mtkd.list_recipes()` lists all recipes; your own needs its path: FILE.toml",
        )
    overrides = dotted(overrides)
    if recipe_command(name) != command:
        raise UserError(f"the recipe {name} is for mtkd {recipe_command(name)}, not for mtkd {command}")
    if command == "finetune" and "train.lr" in overrides:
        raise UserError(
            f"`train.lr={overrides['train.lr']}` has no effect: fine-tuning tries all learning_rates",
            hint=f"use `settings={{'learning_rates': [{overrides['train.lr']}]}}`",
        )
    if overrides.get("train.batch_size") and overrides.get("train.batch_tokens"):
        raise UserError(
            f"`train.batch_tokens={overrides['train.batch_tokens']}` cannot be used with `train.batch_size`",
            hint="set one of them",
        )
    values = _read(name)
    values.pop("command")
    of_task = dotted(_table(values, "per_task", task))
    _drop_settings_of_replaced_losses(values, of_task)
    for key, value in of_task.items():
        assign_setting(values, key, value)
    if overrides.get("train.epochs") and "train.steps" not in overrides:
        overrides = {"train.steps": None, **overrides}
    if command == "finetune" and (overrides.get("train.epochs") or overrides.get("train.steps")):
        overrides = {"epoch_counts": [], **overrides}
    for key in overrides:
        section, _, setting = key.partition(".")
        for stage in _table(values, "stages") if section == "train" else ():
            _table(values, "stages", stage, "train").pop(setting, None)
    _drop_settings_of_replaced_losses(values, overrides)
    for key, value in overrides.items():
        if value != {} or not _table(values, *key.split(".")):  # an empty table changes nothing
            assign_setting(values, key, value)
    settings = validate(SETTINGS_OF_COMMAND[command], values)
    if student := getattr(settings, "student", None):
        _refuse_other_kinds(student, overrides)
    return settings


def _drop_settings_of_replaced_losses(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Remove the settings of terms that the losses in `changes` (dotted key -> value) do not have."""
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        name = rest.removesuffix(".loss")
        if section == "terms" and name != rest and (term := _table(values, "terms", name)):
            values["terms"][name] = _for_loss(term, value)


def _refuse_other_kinds(student: StudentSettings, overrides: Mapping[str, Any]) -> None:
    """Check that no override is a setting of another kind of student; recipes may have such settings."""
    for key, value in overrides.items():
        section, _, rest = key.partition(".")
        table, _, setting = rest.partition(".")
        if section == "student" and setting and table not in type(student).model_fields:
            raise UserError(
                f"`{key}={value}` has no effect: the student of this recipe is of kind {student.kind!r}",
                hint="use a recipe for this kind of student, or also change `student.kind`",
            )


def _table(values: dict[str, Any], *path: str) -> dict[str, Any]:
    """The table at a path; an empty one if it is missing or anything else, which `validate` then refuses."""
    table: Any = values
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


@cache
def _files() -> tuple[str, ...]:
    """The names of all built-in recipes."""
    files = [file.name for file in resources.files("mtkd.recipes").iterdir()]
    return tuple(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def _is_path(name: str) -> bool:
    return name.endswith(".toml")


def _read(name: str) -> dict[str, Any]:
    """The values of a recipe, merged over those of the recipe that it extends."""
    return deepcopy(_values(name))


def _values(name: str) -> dict[str, Any]:
    """As `_read`, but shared between calls, so the caller must not change them."""
    return _read_file(Path(name)) if _is_path(name) else _read_built_in(name)


@cache
def _read_built_in(name: str) -> dict[str, Any]:
    text = (resources.files("mtkd.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    base = values.pop("extends", None)
    return _merge(_read_built_in(base), values) if base else values


def _read_file(file: Path) -> dict[str, Any]:
    """The values of a user's recipe, merged over those of the recipe that it extends."""
    values: dict[str, Any] = {"summary": "", "source": ""}
    for path, changes in reversed(_files_with_values(file)):
        refuse_other_kind(path, changes, "recipe")
        base = changes.pop("extends", None)
        values = _read(base) if base in _files() else values
        values = _merge(values, {"name": path.stem, **changes})
    if str(values.get("command")) not in SETTINGS_OF_COMMAND:
        raise UserError(
            f"the recipe {file} does not say which command it is for",
            expected=f'`command = "..."` with {", ".join(SETTINGS_OF_COMMAND)}',
        )
    return values


def _files_with_values(file: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A user's recipe and the files that it extends, whose paths are relative to the file that names them.

    Raises:
        UserError: a file does not exist or is not TOML, a recipe is unknown, or one extends itself.
    """
    files: list[tuple[Path, dict[str, Any]]] = []
    while True:
        require_file(file, "the TOML file of a recipe")
        if file.resolve() in (earlier.resolve() for earlier, _ in files):
            raise UserError(f"the recipe {file} extends itself")
        values = read_toml(file)
        files.append((file, values))
        base = values.get("extends")
        if base is None or base in _files():
            return files
        if not isinstance(base, str) or not _is_path(base):
            raise unknown(f"recipe that {file} extends,", str(base), _files(), hint="or name a .toml file")
        file = file.parent / base


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; values that are not tables are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merged[key] = _merge(_for_loss(old, value.get("loss")), value)
        else:
            merged[key] = value
    return merged


def _for_loss(table: dict[str, Any], loss: Any) -> dict[str, Any]:
    """The settings of a term that the loss `loss` has, too; unchanged if that is its loss, or unknown."""
    if loss is None or loss == table.get("loss"):
        return table
    settings = find_settings({"loss": loss})
    return table if settings is None else {k: v for k, v in table.items() if k in settings.model_fields}


_MAX_DEPTH = 20  # of nested tables of settings


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings with dotted keys in place of tables, so that a table changes only the settings that it names.

    Two kinds of table stay whole: a term with its loss, whose other settings depend on it, and those of
    `per_task`.

    Raises:
        UserError: a setting has two values.
    """
    if prefix.count(".") > _MAX_DEPTH:
        raise UserError(f"the setting {prefix[:20]}... is nested too deeply: a table contains itself")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        path = f"{prefix}{key}"
        whole = not isinstance(value, Mapping) or not value or stays_whole(path, value)
        found = {path: value} if whole else dotted(value, f"{path}.")
        for name in found.keys() & flat.keys():
            refuse_contradiction(name, flat[name], name, found[name])
        flat |= found
    return flat


def refuse_contradiction(one: str, value: Any, other: str, other_value: Any) -> None:
    """Raise UserError if two arguments that set the same setting have different values."""
    if value != other_value:
        raise UserError(
            f"`{one}={value}` and `{other}={other_value}` contradict each other", hint="leave one of them out"
        )


def stays_whole(path: str, value: Mapping[str, Any]) -> bool:
    """Whether a table of settings replaces the earlier one, instead of changing only what it names."""
    section, *names = path.split(".")
    return len(names) == 1 and (section == "per_task" or (section == "terms" and "loss" in value))


def assign_setting(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in nested tables."""
    *path, last = key.split(".")
    table = values
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"the setting {key} does not exist: {part!r} is a value, not a table of settings")
    table[last] = None if value == "none" else value  # TOML has no null
