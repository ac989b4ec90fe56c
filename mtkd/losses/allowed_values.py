"""Describe the allowed values of a setting in words, from the type annotation of its field."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_NAMES: dict[Any, str] = {
    bool: "true | false",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "none",
    Any: "anything",
}


def allowed_values(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe the values that a type annotation allows.

    Args:
        metadata: the metadata of the field: bounds, such as `Field(gt=0)`, and validators. The docstring of a
            validator replaces the description of the type.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table of settings"
    for item in metadata:
        function = getattr(item, "func", None)
        if function is not None and function.__doc__:
            return " ".join(function.__doc__.split()).rstrip(".")
    # Inside Annotated, `Field(gt=0)` is an object with the bounds in its attribute `metadata`.
    metadata = [part for item in metadata for part in (getattr(item, "metadata", None) or [item])]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return allowed_values(parts[0], [*metadata, *parts[1:]])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return " | ".join(allowed_values(part, metadata) for part in parts)
    if origin is list:
        return f"list of {allowed_values(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(map(allowed_values, parts))}]"
    if origin is dict:
        return f"table of {allowed_values(parts[1])}"
    bounds = [
        f"{sign} {value:,}" if isinstance(value, int) else f"{sign} {value:g}"
        for item in metadata
        for kind, sign in _BOUNDS.items()
        if (value := getattr(item, kind, None)) is not None
    ]
    type_name = _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return f"{type_name} {', '.join(bounds)}" if bounds and annotation in (int, float) else type_name
