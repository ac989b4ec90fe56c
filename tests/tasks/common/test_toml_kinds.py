"""TOML files of the wrong kind are recognised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtkd.grids import load_grid
from mtkd.pipelines.pipeline_file import read_pipeline
from mtkd.recipes import load_settings
from tasks.common.errors import UserError
from tasks.task_file import load_task

FILES = {
    "grid": 'title = ""\nrecipe = "mkd-lstm"\ntasks = ["rte"]\n[cells.a]\n',
    "pipeline": 'data = "pocket"\n[steps.teacher]\ncommand = "refine"\n',
    "task file": 'name = "own"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["a", "b"]\n',
    "recipe": 'command = "distill"\nextends = "mkd-lstm"\n',
}
READERS: dict[str, Callable[[str], object]] = {
    "grid": lambda file: load_grid(file, {}, {}),
    "pipeline": read_pipeline,
    "task file": lambda file: load_task(Path(file)),
    "recipe": lambda file: load_settings(file, "distill", {}),
}


@pytest.mark.parametrize("wanted", READERS)
@pytest.mark.parametrize("given", FILES)
def test_a_toml_file_of_the_wrong_kind_is_named(given: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(FILES[given])
    if given == wanted:
        READERS[wanted](str(file))
        return
    with pytest.raises(UserError, match=rf"file\.toml is a {given}, not a {wanted}") as error:
        READERS[wanted](str(file))
    assert error.value.hint
