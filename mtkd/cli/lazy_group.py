"""A group whose commands are imported when they are called, so that --help and errors appear at once."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mtkd.cli.option_values import empty_value
from tasks.common.errors import UserError, brief, unknown

_TASKS = ("tasks", "task")
_PATH = re.compile(r"\b(DIR|FILE|DATA)\b")  # in the metavar of an option or argument


class _CheckedContext(click.Context):
    """Checks the values of all options before the command runs."""

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        for param in self.command.params:
            limit = 2**53 if param.name == "seed" else 2**31 - 1
            value = self.params.get(param.name or "")
            if _is_empty(value) and (param.name in _TASKS or _PATH.search(param.make_metavar(self))):
                raise empty_value(param, self)
            if expected := _expected_instead(value, limit):
                name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
                shown = str(value) if isinstance(value, Path) else value
                raise UserError(f"{name} {brief(shown)} is not valid", expected=expected)
        if self.params.get("json_file") is not None:
            from mtkd.cli.json_target import check_json_target

            check_json_target(self.command, self.params)
        return super().invoke(*args, **kwargs)


def _is_empty(value: Any) -> bool:
    """True for an empty text, or several values with one, as from an unset variable of the shell."""
    return value == "" or (isinstance(value, list | tuple) and "" in value)


def _expected_instead(value: Any, limit: int) -> str | None:
    """What is expected instead of a value that no option accepts; None if the value is acceptable."""
    waiting = [value]  # not recursive, since values in JSON can be nested deeply
    while waiting:
        part = waiting.pop()
        if isinstance(part, list | tuple | dict):
            waiting += [*part, *part.values()] if isinstance(part, dict) else part
        elif expected := _expected_instead_of_scalar(part, limit):
            return expected
    return None


def _expected_instead_of_scalar(value: Any, limit: int) -> str | None:
    """The same for a value that is not a list or mapping."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int | float):
        return None if abs(value) <= limit else f"a number up to {limit:,}"
    if isinstance(value, str | Path):
        try:
            str(value).encode()
        except UnicodeEncodeError:
            return "text in UTF-8"
        if "\0" in str(value):
            return "text without NUL characters"
    return None


def _parse_args(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Parse the words of a command line, of which no option for one value may be given twice."""
    if not ctx.resilient_parsing:
        _, _, given = command.make_parser(ctx).parse_args(list(args))
        if not any(isinstance(param, click.Option) and "--help" in param.opts for param in given):
            _refuse_repeated(given)
    return type(command).parse_args(command, ctx, args)


def _refuse_repeated(given: Sequence[click.Parameter]) -> None:
    """Raise UserError if an option was given several times, of which click would take the last value.

    Args:
        given: the parameters in the order of the command line.
    """
    for param, number in Counter(given).items():
        if number < 2 or not isinstance(param, click.Option):
            continue
        if not (param.multiple or param.is_flag or param.count):
            times = "twice" if number == 2 else f"{number} times"
            takes_list = "comma-separated" in (param.help or "")
            raise UserError(
                f"{max(param.opts, key=len)} is given {times}",
                expected="one value",
                hint="separate several values with commas" if takes_list else None,
            )


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported only when needed.

    Args:
        lazy: command name -> ("module:attribute", one line of help).
    """

    def __init__(self, *args, lazy: Mapping[str, tuple[str, str]], **kwargs):
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        for checked in (command, *getattr(command, "commands", {}).values()):
            checked.context_class = _CheckedContext
            checked.parse_args = functools.partial(_parse_args, checked)  # type: ignore[method-assign]
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            raise unknown("command", args[0], self.lazy, hint=f"{ctx.command_path} --help lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
