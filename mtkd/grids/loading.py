"""Loading grids by name, with the settings that override those of their cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from mtkd.grids.cell import Cell
from mtkd.grids.grid import EXAMPLES, Grid, control_of
from mtkd.recipes import dotted
from mtkd.setting_errors import validate
from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError, did_you_mean, did_you_mean_path, shorten, unknown
from tasks.common.reading import not_regular
from tasks.common.records import parse_toml, read_toml
from tasks.common.toml_kinds import refuse_other_kind


def grid_names() -> list[str]:
    """The names of the built-in grids."""
    return sorted(
        f.name.removesuffix(".toml")
        for f in resources.files("mtkd.grids").iterdir()
        if f.name.endswith(".toml")
    )


def load_grid(
    name: str,
    changes: Mapping[str, Any],
    sets: Mapping[str, Any],
    without: Sequence[str] = (),
    *,
    has_teacher: bool = False,
) -> Grid:
    """Load a grid by name or file.

    Args:
        changes: field of Grid -> value; replaces the value of the file.
        sets: dotted setting -> value for every cell; overrides the file, also the settings of single cells.
        without: cells to leave out.
        has_teacher: True if a teacher is given, which has a row of its own.

    Raises:
        UserError: unknown grid, cell or key, invalid TOML, a missing recipe, a cell with invalid settings, or
            cells that `sets` makes the same.
    """
    if name in grid_names():
        values = parse_toml((resources.files("mtkd.grids") / f"{name}.toml").read_bytes(), name)
    elif name and (Path(name).is_file() or not_regular(Path(name))):
        values = read_toml(Path(name))
        refuse_other_kind(name, values, "grid")
    else:
        near = did_you_mean(name, grid_names()) or did_you_mean_path(Path(name))
        raise UserError(
            f"there is no grid {name!r}{near}",
            expected=f"a TOML file (docs/compare.md), or one of {shorten(grid_names(), name)}",
        )
    sets = dotted(sets)
    grid = _validated(name, values, changes)
    grid = _with_found_files(grid, Path(name).parent)
    known = grid.with_controls().cells
    for excluded in without:
        if excluded not in known:
            raise unknown("cell", excluded, known)
    left_out = {*without, *(control_of(name) for name in without if known[name].control)}
    kept = {name: cell for name, cell in known.items() if name not in left_out}
    if not kept:
        raise UserError("no cell of the grid is left", hint="name fewer cells in `without`")
    _refuse_same(kept, sets)
    for cell_name, cell in kept.items():
        if cell.steps_of in left_out:
            raise UserError(
                f"the cell {cell_name!r} trains for as many steps as {cell.steps_of!r}, which is left out",
                hint=f"also leave {cell_name!r} out",
            )
    # Controls come after `sets`, since they are made from a cell's settings, and keep their own.
    cells = {name: _overridden(cell, sets) for name, cell in grid.cells.items() if name not in left_out}
    grid = grid.model_copy(update={"set": grid.set | dict(sets), "cells": cells}).with_controls(left_out)
    grid.check(has_teacher)
    return grid


def _validated(name: str, values: Mapping[str, Any], changes: Mapping[str, Any]) -> Grid:
    """The grid with these values; errors name its file, except about values of `changes`."""
    try:
        grid: Grid = validate(
            Grid, {**values, **changes}, "docs/compare.md describes a grid's keys", EXAMPLES
        )
    except UserError as error:
        if error.problem.split(" ")[0].split(".")[0] in changes:
            raise
        raise UserError(f"{name}: {error.problem}", expected=error.expected, hint=error.hint) from error
    return grid


def _with_found_files(grid: Grid, folder: Path) -> Grid:
    """The grid with the paths of the recipes and task files that exist only in the folder of the grid's file.

    Raises:
        UserError: the file of a recipe exists neither there nor in the current directory.
    """

    def path(word: str) -> str:
        beside = str(folder / word)
        is_beside = word.endswith(".toml") and os.path.exists(beside) and not os.path.exists(word)
        return beside if is_beside else word

    def recipe(name: str) -> str:
        file = path(name)
        if file.endswith(".toml") and not os.path.exists(file):
            near = did_you_mean_path(folder / name) or did_you_mean_path(Path(name))
            raise UserError(
                f"no such file: {name}{near}",
                expected=f"the TOML file of a recipe, relative to the current directory or to {folder}",
            )
        return file

    def tasks(spec: str) -> str:
        return ",".join(path(word.strip()) for word in spec.split(","))

    def with_files(part: Any) -> Any:
        found: dict[str, Any] = {}
        for key, value in part:
            if isinstance(value, StrictSettings):
                found[key] = with_files(value)
            elif key == "cells":
                found[key] = {name: with_files(cell) for name, cell in value.items()}
            elif key == "recipe" and value:
                found[key] = recipe(value)
            elif key == "tasks" and value:
                found[key] = tasks(value) if isinstance(value, str) else list(map(tasks, value))
        return part.model_copy(update=found)

    return cast(Grid, with_files(grid))


def _refuse_same(cells: Mapping[str, Cell], sets: Mapping[str, Any]) -> None:
    """Refuse cells that only settings which `sets` overrides told apart."""
    for (name, cell), (other, second) in combinations(cells.items(), 2):
        apart = [key for key in sets if cell.set.get(key) != second.set.get(key)]
        if apart and _with(cell, sets) == _with(second, sets):
            raise UserError(
                f"the cells {name!r} and {other!r} would be the same: they differ only in {', '.join(apart)}",
                hint="leave out one of the cells, or do not set it",
            )


def _overridden(cell: Cell, sets: Mapping[str, Any]) -> Cell:
    """The cell with `sets` instead of its own values."""
    return _with(cell, {key: sets[key] for key in cell.set if key in sets})


def _with(cell: Cell, sets: Mapping[str, Any]) -> Cell:
    return cell.model_copy(update={"set": cell.set | dict(sets)})
