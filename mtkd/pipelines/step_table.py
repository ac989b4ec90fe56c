"""Read the table of one step in a pipeline file: its command, its options, and the common settings."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mtkd.pipelines.step import Step, find_command, parameters
from tasks.common.errors import UserError, brief, did_you_mean, unknown
from tasks.task_names import resolve, task_words

# What a file may set once for all steps whose commands have an option of this name.
COMMON = ("data", "tasks", "seed", "device", "precision", "limit", "eval-limit")
# Commands with an option of such a name that means something else: option -> common setting (None = none).
_OTHER_MEANING: dict[str, dict[str, str | None]] = {
    "evaluate": {"tasks": None, "limit": "eval-limit"},
    "export": {"tasks": None, "limit": "eval-limit"},
    "predict": {"data": None},
}
_PRECISION = {
    "refine": ("train.precision",),
    "distill": ("train.precision", "teacher.precision"),
    "finetune": ("train.precision",),
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def require_command(name: str, table: Any, others: Sequence[str]) -> None:
    """Raise UserError if a step has no command, since its name may be a misspelt one of `others`."""
    if not isinstance(table, dict) or not isinstance(table.get("command"), str):
        raise UserError(
            f"it has no command{did_you_mean(name, others)}",
            expected='a table with a command, such as command = "refine"',
            hint="the name of the step may be misspelt",
        )


def steps_of_table(name: str, table: Any, common: Mapping[str, Any], out: str) -> Iterator[Step]:
    """The step that a table describes; if its command is for one task, one step per common task."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{brief(name)} is not a valid name", expected="up to 100 letters, digits, _ and -")
    _check_values(table)
    present = {key: value for key, value in table.items() if value is not None}
    own_options = {key: value for key, value in present.items() if key not in ("command", "title")}
    command = find_command(table["command"])
    allowed = parameters(command)
    for key in own_options:
        if key not in allowed:
            hint = "`mtkd run` itself sets overwrite, resume and quiet"
            raise unknown(f"option of `mtkd {table['command']}`:", key, allowed, hint=hint)
    options = _common_options(table["command"], allowed, common, own_options) | own_options
    if "set" in allowed:
        options["set"] = _settings(table["command"], common, own_options.get("set", {}))
        if "train.seed" in options["set"] and "seed" not in own_options:
            options.pop("seed", None)
    title = str(table.get("title", name))
    tasks = common.get("tasks")
    if "task" in allowed and allowed["task"].required and "task" not in own_options and tasks:
        for word in task_words(tasks if isinstance(tasks, str) else ",".join(tasks)):
            (task,) = resolve(word)
            step_name = f"{name}/{task.name}"
            step_title = title.replace("{task}", task.name) if "{task}" in title else f"{title} ({task.name})"
            own_output = {"out": f"{own_options['out']}/{task.name}"} if "out" in own_options else {}
            yield Step.of(step_name, step_title, table["command"], options | {"task": word} | own_output, out)
        return
    yield Step.of(name, title, table["command"], options, out)


def _check_values(table: Mapping[str, Any]) -> None:
    """Raise UserError if a value in the table of a step cannot be that of an option."""
    for key, value in table.items():
        values = list(value.values()) if isinstance(value, dict) else [value]
        items = [item for listed in values for item in (listed if isinstance(listed, list) else [listed])]
        if key in ("out", "title", "json") and not isinstance(value, str | None):
            raise UserError(f"{key} = {brief(value)} is not valid", expected="text")
        if key != "set" and not all(isinstance(item, str | int | float | None) for item in items):
            raise UserError(
                f"{key} = {brief(value)} is not valid",
                expected="text, a number, true, false, or a list or table of these",
            )
        if key != "set" and (odd := [n for n in items if isinstance(n, float) and not math.isfinite(n)]):
            raise UserError(
                f"{key} = {brief(value)} is not valid",
                expected="text, such as a path, or a finite number",
                hint=f'write a path or a name in quotes: "{odd[0]}"',
            )


def _common_options(
    command: str, allowed: Collection[str], common: Mapping[str, Any], own_options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a step whose values the file sets for all steps.

    Args:
        allowed: the names of the command's options.
        own_options: the options that the step itself sets.
    """
    names: dict[str, str | None] = {key: key for key in COMMON if key in allowed}
    names |= _OTHER_MEANING.get(command, {})
    if "text" in own_options:  # plain text has no tasks
        names = {key: names[key] for key in names if key not in ("data", "tasks", "limit")}
    options = {key: common[other] for key, other in names.items() if other and other in common}
    if command == "export" and "data" not in options | dict(own_options):  # it scores no rows
        options.pop("limit", None)
    if command == "augment questions generate" and own_options.get("model", "rules") == "rules":
        for key in ("seed", "device", "precision"):  # the rules need neither random numbers nor a model
            options.pop(key, None)
    return options


def _settings(command: str, common: Mapping[str, Any], own_settings: Any) -> dict[str, Any]:
    """The settings of a step as dotted key -> value; its `set` may have dotted keys and nested tables."""
    if not isinstance(own_settings, dict):
        raise UserError(f"set = {own_settings!r}", expected="a table, such as set.train.lr = 1e-4")
    shared = {key: common["precision"] for key in _PRECISION.get(command, ()) if "precision" in common}
    return shared | dict(_dotted(own_settings))


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a nested table as (dotted key, value); UserError for one that no setting can have."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        elif _is_plain(value):
            yield f"{prefix}{key}", value
        else:
            raise UserError(
                f"set.{prefix}{key} = {brief(value)} is not valid",
                expected="text, a number, true, false, or a list of these",
            )


def _is_plain(value: Any) -> bool:
    """True if a TOML value can be that of a setting, so that it can be written after `--set`."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | None)
