"""One step of a pipeline: an mtkd command with its options, and their validation by that command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.types import FloatParamType, IntParamType

from mtkd.api.training_request import SHORTHANDS, load_recipe
from mtkd.cli.json_target import check_json_target
from mtkd.cli.main import cli
from mtkd.device import find_device
from mtkd.grids import load_grid
from mtkd.jobs.grid.grid_jobs import evaluation_options, total_of_stages
from mtkd.recipes import parse_set
from mtkd.recipes.settings_reference import written
from mtkd.teachers.label_lists import label_list
from mtkd.training.interrupts import INTERRUPTED_CODES
from tasks.common.errors import UserError, brief, hint_for_quoted, shorten, unknown
from tasks.common.urls import url_of
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task_names import resolve

TRAINS = ("refine", "distill", "finetune")  # commands that leave a run with its number of steps
_NOT_STEPS = ("demo", "init", "run")
# Options whose values are text on the command line, but may be numbers in the file.
_WITH_NUMBERS = ("set", "teacher-labels", "copies", "seeds", "budget")
_SET_BY_RUN = ("overwrite", "quiet", "resume")  # options that `mtkd run` sets itself


@dataclass(frozen=True)
class Step:
    """A command that a pipeline runs.

    Attributes:
        name: its name in the file; "STEP/TASK" if the step of the file is one command per task.
        command: such as "refine" or "augment mask".
        options: name on the command line, without dashes -> value.
        out: the file or directory that it writes.
        raw: the options as in the file, with references to other steps (`@NAME`) instead of paths.
        needs: the steps whose outputs it reads.
        steps_of: the step whose number of training steps and evaluations it takes; None if it has its own.
    """

    name: str
    title: str
    command: str
    options: Mapping[str, Any]
    out: str
    raw: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    steps_of: str | None = None

    @classmethod
    def of(cls, name: str, title: str, command: str, options: Mapping[str, Any], folder: str) -> Step:
        """Make a step; if the options name no output, it is in `folder`.

        Raises:
            UserError: there is no such command, it has no output, or the output is not a local path.
        """
        allowed = parameters(find_command(command))
        key, suffix = ("out", "") if "out" in allowed and command != "store plan" else ("json", ".json")
        suffix = {"report html": ".html", "report plot": ".png"}.get(command, suffix)
        options = dict(options)
        if key not in allowed:
            raise UserError(f"`mtkd {command}` writes no result")
        out = str(options.pop(key, f"{folder}/{name}{suffix}"))
        if url := url_of(Path(out)):
            raise UserError(f"`{key}={url!r}`: steps write to local directories", expected="a local path")
        count = options.get("steps")
        steps_of = count[1:] if isinstance(count, str) and count.startswith("@") else None
        return cls(name, title, command, options | {key: out}, out, options, steps_of=steps_of)

    def argv_with_steps_of(self, run: Path) -> list[str]:
        """The command line after `mtkd`, with as many steps and evaluations as a finished run."""
        steps = total_of_stages(run, "steps")
        words = self.argv(steps)
        return [*words, *evaluation_options([run], steps, words)]

    def argv(self, steps: int | None = None) -> list[str]:
        """The command line after `mtkd`.

        Args:
            steps: the number of steps of the step `steps_of`; None = not known yet.
        """
        allowed = parameters(find_command(self.command))
        options = dict(self.options)
        if self.steps_of and steps is not None:
            options["steps"] = steps
        arguments = {key for key in options if isinstance(allowed[key], click.Argument)}
        words = self.command.split()
        words += [word for key in arguments for word in _option_words(key, allowed[key], options[key])]
        for key, value in options.items():
            words += [] if key in arguments else _option_words(key, allowed[key], value)
        return words


def find_command(name: str) -> click.Command:
    """The mtkd command with a name such as "refine" or "augment mask".

    Raises:
        UserError: there is no such command, it is a group of commands, or a step cannot run it.
    """
    command: click.Command = cli
    path: list[str] = []
    for word in name.split():
        names = _commands(command, path)
        if word not in names:
            raise unknown("command", name, names.values())
        path.append(word)
        subcommand = command.get_command(click.Context(command), word)  # type: ignore[attr-defined]
        assert subcommand is not None
        command = subcommand
    if not path or isinstance(command, click.Group):
        raise UserError(f"{name!r} is not one command", expected=shorten(_commands(command, path).values()))
    return command


def _commands(group: click.Command, path: list[str]) -> dict[str, str]:
    """The commands of a group that a step can run: name -> full name; empty if it is not a group."""
    listed = group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []
    return {name: " ".join([*path, name]) for name in listed if path or name not in _NOT_STEPS}


def parameters(command: click.Command) -> dict[str, click.Parameter]:
    """The options and arguments of a command that a step may set, by their names on the command line."""
    params = {
        (param.name or "")
        if isinstance(param, click.Argument)
        else max(param.opts, key=len).lstrip("-"): param
        for param in command.params
    }
    return {name: param for name, param in params.items() if name not in _SET_BY_RUN}


def check_step(step: Step) -> dict[str, Any]:
    """Validate the options of a step with its command, and its settings with its recipe.

    Returns:
        The parameters of the command, as click parses them.

    Raises:
        UserError: an option is missing or its value is invalid, or a setting is.
    """
    command = find_command(step.command)
    if wrong := [word for word in step.argv(steps=1) if "\0" in word]:
        raise UserError(f"{brief(wrong[0])} contains a NUL character", expected="text without it")
    try:
        params = command.make_context(step.command, step.argv(steps=1)[len(step.command.split()) :]).params
    except click.ClickException as error:
        from mtkd.cli.usage_errors import usage_error

        found = usage_error(error)
        hint = f"`mtkd {step.command} --help`"
        raise UserError(found.problem, expected=found.expected, hint=hint) from error
    check_json_target(command, params)
    find_device(params.get("device"))
    if step.command == "compare":
        load_grid(params["grid"], {}, {}, params["without"], has_teacher=bool(params["teacher"]))
    if step.command in TRAINS:
        settings = training_settings(step.command, params)
        if step.command == "distill" and settings.student.embedding_file:
            settings.student.check_start()
    if (files := params.get("unlabelled")) and params.get("tasks"):
        UnlabelledRequest(files).check(resolve(params["tasks"]))
    return params


def training_settings(command: str, params: Mapping[str, Any]) -> Any:
    """The settings of a training command: its recipe, with the changes of its options.

    Args:
        params: the parameters of the command, as `check_step` returns them.
    """
    tasks = params.get("tasks") or params.get("task") or "glue"
    shorthands = {name: params.get(name) for name in SHORTHANDS}
    return load_recipe(command, params["recipe"], tasks, parse_set(params["sets"]), **shorthands)


def _option_words(name: str, param: click.Parameter, value: Any) -> Iterator[str]:
    """The words of a command line that set an option or argument.

    Raises:
        UserError: the option does not take such a value.
    """
    values = _items(value)
    if isinstance(param, click.Option) and param.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"{name} = {value!r}", expected="true or false")
        yield from [f"--{name}"] if value else param.secondary_opts[:1]
        return
    is_text = param.type is click.STRING or isinstance(param.type, click.Path)
    parts = value.values() if isinstance(value, dict) else values
    numbers = [item for part in parts for item in _items(part) if isinstance(item, int | float)]
    if is_text and numbers and name not in _WITH_NUMBERS:
        raise UserError(
            f"{name} = {brief(value)} holds a number", expected="text", hint=f'in quotes: "{numbers[0]}"'
        )
    if isinstance(value, dict):
        values = _pairs(name, value)
    elif len(values) > 1 and not param.multiple and param.nargs == 1:
        if name != "tasks":
            raise UserError(f"{name} = {value!r}", expected="one value")
        values = [",".join(map(str, values))]
    for item in values:
        if isinstance(item, bool | dict | list):
            raise UserError(f"{name} = {item!r}", expected="a number or text")
        if isinstance(item, str) and not item.strip():
            raise UserError(f"{name} = {item!r}", expected="a value", hint="leave out this line")
        if isinstance(param.type, IntParamType | FloatParamType) and (hint := hint_for_quoted(item)):
            raise UserError(f"{name} = {item!r} is text", expected="a number", hint=hint)
        if isinstance(param, click.Option):
            yield f"--{name}"
        yield str(item)


def _items(value: Any) -> list[Any]:
    """The items of a list, or the one value."""
    return value if isinstance(value, list) else [value]


def _pairs(name: str, table: Mapping[str, Any]) -> list[str]:
    """The entries of a table as KEY=VALUE; a list becomes several of them, or one for settings and labels."""
    if name == "set":
        return [f"{key}={written(value)}" for key, value in table.items()]
    if name == "teacher-labels":
        table = {key: label_list(value) if isinstance(value, list) else value for key, value in table.items()}
    return [f"{key}={item}" for key, value in table.items() for item in _items(value)]


def execute(command: str, words: list[str]) -> None:
    """Run a command in this process.

    Args:
        command: its name, for error messages.
        words: its command line after `mtkd`.

    Raises:
        UserError: the command fails.
    """
    argv_before = sys.argv
    sys.argv = ["mtkd", *words]  # outputs record their command
    try:
        cli.main(words, prog_name="mtkd", standalone_mode=False)
    except SystemExit as error:
        if error.code in INTERRUPTED_CODES:
            raise
        if error.code:
            raise UserError(f"`mtkd {command}` failed with exit code {error.code}") from error
    finally:
        sys.argv = argv_before


def size_of(path: Path) -> int | None:
    """The size in bytes of a file or of all files in a directory; None if the path does not exist."""
    if not path.exists():
        return None
    return sum(
        file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()
    )
