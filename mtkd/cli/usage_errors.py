"""Converting errors of click, such as a value of the wrong type, to the form of mtkd's own errors."""

from __future__ import annotations

import difflib
import re

import click

from tasks.common.errors import UserError, did_you_mean, unknown


def usage_error(error: click.ClickException) -> UserError:
    """Convert an error of click to one that says what is wrong and what was expected."""
    if isinstance(error, click.NoSuchOption):
        if argument := _argument(error):
            return UserError(
                f"unknown option {error.option_name!r}: {argument} is given without an option",
                expected=f"{error.ctx.command_path} {argument} ..." if error.ctx else None,
            )
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1)
        nearest = f" (did you mean {near[0]!r}?)" if near else ""
        return UserError(f"unknown option {error.option_name!r}{nearest}")
    if isinstance(error, click.BadOptionUsage):
        return UserError(f"the option {error.option_name} has no value")
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if isinstance(error, click.MissingParameter) and param is not None and context is not None:
        metavar: str = param.make_metavar(context)
        if isinstance(param, click.Option):
            option = _name(param)
            meaning = f" ({param.help})" if param.help else ""
            return UserError(f"the option {option} is missing", expected=f"{option} {metavar}{meaning}")
        return UserError(f"the argument {metavar} is missing")
    if isinstance(error, click.BadParameter) and param is not None:
        value = re.match(r"(?s)(.*?) is not (in the range|one of|a valid)", error.message)
        expected = _expected(param.type)
        if value and expected:
            choices = param.type.choices if isinstance(param.type, click.Choice) else ()
            nearest = did_you_mean(value[1].strip("'"), [str(choice) for choice in choices])
            return UserError(f"{_name(param)} {value[1]} is not valid{nearest}", expected=expected)
        return UserError(f"{_name(param)}: {error.message}")
    if context is not None and (command := re.match(r"No such command '(.*?)'", error.message)):
        return unknown("command", command[1], context.command.list_commands(context))
    if extra := re.fullmatch(r"Got unexpected extra (arguments? )\((.*)\)", error.message, re.DOTALL):
        return UserError(f"unexpected {extra[1]}{extra[2]}")
    return UserError(error.format_message())


def _argument(error: click.NoSuchOption) -> str | None:
    """The positional argument that was given as an option, such as RECIPE for `--recipe`, if there is one."""
    params = error.ctx.command.params if error.ctx else []
    names = [param.human_readable_name for param in params if isinstance(param, click.Argument)]
    return next((name for name in names if name.lower() == error.option_name.strip("-").lower()), None)


def _name(param: click.Parameter) -> str:
    """The long name of an option, such as `--steps`, or the name of an argument."""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def _expected(kind: click.ParamType) -> str | None:
    """The values of a type in words; None for a type without a description here."""
    if isinstance(kind, click.Choice):
        return ", ".join(str(choice) for choice in kind.choices)
    if isinstance(kind, click.types.IntParamType):
        noun = "an integer"
    elif isinstance(kind, click.types.FloatParamType):
        noun = "a number"
    else:
        return getattr(kind, "expected", None)
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return f"{noun} from {low:g} to {high:g}"
    if low is not None:
        return f"{noun} above {low:g}" if getattr(kind, "min_open", False) else f"{noun} of {low:g} or more"
    return noun if high is None else f"{noun} up to {high:g}"
