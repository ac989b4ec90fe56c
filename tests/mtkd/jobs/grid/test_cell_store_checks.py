"""All cells of a grid are checked against its knowledge store before the first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mtkd as api

GRID = """
title = "Stores"
recipe = "layerwise-3"
tasks = ["rte"]

[set]
"student.max_length" = 24

[cells.stored]

[cells.tiny]
recipe = "tinybert-4"
set = { student.transformer = { layers = 1, heads = 2, hidden_size = 12 } }

[cells.longer]
set = { "student.max_length" = 32 }
"""


def test_cells_that_a_store_cannot_train_are_named_before_the_first_run(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    (tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    store, out = tmp_path / "store", tmp_path / "out"
    settings = {"student.max_length": 24}
    options = {"data": "pocket", "tasks": "rte", "limit": 8, "settings": settings, "out": store}
    api.build_store(recipe="layerwise-3", teacher=tiny_teacher, **options)
    words = ("compare", tmp_path / "grid.toml", "--data", "pocket", "--store", store, "--out", out)
    both = mtkd(*words)
    assert both.code == 2 and both.err.startswith("error: 2 cells cannot learn from the knowledge store:\n")
    assert f"\n  cell 'tiny': the store {store} lacks what tinybert-4 needs: " in both.err
    assert f"\n  cell 'longer': the store {store} was built with at most 24 tokens" in both.err
    assert "leave these cells out with --without" in both.err and not out.exists()
    one = mtkd(*words, "--without", "longer")
    assert one.code == 2 and one.err.startswith("error: cell 'tiny': the store ") and not out.exists()
