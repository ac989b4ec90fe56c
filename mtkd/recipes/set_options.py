"""Parsing the options `--set KEY=VALUE`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from tasks.common.errors import UserError, brief
from tasks.common.records import plain_toml


def parse_set(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `--set a.b=v` options to dotted key -> value.

    v is parsed as TOML if possible; otherwise it is none, a value in Python's form (True, .5), or text.

    Raises:
        UserError: an option has no "=", or a key has two values.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip()
        if not equals or not key:
            raise UserError(
                f"--set {pair!r} is not of the form key=value", hint="for example `train.lr=1e-4`"
            )
        try:
            values = plain_toml(f"v = {text}")
            if len(values) > 1:
                raise ValueError("more lines follow the value")
            value = values["v"]
        except tomllib.TOMLDecodeError:
            value = _as_python(text.strip())
        except ValueError as error:  # thousands of digits or brackets
            raise UserError(f"--set {brief(pair)} is not valid: {error}") from error
        if settings.setdefault(key, value) != value:
            raise UserError(
                f"--set {key} has two values: {brief(settings[key])} and {brief(value)}",
                hint="leave one of them out",
            )
    return settings


def _as_python(text: str) -> Any:
    """The value of a text that is not TOML: none, true or false or a number in Python's form, or the text."""
    if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text):
        return float(text)
    return {"none": None, "True": True, "False": False}.get(text, text)
