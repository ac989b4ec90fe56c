"""Checks of the file for --json: it may replace an earlier result, but nothing that a command uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mtkd.output_files.path_overlap import files_of_toml, named_paths, refuse_overlap
from tasks.common.errors import UserError
from tasks.common.files import check_output_file
from tasks.common.reading import read_small_file, real_path
from tasks.common.records import CHECK

# Arguments that name no input.
_OUTPUTS = ("json_file", "out", "predictions", "folder")
# Commands that only add files to --out, which may also hold others.
_SHARED = ("init", "compare", "knowledge", "plan")


def require_result_file(file: Path) -> None:
    """Check that a file can be written, and that it does not exist, is empty, or holds an earlier result.

    Raises:
        UserError: it is a directory, or holds something other than the JSON that --json writes.
    """
    check_output_file(file)
    if not file.is_file():
        return
    expected = "a new file, or one that --json has written"
    raw = read_small_file(file)
    try:
        values = json.loads(raw) if raw.strip() else None
    except (ValueError, RecursionError) as error:
        problem = f"--json {file} would overwrite a file that is not JSON"
        raise UserError(problem, expected=expected) from error
    if isinstance(values, dict) and CHECK in values:
        raise UserError(f"--json {file} would overwrite a record of mtkd", expected=expected)


def check_json_target(command: click.Command, params: dict[str, Any]) -> None:
    """Check the file for --json, given all parameters of the command.

    Raises:
        UserError: see `require_result_file`; also if the command reads the file, or writes it in other ways.
    """
    target = params.get("json_file")
    if target in (None, "-"):
        return
    file = Path(target)
    require_result_file(file)
    inputs = {name: value for name, value in params.items() if name not in _OUTPUTS}
    refuse_overlap("json", file, inputs | {"data": [inputs.get("data"), *_files_in_toml(inputs)]})
    out = params.get("out")
    if out is not None and command.name not in _SHARED and _is_inside(file, Path(out)):
        raise UserError(
            f"--json {file} lies inside --out {out}, which the command writes itself",
            expected="a file outside of it",
            hint=f"--json {Path(out).absolute().name}.json",
        )


def _files_in_toml(inputs: dict[str, Any]) -> Iterator[Path]:
    """The files that task files, recipes, grids and pipelines name."""
    for name, value in inputs.items():
        for path in named_paths(name, value):
            if path.suffix == ".toml":
                yield from files_of_toml(path)


def _is_inside(file: Path, out: Path) -> bool:
    path, directory = real_path(file), real_path(out)
    return directory in (path, *path.parents)
