"""Placeholders such as TEACHER, which a dry run prints in place of missing inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtkd.grids import Grid
from mtkd.jobs.grid.grid_checks import missing_inputs
from mtkd.jobs.grid.grid_jobs import GridInputs


def fill_placeholders(grid: Grid, inputs: GridInputs) -> tuple[GridInputs, dict[str, str]]:
    """Replace each input that the grid needs and that is missing by a placeholder such as TEACHER.

    Commands with placeholders can be printed, but not run.

    Returns:
        The inputs with placeholders; and for each missing attribute, a hint that says how to give it.
    """
    missing = missing_inputs(grid, inputs)
    words: dict[str, Any] = {name: name.upper() for name in missing}
    if "text" in words:
        words["text"] = Path(words["text"])
    hints = {name: error.hint or "" for name, error in missing.items()}
    if {"teacher", "encoder"} <= hints.keys():
        hints["encoder"] += ", or leave it out to use the one that the teacher started from"
    return replace(inputs, **words), hints


def placeholder_notes(commands: Iterable[str], hints: Mapping[str, str], *, without_out: bool) -> list[str]:
    """What the placeholders in some command lines stand for.

    Args:
        hints: for each missing input, how to give it, as `fill_placeholders` returns them.
        without_out: whether the directory of the comparison is missing.
    """
    notes = [f"{name.upper()} is a placeholder: for a run, {hint}" for name, hint in hints.items()]
    if without_out:
        notes.append("the directory is named after the grid: for a run, pass `out='DIR'`")
    if any("--steps 'STEPS OF " in command for command in commands):
        notes.append(
            "'STEPS OF DIR' is the number of steps of the run in DIR, which is known once it has finished; a "
            "command for some of its tasks gets the share of these tasks"
        )
    return notes
