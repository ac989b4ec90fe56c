"""Grids of runs to compare, one TOML file each: those of the papers' tables ship here, others are files."""

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
    """What a student starts from: a run on plain text (`--text`), shared by the cells that say the same.

    Attributes:
        set: dotted setting -> value.
    """

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)


class Cell(Strict):
    """A row of the table; what it leaves out is the grid's.

    Attributes:
        set: dotted setting -> value, over the grid's.
        first: None = the student starts as its recipe says.
        corpus: True where it trains on copies too (`--corpus`).
    """

    recipe: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    first: First | None = None
    corpus: bool = False


class Bench(Strict):
    """Inference of the cells' students, timed in turn at each batch size."""

    seq_len: PositiveInt = 128
    batches: list[PositiveInt] = Field([64], min_length=1)
    rounds: PositiveInt = 10


class Grid(Strict):
    """Cells x tasks x seeds.

    Attributes:
        tasks: each is trained apart; "rte,stsb" is one run of both.
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
        """Load the settings of every cell.

        Raises:
            UserError: an unknown recipe or setting, and in which cell.
        """
        for name, cell in self.cells.items():
            try:
                load_settings(self.recipe_of(name), "distill", self.set | cell.set)
                if cell.first:
                    load_settings(cell.first.recipe, "distill", cell.first.set)
            except UserError as error:
                raise UserError(f"cell {name!r}: " + "\n".join(error.lines())) from error


def grid_names() -> list[str]:
    """The grids that ship with mtkd."""
    return sorted(
        f.name.removesuffix(".toml")
        for f in resources.files("mtkd.grids").iterdir()
        if f.name.endswith(".toml")
    )


def load_grid(
    name: str, changes: Mapping[str, Any], sets: Mapping[str, Any], without: Sequence[str] = ()
) -> Grid:
    """A grid by name or file.

    Args:
        changes: fields of Grid -> value, in place of the file's.
        sets: dotted setting -> value, for every cell, over the file's.
        without: cells to leave out.

    Raises:
        UserError: no such grid or cell, not TOML, an unknown key, or a cell that does not load.
    """
    if name in grid_names():
        text = (resources.files("mtkd.grids") / f"{name}.toml").read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise unknown("grid", name, grid_names(), hint="or the path of a TOML file (docs/compare.md)")
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
        raise UserError("no cell of the grid is left", hint="leave one out less (`without`)")
    grid = grid.model_copy(update={"set": grid.set | dict(sets), "cells": cells})
    grid.check()
    return grid
