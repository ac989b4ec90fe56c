"""The base class of all settings of recipes and grids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from tasks.common.records import MOST as LARGEST_SEED

LARGEST = 10**9  # of all other numbers


class Strict(BaseModel):
    """Base class of all settings: an unknown key is an error, and a number that is not finite or huge."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_huge(cls, value: Any, info: ValidationInfo) -> Any:
        limit = LARGEST_SEED if info.field_name in ("seed", "seeds") else LARGEST
        if not all(abs(number) <= limit for number in _numbers(value)):
            raise ValueError(f"a number up to {limit:,}")
        return value


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers in a value and in its lists."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value
