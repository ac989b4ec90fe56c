"""Grids of runs to compare, one TOML file each. Grids for tables of the papers are built in."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from mtkd.losses.term_settings import Strict
from mtkd.recipes import load_settings
from mtkd.settings import validate
from tasks.errors import UserError, unknown


class First(Strict):
    """A run on plain text (`--text`) that initialises the student; cells with the same settings share it.

    Attributes:
        set: dotted setting -> value.
    """

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)


class Cell(Strict):
    """A row of the table; missing values are taken from the grid.

    Attributes:
        tasks: the runs of this cell, instead of the grid's (`--tasks` does not replace them).
        set: dotted setting -> value; overrides the grid.
        first: the run that initialises the student; None = as the recipe says.
        corpus: True to train on an augmented corpus too (`--corpus`).
    """

    recipe: str | None = None
    tasks: list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)
    first: First | None = None
    corpus: bool = False


class Bench(Strict):
    """Settings for timing the inference of the cells' students at each batch size."""

    seq_len: PositiveInt = 128
    batches: list[PositiveInt] = Field([64], min_length=1)
    rounds: PositiveInt = 10


class Grid(Strict):
    """Cells x tasks x seeds.

    Attributes:
        tasks: each entry is one run; "rte,stsb" is one run on both tasks.
        set: dotted setting -> value, for every cell.
    """

    title: str
    source: str = ""
    recipe: str
    tasks: list[str] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    cells: dict[str, Cell] = Field(min_length=1)
    bench: Bench = Bench()

    def recipe_of(self, name: str) -> str:
        """The recipe of a cell."""
        return self.cells[name].recipe or self.recipe

    def check(self) -> None:
        """Validate the settings of every cell.

        Raises:
            UserError: a recipe or setting is unknown; names the cell.
        """
        for name, cell in self.cells.items():
            try:
                load_settings(self.recipe_of(name), "distill", self.set | cell.set)
                if cell.first:
                    load_settings(cell.first.recipe, "distill", cell.first.set)
            except UserError as error:
                raise UserError(f"cell {name!r}: " + "\n".join(error.lines())) from error


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
        sets: dotted setting -> value for every cell; overrides the file.
        without: cells to leave out.

    Raises:
        UserError: unknown grid, cell or key, invalid TOML, or a cell with invalid settings.
    """
    if name in grid_names():
        text = (resources.files("mtkd.grids") / f"{name}.toml").read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise unknown(
            "grid", name, grid_names(), hint="or pass the path of a TOML file (see docs/compare.md)"
        )
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not valid TOML: {error}") from error
    grid: Grid = validate(Grid, values | dict(changes))
    for cell in without:
        if cell not in grid.cells:
            raise unknown("cell", cell, grid.cells)
    cells = {name: cell for name, cell in grid.cells.items() if name not in without}
    if not cells:
        raise UserError("no cell of the grid is left", hint="name fewer cells in `without`")
    grid = grid.model_copy(update={"set": grid.set | dict(sets), "cells": cells})
    grid.check()
    return grid
