"""The base class of all settings of recipes and grids."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from tasks.common.records import MAX_EXACT_INTEGER as LARGEST_SEED
from tasks.common.records import explained

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

LARGEST = 10**9  # of all other numbers


class _OneError(ModelMetaclass):
    """Makes an invalid value in a call, `TrainSettings(lr="x")`, a UserError; pydantic's own calls stay as
    they are.
    """

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise explained(error, cls.__name__) from error


class Strict(BaseModel, metaclass=_OneError):
    """Base class of all settings: an unknown key is an error, and a number that is not finite or huge.

    So is a truth value or a number where another kind of number is expected.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        limit = LARGEST_SEED if info.field_name in ("seed", "seeds") else LARGEST
        kinds = _kinds_of_field(cls, info.field_name or "")
        for number in _numbers(value):
            if not kinds & _FITTING[type(number)]:
                words = [text for kind, text in _WORDS.items() if kind in kinds]
                raise PydanticCustomError("other_number", " or ".join(words) or "no number")  # type: ignore[arg-type]
            if not abs(number) <= limit:
                raise ValueError(f"a number up to {limit:,}")
        return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_FITTING: dict[type, set[Any]] = {bool: {bool, Any}, int: {int, float, Any}, float: {float, Any}}


@functools.cache
def _kinds_of_field(model: type[BaseModel], name: str) -> frozenset[Any]:
    return frozenset(_kinds(model.model_fields[name].annotation))


def _kinds(annotation: Any) -> Iterator[Any]:
    """The classes in a type hint; Any if it is not of numbers, texts and lists alone."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        yield from map(type, arguments)
    elif arguments:
        for argument in arguments[:1] if origin is Annotated else arguments:
            yield from _kinds(argument)
    else:
        yield annotation if annotation in (bool, int, float, str, type(None), ...) else Any


def _numbers(value: Any) -> Iterator[bool | int | float]:
    """The numbers and truth values in a value and in its lists."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield (
            bool(value) if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
        )
