"""Reuse the inference times of an earlier call of `mtkd compare` when timing is skipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from mtkd.grids import Bench
from mtkd.jobs.grid.table_row import TableRow
from tasks.common.errors import UserError
from tasks.common.records import read_record

_KEPT = "The inference times were measured by an earlier call, for the same models."
_CHANGED = "No times for models that are new or have changed: "


_Number = Annotated[float, Field(ge=1e-9, le=1e12)]


class _Row(TypedDict):
    name: str
    model: str | None
    ms: dict[int, _Number]
    speed: dict[int, _Number]
    gpu_ms: dict[int, _Number]
    gpu_speed: dict[int, _Number]


class _Earlier(TypedDict):
    rows: list[_Row]
    bench: dict[str, Any]


def keep_speeds(file: Path, rows: Mapping[str, TableRow]) -> tuple[Bench, str] | None:
    """Add to rows the inference times that an earlier comparison measured for the same models.

    Args:
        file: the compare.json of the earlier comparison, if there was one.
        rows: name -> row; its `model` must be the digest that it had when its inference was timed.

    Returns:
        How the times were measured, and a note for readers of the table; None if there are no such times.
    """
    try:
        earlier = read_record(file, _Earlier)
        bench = Bench.model_validate(earlier["bench"])
    except (UserError, ValueError):  # there is none, or it is damaged
        return None
    timed = {row["name"]: row for row in earlier["rows"] if row["ms"] and row["model"]}
    models = {name: row.model for name, row in rows.items() if row.model}
    kept = [name for name, model in models.items() if name in timed and timed[name]["model"] == model]
    if not kept:
        return None
    first = timed[kept[0]]
    for name in kept:
        row, source = rows[name], timed[name]
        row.ms, row.gpu_ms = source["ms"], source["gpu_ms"]
        row.speed = _relative(source["speed"], first["speed"])
        row.gpu_speed = _relative(source["gpu_speed"], first["gpu_speed"])
    changed = [name for name in models if name not in kept]
    return bench, f"{_KEPT} {_CHANGED}{', '.join(changed)}." if changed else _KEPT


def _relative(speed: Mapping[int, float], first: Mapping[int, float]) -> dict[int, float]:
    """Speeds relative to those of the first row that keeps its times."""
    return {batch: value / first[batch] for batch, value in speed.items() if batch in first}
