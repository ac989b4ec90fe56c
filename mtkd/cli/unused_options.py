"""Errors for options that would have no effect, because another option is given or missing."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.core import ParameterSource

from tasks.common.errors import UserError


def refuse_options(names: tuple[str, ...], where: str, hint: str = "leave it out") -> None:
    """Check that none of some parameters of the current command is given on the command line.

    Args:
        names: names of the parameters.
        where: when they have no effect, such as "with --repair".

    Raises:
        UserError: one of them is given.
    """
    for option in _given_options():
        if option.name in names:
            raise UserError(f"{_long_name(option)} has no effect {where}", hint=hint)


def refuse_other_options(names: tuple[str, ...], where: str, hint: str = "leave it out") -> None:
    """Check that only some parameters of the current command are given; see `refuse_options`."""
    others = tuple(option.name or "" for option in _given_options() if option.name not in names)
    refuse_options(others, where, hint)


def _given_options() -> Iterator[click.Option]:
    """The options on the command line; those from environment variables are not included."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if isinstance(option, click.Option) and source is ParameterSource.COMMANDLINE:
            yield option


def _long_name(option: click.Option) -> str:
    """The name of an option, such as `--steps`; for a switch, its two names."""
    return "/".join([max(option.opts, key=len), *option.secondary_opts])
