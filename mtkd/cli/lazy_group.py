"""A group of commands that are imported when they are called, so that help and typos answer at once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from tasks.errors import unknown


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported only when needed.

    Args:
        lazy: name -> ("module:attribute", one line of help).
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
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            raise unknown("command", args[0], self.lazy, hint=f"{ctx.command_path} --help lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
