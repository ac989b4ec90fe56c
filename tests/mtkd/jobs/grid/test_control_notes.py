"""Students that learn from labels, but start from weights of the teacher, are named below the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtkd.grids import load_grid
from mtkd.jobs.grid.control_notes import control_notes
from mtkd.jobs.grid.grid_jobs import GridInputs

GRID = """
title = "Controls"
recipe = "static"
tasks = ["sst2"]

[cells.static]
control = true

[cells.layers]
recipe = "layerwise-3"
control = true

[cells.bilstm]
recipe = "mkd-lstm"
control = true

[cells."copied layers, labels"]
recipe = "layerwise-3"
set = { supervision = "labels" }

[cells."random layers, labels"]
recipe = "layerwise-3"
set = { supervision = "labels", "student.transformer.init" = "random", "student.init_heads" = "random" }
"""


@pytest.mark.parametrize("kind", ["run", "checkpoint", "encoder"])
def test_controls_that_start_from_weights_of_the_teacher_are_named(
    tiny_teacher: Path, save_checkpoint: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    teachers = {
        "run": str(tiny_teacher),
        "checkpoint": str(save_checkpoint("Bert", layers=3)),
        "encoder": "minilm",
    }
    (tmp_path / "grid.toml").write_text(GRID)
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {})
    inputs = GridInputs("pocket", teachers[kind], tmp_path / "out")
    expected = {
        "run": ["static, labels", "copied layers, labels"],
        "checkpoint": ["static, labels", "layers, labels", "copied layers, labels"],
        "encoder": [],
    }
    notes = control_notes(grid, inputs)
    assert len(notes) == bool(expected[kind])
    assert [name for name in grid.cells if any(repr(name) in note for note in notes)] == expected[kind]
