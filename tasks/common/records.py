"""Records: JSON and TOML files that are read back, checked before anything in them is used.

A record is a dataclass that inherits from `Record`, and whose annotations say what each value may be:

    @dataclass(frozen=True)
    class Entry(Record):
        name: Name
        rows: Count

    entry = read_record(path, Entry)
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from tasks.common.errors import UserError, brief
from tasks.common.files import write_json
from tasks.common.reading import read_small_file
from tasks.common.urls import with_urls

MAX_EXACT_INTEGER = 2**53  # integers that any JSON reader keeps exactly
Count = Annotated[int, Field(ge=0, le=MAX_EXACT_INTEGER)]
Seed = Annotated[int, Field(ge=0, le=MAX_EXACT_INTEGER, strict=True)]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Layer = Annotated[int, Field(ge=0, le=1000)]
Depth = Annotated[int, Field(ge=1, le=1000)]  # layers
Width = Annotated[int, Field(ge=0, le=2**20)]  # of a vector; 0 = there is none
Units = Annotated[int, Field(ge=1, le=32_768)]  # a size of a layer, such as its width
VocabularySize = Annotated[int, Field(ge=1, le=5_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*\z", max_length=100)]  # also a file's name
Text = Annotated[str, Field(min_length=1)]

Read = TypeVar("Read")


CHECK = "check"  # the key of a record's own digest
# Earlier versions of mtkd left measured times out of these digests.
_TIMES = frozenset({"seconds", "ms", "speed", "gpu_ms", "gpu_speed"})


class Record:
    """Base class of the dataclasses of records: types are exact, numbers finite, other keys refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True,
        "allow_inf_nan": False,
        "extra": "forbid",
    }


def read_record(path: Path, kind: type[Read], *, newest: int | None = None, hint: str | None = None) -> Read:
    """Read a JSON file.

    Args:
        kind: a `Record`, or any other type that pydantic can check, such as `dict[str, Any]`.
        newest: the newest version of its format that can be read, for a record with the key "format".
        hint: the hint of the error.

    Raises:
        UserError: the file is missing, not JSON, of a newer format, or not of this kind; it names the file,
            key and value.
    """
    raw = read_small_file(path)
    if newest is not None:
        version = _checked(raw, dict[str, Any], str(path), hint).get("format")
        if isinstance(version, int) and version > newest:
            raise UserError(
                f"{path} is of format {version}",
                expected=f"formats up to {newest}",
                hint="upgrade mtkd, or make it again with this version",
            )
    return _checked(_without_check(raw, path, hint), kind, str(path), hint)


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file atomically with a digest of its values, which `read_record` checks."""
    others = with_urls({key: value for key, value in values.items() if key != CHECK})
    write_json(path, {**others, CHECK: short_digest(others)})


def has_check(path: Path) -> bool:
    """Whether a file was written by `write_record`."""
    return f'"{CHECK}"'.encode() in read_small_file(path)


def short_digest(values: Any) -> str:
    """The digest of JSON values that a record stores under the key `CHECK`."""
    text = json.dumps(json.loads(json.dumps(values)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _timeless(value: Any) -> Any:
    """JSON values without measured times."""
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in _TIMES}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def _without_check(raw: bytes, path: Path, hint: str | None) -> bytes:
    """A JSON file without the digest of its values, if it has one.

    Args:
        hint: how to write the file again.

    Raises:
        UserError: the values have changed since they were written.
    """
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        return raw  # the caller reports the error
    if not isinstance(values, dict):
        return raw
    recorded = values.get(CHECK)
    if not _is_digest(recorded):
        # Without the key, it is somebody else's file, unless a flipped bit has changed the name of the key.
        names = filter(lambda name: _is_digest(values[name]), values)
        if not any(short_digest(_without(values, name)) == values[name] for name in names):
            return raw
    others = _without(values, CHECK)
    if recorded not in (short_digest(others), short_digest(_timeless(others))):
        restore = f"restore it from a copy, or {hint}" if hint else "restore it from a copy"
        raise UserError(
            f"{path} has changed since it was written",
            hint=f"{restore}; if you changed it on purpose, remove the key {CHECK!r} from it",
        )
    return json.dumps(others).encode()


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def check_record(value: Any, kind: type[Read], where: str, *, hint: str | None = None) -> Read:
    """Check plain JSON values as `read_record` checks a file; `where` stands for its path."""
    return _checked(json.dumps(value).encode(), kind, where, hint)


def check_value(value: Any, kind: Any, where: str, *, hint: str | None = None) -> None:
    """Check a value of a TOML file; raises UserError like `read_record`."""
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise as_user_error(error, where, hint) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UserError: the file cannot be read or is not TOML.
    """
    return parse_toml(read_small_file(path), str(path))


def parse_toml(raw: bytes, where: str) -> dict[str, Any]:
    """Parse TOML; raises UserError like `read_toml`."""
    try:
        return plain_toml(raw.decode("utf-8-sig"))  # Windows editors write a byte-order mark
    except ValueError as error:
        raise UserError(f"{where} is not valid TOML: {error}") from error


def plain_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError also for deep nesting, and for integers of more than 64 bits."""
    try:
        values = tomllib.loads(text)
        _refuse_long(values)
        return values
    except RecursionError as error:
        raise ValueError("too many tables or lists inside each other") from error


def as_toml(value: Any) -> str:
    """A value as TOML writes it on one line; None, for which TOML has no form, is the text "none"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping) and value:
        pairs = (f"{as_toml(str(key))} = {as_toml(part)}" for key, part in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return "{}"
    text = "none" if value is None else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _refuse_long(value: Any) -> None:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_long(part)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("an integer of more than 64 bits")


def as_user_error(error: ValidationError, where: str, hint: str | None = None) -> UserError:
    """The error for the first value that does not match its type."""
    first = error.errors(include_url=False)[0]
    # The location also names the type that was tried last, if a value may have several.
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith("constrained-"))
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return UserError(f"{where} is not valid JSON: {reason}", hint=hint)
    if first["type"].startswith("missing"):
        return UserError(f"{where} lacks the key {key!r}", hint=hint)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return UserError(f"{where}: there is no key {key!r}", hint=hint)
    return UserError(
        f"{where}: {key + ' = ' if key else ''}{brief(first['input'])} is not valid",
        expected=in_words(first),
        hint=hint,
    )


def in_words(problem: Mapping[str, Any]) -> str:
    """What was expected, from an error of pydantic about one value."""
    if cause := problem.get("ctx", {}).get("error"):
        return str(cause)
    if problem["type"] == "dict_type":
        return "a table of keys and values"
    if problem["type"] == "string_too_short":
        return "text that is not empty"
    if problem["type"] == "string_type":
        return "text"
    return str(problem["msg"]).removeprefix("Input should be ")


def _checked(raw: bytes, kind: type[Read], where: str, hint: str | None) -> Read:
    try:
        return cast(Read, _adapter(cast(Any, kind)).validate_json(raw, strict=True))
    except ValidationError as error:
        raise as_user_error(error, where, hint) from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
