"""Values of options that click has no type for: paths or URLs, JSON, a batch size that may be "auto"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from tasks.common.errors import UserError
from tasks.common.urls import url_of

_DEEPEST = 100  # tables inside each other


def empty_value(param: click.Parameter, ctx: click.Context) -> UserError:
    """The error for a path or name that is empty, which would otherwise be the current directory, or none."""
    metavar = param.make_metavar(ctx)
    is_option = isinstance(param, click.Option)
    return UserError(
        f"{param.opts[0]} is empty" if is_option else f"the argument {metavar} is empty",
        expected=metavar if is_option else "a path or name",
        hint="if the value is a variable of the shell, check that it is set",
    )


class PathOrUrl(click.Path):
    """A path; of a URL, that of its local copy, as it would be an output."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that an option names."""
        if value == "" and param is not None and ctx is not None:
            raise empty_value(param, ctx)
        if "\0" in str(value):
            self.fail("a NUL character cannot be part of a path", param, ctx)
        url = url_of(value)
        if url is None or url.startswith("file://"):
            return super().convert(os.path.expanduser(value), param, ctx)
        from tasks.common.remote import Mirror

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
    """Raise ValueError for JSON that is nested too deeply to be sent and recorded."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            part
            for table in level
            if isinstance(table, list | dict)
            for part in (table.values() if isinstance(table, dict) else table)
        ]
    if level:
        raise ValueError(f"more than {_DEEPEST} lists or tables inside each other")


class BatchSizeType(click.ParamType):
    """A number of at least 1, or "auto"."""

    name = "batch"
    expected = "a whole number of 1 or more, or auto"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        return click.IntRange(min=1).convert(value, param, ctx)
