"""Types of option values: integers, paths or URLs, JSON, and a batch size or "auto"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from tasks.common.errors import UserError
from tasks.common.urls import url_of

POSITIVE_INT = click.IntRange(min=1)
NON_NEGATIVE_INT = click.IntRange(min=0)
_MAX_DEPTH = 100  # levels of nested lists and objects in JSON


def empty_value(param: click.Parameter, ctx: click.Context) -> UserError:
    """The error for an empty path or name, which would otherwise mean the current directory or no value."""
    metavar = param.make_metavar(ctx)
    is_option = isinstance(param, click.Option)
    return UserError(
        f"{param.opts[0]} is empty" if is_option else f"the argument {metavar} is empty",
        expected=metavar if is_option else "a path or name",
        hint="if the value is a variable of the shell, check that it is set",
    )


class PathOrUrl(click.Path):
    """A path. A URL becomes the path of its local copy, as for an output."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that the value of an option names."""
        if value == "" and param is not None and ctx is not None:
            raise empty_value(param, ctx)
        if "\0" in str(value):
            self.fail("a NUL character cannot be part of a path", param, ctx)
        url = url_of(value)
        if url is None or url.startswith("file://"):
            return super().convert(os.path.expanduser(value), param, ctx)
        from tasks.common.mirror import Mirror

        return Mirror.of(url, "outputs").path


PATH = PathOrUrl()


def json_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """The value of an option that holds JSON; None if it was not given."""
    try:
        parsed = None if value is None else json.loads(value)
        _refuse_deep(parsed)
        return parsed
    except (ValueError, RecursionError) as error:
        raise UserError(f"{param.opts[0]} {str(value)[:60]!r} is not JSON: {error}") from error


def _refuse_deep(value: Any) -> None:
    """Raise ValueError for JSON that is nested too deeply to be sent or recorded."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for table in level
            if isinstance(table, list | dict)
            for part in (table.values() if isinstance(table, dict) else table)
        ]
    if level:
        raise ValueError(f"lists and objects are nested more than {_MAX_DEPTH} levels deep")


class BatchSizeType(click.ParamType):
    """A number of at least 1, or "auto"."""

    name = "batch"
    expected = "an integer of 1 or more, or auto"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        return POSITIVE_INT.convert(value, param, ctx)
