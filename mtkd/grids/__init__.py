"""Grids of runs to compare, one TOML file each. Grids for tables of the papers are built in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

from mtkd.grids.grid import TEACHER, Bench, Cell, CellStep, Grid
from mtkd.setting_errors import validate
from tasks.common.errors import UserError, did_you_mean, did_you_mean_path, shorten, unknown
from tasks.common.reading import not_regular
from tasks.common.records import parse_toml, read_toml

__all__ = ["TEACHER", "Bench", "Cell", "CellStep", "Grid", "grid_names", "load_grid"]


def grid_names() -> list[str]:
    """The names of the built-in grids."""
    return sorted(
        f.name.removesuffix(".toml")
        for f in resources.files("mtkd.grids").iterdir()
        if f.name.endswith(".toml")
    )


def load_grid(
    name: str, changes: Mapping[str, Any], sets: Mapping[str, Any], without: Sequence[str] = ()
) -> Grid:
    """Load a grid by name or file.

    Args:
        changes: field of Grid -> value; replaces the value of the file.
        sets: dotted setting -> value for every cell; overrides the file, also the settings of single cells.
        without: cells to leave out.

    Raises:
        UserError: unknown grid, cell or key, invalid TOML, a cell with invalid settings, or cells that `sets`
            makes the same.
    """
    if name in grid_names():
        values = parse_toml((resources.files("mtkd.grids") / f"{name}.toml").read_bytes(), name)
    elif Path(name).is_file() or not_regular(Path(name)):
        values = read_toml(Path(name))
    else:
        near = did_you_mean(name, grid_names()) or did_you_mean_path(Path(name))
        raise UserError(
            f"there is no grid {name!r}{near}",
            expected=f"a TOML file (docs/compare.md), or one of {shorten(grid_names(), name)}",
        )
    grid: Grid = validate(Grid, values | dict(changes), "docs/compare.md describes a grid's keys")
    grid = grid.with_controls()
    for cell in without:
        if cell not in grid.cells:
            raise unknown("cell", cell, grid.cells)
    left_out = {*without, *(f"{name}, labels" for name in without if grid.cells[name].control)}
    cells = {name: cell for name, cell in grid.cells.items() if name not in left_out}
    if not cells:
        raise UserError("no cell of the grid is left", hint="name fewer cells in `without`")
    grid = grid.model_copy(update={"set": grid.set | dict(sets), "cells": _overridden(cells, sets)})
    grid.check()
    return grid


def _overridden(cells: Mapping[str, Cell], sets: Mapping[str, Any]) -> dict[str, Cell]:
    """The cells with `sets` instead of their own values; refuses cells that only these told apart."""
    for (name, cell), (other, second) in combinations(cells.items(), 2):
        apart = [key for key in sets if cell.set.get(key) != second.set.get(key)]
        if apart and _with(cell, sets) == _with(second, sets):
            raise UserError(
                f"the cells {name!r} and {other!r} would be the same: they differ only in {', '.join(apart)}",
                hint="leave out one of the cells, or do not set it",
            )
    return {
        name: _with(cell, {key: sets[key] for key in cell.set if key in sets}) for name, cell in cells.items()
    }


def _with(cell: Cell, sets: Mapping[str, Any]) -> Cell:
    return cell.model_copy(update={"set": cell.set | dict(sets)})
