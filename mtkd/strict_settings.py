"""The base class of all settings of recipes and grids."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from tasks.common.records import MAX_EXACT_INTEGER as LARGEST_SEED
from tasks.common.records import as_user_error

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

LARGEST = 10**9  # the limit of all numbers except seeds


class _RaisesUserError(ModelMetaclass):
    """Turns the ValidationError of a call such as `TrainSettings(lr="x")` into a UserError.

    Errors of pydantic's own methods, such as `model_validate`, are not changed.
    """

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise as_user_error(error, cls.__name__) from error


class StrictSettings(BaseModel, metaclass=_RaisesUserError):
    """Base class of all settings.

    It rejects unknown keys, numbers that are not finite or exceed 10^9 (for seeds, 2^53), and values of the
    wrong type, such as 1.5, true or the text "1" for an integer, or the text "yes" for true.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_scalars(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        limit = LARGEST_SEED if info.field_name in ("seed", "seeds") else LARGEST
        kinds = _kinds_of_field(cls, info.field_name or "")
        for scalar in _scalars(value):
            if not _accepts(kinds, scalar):
                types = {str if isinstance(kind, str) else kind for kind in kinds}
                words = [text for kind, text in _WORDS.items() if kind in types]
                raise PydanticCustomError(OTHER_TYPE, " or ".join(words) or "no number")  # type: ignore[arg-type]
            if not isinstance(scalar, str) and not abs(scalar) <= limit:
                is_finite = isinstance(scalar, int) or math.isfinite(scalar)
                raise ValueError(f"a number up to {limit:,}" if is_finite else "a finite number")
        return value


# Type -> its name in messages.
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
OTHER_TYPE = "other_type"  # the type of pydantic's error about a value of the wrong type
# Type of a number -> the annotations of settings that accept it.
_ACCEPTED_BY: dict[type, set[Any]] = {bool: {bool, Any}, int: {int, float, Any}, float: {float, Any}}


def _accepts(kinds: frozenset[Any], value: bool | int | float | str) -> bool:
    """Whether a setting with these `_kinds` accepts a value; pydantic refuses other texts for a text."""
    if isinstance(value, str):
        return bool(kinds & {str, Any, value}) or not kinds & {bool, int, float}
    return bool(kinds & _ACCEPTED_BY[type(value)])


@functools.cache
def _kinds_of_field(model: type[BaseModel], name: str) -> frozenset[Any]:
    return frozenset(_kinds(model.model_fields[name].annotation))


def _kinds(annotation: Any) -> Iterator[Any]:
    """The scalar types in a type hint, such as int or str, and single texts; `Any` in place of all others."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        yield from (value if isinstance(value, str) else type(value) for value in arguments)
    elif arguments:
        for argument in arguments[:1] if origin is Annotated else arguments:
            yield from _kinds(argument)
    else:
        yield annotation if annotation in (bool, int, float, str, type(None), ...) else Any


def _scalars(value: Any) -> Iterator[bool | int | float | str]:
    """The numbers, booleans and texts in a value and in its lists, as plain Python objects."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, int | float | str):
        yield next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
