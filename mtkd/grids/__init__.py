"""Grids of runs to compare, one TOML file each. Grids for tables of the papers are built in."""

from mtkd.grids.cell import Bench, Cell, CellStep
from mtkd.grids.grid import TEACHER, Grid
from mtkd.grids.loading import grid_names, load_grid

__all__ = ["TEACHER", "Bench", "Cell", "CellStep", "Grid", "grid_names", "load_grid"]
