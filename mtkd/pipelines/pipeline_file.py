"""Read a pipeline's TOML file into steps: common settings, references, and the order of the steps."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from mtkd.pipelines.references import check_references, find_steps, substitute
from mtkd.pipelines.step import TRAINS, Step
from mtkd.pipelines.step_table import COMMON, require_command, steps_of_table
from mtkd.recipes import assign_setting, stays_whole
from tasks.common.errors import UserError, brief, did_you_mean_path, unknown
from tasks.common.reading import not_regular
from tasks.common.records import Seed, Size, Text, check_value, parse_toml, read_toml
from tasks.common.toml_kinds import refuse_other_kind

_TYPES: dict[str, Any] = {  # top-level key of a file -> type
    **{"title": str, "out": Text, "data": Text | list[Text], "tasks": Text | list[Text], "seed": Seed},
    **{"device": Text, "precision": Text, "limit": Size, "eval-limit": Size, "steps": dict[str, Any]},
}
_TEXTS = ("title", "out", "data", "tasks", "device", "precision")
_SET_OF_STEP = re.compile(r"steps\.[^.]+\.set(\.|$)")


def built_in_pipelines() -> list[str]:
    """The names of the pipelines that come with mtkd."""
    files = resources.files("mtkd.pipelines").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def read_pipeline(file: str | Path) -> tuple[dict[str, Any], Path]:
    """The values of a pipeline's TOML file, and the directory at which its relative paths start.

    Args:
        file: a path, or the name of a built-in pipeline, whose paths start at the current directory.

    Raises:
        UserError: no such file, or it is not TOML.
    """
    path = Path(file)
    if path.is_file():
        values = read_toml(path)
        refuse_other_kind(path, values, "pipeline")
        return values, path.parent
    if str(file) in built_in_pipelines():
        raw = (resources.files("mtkd.pipelines") / f"{file}.toml").read_bytes()
        return parse_toml(raw, str(file)), Path()
    inside = path / "pipeline.toml"
    near = f" (did you mean {str(inside)!r}?)" if inside.is_file() else ""
    problem = f"{file} {found}, not a pipeline" if (found := not_regular(path)) else ""
    raise UserError(
        (problem or f"there is no pipeline {str(file)!r}") + (near or did_you_mean_path(path)),
        expected="a pipeline file (.toml), or the name of a built-in pipeline: "
        f"{', '.join(built_in_pipelines())}",
        hint="`mtkd.init_pipeline('DATA', ...)` writes one for your data (see docs/pipelines.md)",
    )


def load_steps(values: dict[str, Any], settings: Mapping[str, Any], name: str) -> tuple[list[Step], Path]:
    """The steps of a pipeline, in an order in which they can run, and its output directory.

    Args:
        values: the contents of the file; relative paths start at the current directory.
        settings: dotted key -> value; these override the file (see `override`).
        name: the file without its suffix, after which the output directory is named by default.

    Raises:
        UserError: an unknown key, command, option, step or task, or steps that need each other.
    """
    override(values, settings)
    for key in values:
        if key not in _TYPES:
            raise unknown("key of a pipeline", key, _TYPES, hint="options of one step belong to [steps.NAME]")
        if values[key] == []:
            raise UserError(f"the pipeline: {key} is an empty list", expected="one or more")
        number = key in _TEXTS and type(values[key]) in (int, float)
        hint = f'write text in quotes: {key} = "{values[key]}"' if number else None
        check_value(values[key], _TYPES[key], f"the pipeline: {key}", hint=hint)
    out = output_directory(values, name)
    tables = values.get("steps")
    if not tables or not isinstance(tables, dict):
        raise UserError("the pipeline has no steps", expected="tables such as [steps.teacher]")
    common = {key: values[key] for key in COMMON if key in values}
    steps_by_name: dict[str, Step] = {}
    for step_name, table in tables.items():
        with naming_step(step_name):
            require_command(step_name, table, [other for other in tables if other != step_name])
            steps_by_name |= {step.name: step for step in steps_of_table(step_name, table, common, out)}
    ordered = _ordered({step.name: _resolved(step, steps_by_name) for step in steps_by_name.values()})
    for step in ordered:
        with naming_step(step.name):
            check_references(step, steps_by_name)
    return ordered, Path(out)


def override(values: dict[str, Any], settings: Mapping[str, Any], prefix: str = "") -> None:
    """Override values of a pipeline file, in place.

    As with the settings of a recipe, a table of steps, of one step or of its `set` changes only the values
    that it names. A table that is the value of an option, such as `unlabelled`, replaces the one in the file.

    Args:
        values: the contents of the file.
        settings: dotted key -> value.
        prefix: put before each key.
    """
    for name, value in settings.items():
        key = f"{prefix}{name}"
        old: Any = values
        for part in key.split("."):
            old = old.get(part) if isinstance(old, dict) else None
        is_option = len(key.split(".")) > 2 and not _SET_OF_STEP.match(key)
        merges = isinstance(old, dict) and isinstance(value, Mapping) and not is_option
        if merges and not stays_whole(_SET_OF_STEP.sub("", key), value):
            override(values, value, f"{key}.")
        else:
            assign_setting(values, key, value)


def output_directory(values: Mapping[str, Any], name: str) -> str:
    """The directory that holds a pipeline's record and, by default, the outputs of its steps."""
    return os.path.expanduser(values.get("out", f"runs/{name}"))


def move_steps(steps: Iterable[Step], folder: str) -> list[Step]:
    """The same steps with their outputs in another directory."""
    moved = {}
    for step in steps:
        out = f"{folder}/{step.name}{Path(step.out).suffix}"
        options = {key: out if value == step.out else value for key, value in step.raw.items()}
        moved[step.name] = replace(step, out=out, options=options)
    return [_resolved(step, moved) for step in moved.values()]


@contextlib.contextmanager
def naming_step(name: str) -> Iterator[None]:
    """Add the name of a step to a UserError that is raised inside the block."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"step {brief(name)}: {error.problem}", expected=error.expected, hint=error.hint
        ) from error


def _resolved(step: Step, steps: Mapping[str, Step]) -> Step:
    """The step with paths in place of references to other steps, and the names of these in `needs`."""
    needs: dict[str, None] = {}

    def path(reference: str) -> str:
        referenced, output = find_steps(reference, steps)
        needs.update(dict.fromkeys(referenced))
        return output

    with naming_step(step.name):
        options = {key: substitute(value, path) for key, value in step.options.items()}
        if step.steps_of:
            if step.steps_of not in steps or steps[step.steps_of].command not in TRAINS:
                training_steps = [
                    name
                    for name, other in steps.items()
                    if other.command in TRAINS and other.name != step.name
                ]
                raise unknown("step that trains in `steps`:", step.steps_of, training_steps)
            options["steps"] = step.options["steps"]
    return replace(step, options=options, raw=step.options, needs=tuple(needs))


def _ordered(steps: Mapping[str, Step]) -> list[Step]:
    """The steps in the order of the file, each after those that it needs."""
    ordered: dict[str, Step] = {}
    for first in steps:
        path = [first]  # each step is needed by the one before it
        while path:
            name = path[-1]
            needed = next((other for other in steps[name].needs if other not in ordered), None)
            if needed is None:
                ordered[name] = steps[path.pop()]
            elif needed in path:
                cycle = (*path[path.index(needed) :], needed)
                raise UserError(
                    f"the steps refer to each other in a circle: {' -> '.join(map(repr, cycle))}",
                    hint="remove one of these references (`@NAME`)",
                )
            else:
                path.append(needed)
    return list(ordered.values())
