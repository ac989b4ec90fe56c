"""Settings that all losses share: the base class, schedules, layer maps and projections."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from mtkd.strict_settings import StrictSettings
from tasks.task import Task
from tasks.task_keys import A_NAME, is_name
from tasks.task_types import is_task_type, task_type_names

# Points [fraction of the stage's steps, value], interpolated linearly; two points at one fraction are a jump.
Points = list[tuple[float, float]]


def _weight(value: float | Points) -> float | Points:
    """a number of 0 or more, or points [fraction of the steps, value]"""
    points = [(0.0, value)] if isinstance(value, int | float) else value
    if not points or any(y < 0 for _, y in points):
        raise ValueError("a number of 0 or more, or points [fraction of the steps, value]")
    if any(not 0 <= x <= 1 for x, _ in points) or any(a > b for (a, _), (b, _) in pairwise(points)):
        raise ValueError("points are [fraction of the steps, value], with fractions rising from 0 to 1")
    return value


def _temperature(value: float | Points) -> float | Points:
    """a number above 0, or points [fraction of the steps, value]"""
    if value == 0 or (not isinstance(value, int | float) and any(y == 0 for _, y in value)):
        raise ValueError("a temperature must be above 0")
    return _weight(value)


def _task_type(value: str) -> str:
    if not is_task_type(value):
        raise ValueError(", ".join(task_type_names()))
    return value


def _layers(value: str | list[tuple[int, int]]) -> str | list[tuple[int, int]]:
    """uniform | skip | last | first | top:L | last-only | minilmv2 | emd, or pairs: [[1, 3], [2, 6]]"""
    if value == "auto":  # an alias
        return "minilmv2"
    if not value or (isinstance(value, str) and not re.fullmatch(_LAYER_MAPS, value)):
        raise ValueError(
            "uniform, skip, last, first, top:L, last-only, minilmv2, emd, or pairs such as [[1, 3], [2, 6]]"
        )
    return value


_LAYER_MAPS = r"uniform|skip|last|first|last-only|minilmv2|emd|top:\d+"
Schedule = Annotated[float | Points, AfterValidator(_weight)]
Temperature = Annotated[float | Points, AfterValidator(_temperature)]
LayerMap = Annotated[str | list[tuple[int, int]], AfterValidator(_layers)]
# `--set terms.X.projection=none` arrives as None.
_NONE = BeforeValidator(lambda value: "none" if value is None else value)
Projection = Annotated[Literal["shared", "per-layer", "none"], _NONE]
SharedProjection = Annotated[Literal["shared", "none"], _NONE]  # of a loss that compares one pair of layers


def value_at(schedule: float | Points, progress: float) -> float:
    """The value of a schedule after the fraction `progress` (0 to 1) of the steps."""
    if isinstance(schedule, int | float):
        return float(schedule)
    before = [point for point in schedule if point[0] <= progress]
    after = [point for point in schedule if point[0] > progress]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)


def is_zero(schedule: float | Points) -> bool:
    """True if the value is always 0."""
    return not schedule if isinstance(schedule, int | float) else not any(value for _, value in schedule)


def _term_name(value: str) -> str:
    import torch

    # Terms are parts of a module, whose own attributes they must not hide.
    if not is_name(value) or hasattr(torch.nn.ModuleDict(), value):
        raise ValueError(f"{A_NAME}; not the name of an attribute of torch modules, such as train or forward")
    return value


TermName = Annotated[str, AfterValidator(_term_name)]


class TermSettings(StrictSettings):
    """The settings that every term has.

    A loss with further settings defines a subclass called `Settings`.

    Attributes:
        weight: the weight of the term in the objective; or a schedule: points [fraction of the steps, value],
            interpolated linearly.
        task_types: the task types that the term applies to; None = all.
        loss: the name of the loss, which determines the other settings of the term.
    """

    weight: Schedule = 1.0
    task_types: list[Annotated[str, AfterValidator(_task_type)]] | None = None
    loss: str


def applies_to(task_types: Sequence[str] | None, task: Task) -> bool:
    """True if a term with these `task_types` is used for a task."""
    return task_types is None or task.kind in task_types


def find_settings(term: Any) -> type[TermSettings] | None:
    """The settings class of the loss that the values of a term name; None if they name no known loss."""
    from mtkd.losses.loss_registry import find_loss

    loss = term.get("loss") if isinstance(term, Mapping) else None
    loss_class = find_loss(loss) if isinstance(loss, str) else None
    return None if loss_class is None else loss_class.Settings


def validate_term(term: Any) -> TermSettings:
    """Validate the settings of a term with the settings class of its loss, for pydantic."""
    if isinstance(term, TermSettings):
        return term
    settings = find_settings(term)
    if settings is None and isinstance(term, Mapping) and isinstance(term.get("loss"), str):
        raise PydanticCustomError("unknown_loss", "there is no such loss")
    return (settings or TermSettings).model_validate(term)
