"""`mtkd compare --dry-run`: print the commands of one grid or of all grids, or one command per grid."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.cli.flags import as_options
from mtkd.cli.options import echo, say
from mtkd.jobs.grid.grid_checks import check_given_paths, refuse_unused
from mtkd.jobs.grid.grid_plan import PlannedRun, plan_runs
from mtkd.jobs.grid.placeholders import fill_placeholders
from tasks.common.errors import UserError, counted


def print_grid(name: str, options: Mapping[str, Any]) -> None:
    """Print the commands of a grid's runs, and which of their words are placeholders for missing options.

    Args:
        options: the arguments of `mtkd.compare`; `out` may be None.
    """
    planned, hints = _plan(name, options, out=options["out"] or Path(Path(name).stem), only_grid=True)
    for command in _commands(planned):
        echo(command)
    _print_notes(planned, hints, without_out=options["out"] is None)


def print_all_grids(options: Mapping[str, Any], *, one_command: bool) -> None:
    """Print, for each built-in grid, what it reproduces and its commands, or why it cannot run.

    Args:
        options: the arguments of `mtkd.compare`; `out` may be None.
        one_command: whether to print one command that runs the grid, instead of the commands of its runs.

    Raises:
        UserError: no grid can run with these options.
    """
    from mtkd.grids import grid_names, load_grid

    blocks: list[str] = []
    all_runs: list[PlannedRun] = []
    all_hints: dict[str, str] = {}
    refused: list[UserError] = []
    for name in grid_names():
        grid, out = load_grid(name, {}, {}), (options["out"] or Path()) / name
        description = f"{grid.title}; {grid.source}"
        try:
            planned, hints = _plan(name, options, out=out)
        except UserError as error:
            refused.append(error)
            blocks.append(f"# {name}: {description}\n{as_options(_why_not(error))}")
            continue
        all_runs += planned
        all_hints |= {key: all_hints.get(key, hint) for key, hint in hints.items()}
        commands = _commands(planned)
        if one_command:
            commands = [shlex.join(["mtkd", *_words_for_grid(sys.argv[1:], name, [*hints], out)])]
        runs = counted(len(_commands(planned)), "run")
        blocks.append("\n".join([f"# {name} ({runs}): {description}", *commands]))
    none_left = len(refused) == len(blocks)
    if none_left and len({error.problem for error in refused}) == 1:
        raise refused[0]
    echo("\n\n".join(blocks))
    if none_left:
        raise UserError("no built-in grid can run with these options", hint="the reasons are above")
    _print_notes([] if one_command else all_runs, all_hints, without_out=options["out"] is None)
    if one_command:
        say("\nadd --dry-run to print the commands of one grid; `mtkd compare all --dry-run` prints all")


def _why_not(error: UserError) -> str:
    """The error of a grid as comments of a shell script."""
    hint = f" ({error.hint})" if error.hint else ""
    return "# cannot run with these options: " + "\n#   ".join(
        map(str.strip, f"{error.problem}{hint}".splitlines())
    )


def _plan(
    name: str, options: Mapping[str, Any], *, out: Path, only_grid: bool = False
) -> tuple[list[PlannedRun], dict[str, str]]:
    """The runs of a grid, and for each missing input the hint that says how to pass it.

    Args:
        only_grid: whether an input that this grid does not use is an error.
    """
    from mtkd.api.grid_runs import plan_grid

    grid, inputs = plan_grid(name, **{**options, "out": out})
    check_given_paths(grid, inputs)
    if only_grid:
        refuse_unused(grid, inputs)
    inputs, hints = fill_placeholders(grid, inputs)
    return plan_runs(grid, inputs), hints


def _commands(planned: Sequence[PlannedRun]) -> list[str]:
    """The command lines of some runs, without duplicates."""
    jobs = dict.fromkeys(job for run in planned for job in run.jobs)
    return [f"mtkd {shlex.join(job.command)}" for job in jobs]


def _print_notes(planned: Sequence[PlannedRun], hints: Mapping[str, str], *, without_out: bool) -> None:
    """Explain the placeholders in the commands."""
    for name, hint in hints.items():
        say(f"{name.upper()} is a placeholder: for a run, {as_options(hint)}")
    if without_out:
        say("the directory is named after the grid: for a run, pass --out DIR")
    if any("--steps 'STEPS OF " in command for command in _commands(planned)):
        say(
            "'STEPS OF DIR' is the number of steps of the run in DIR, which is known once it has finished; a "
            "command for some of its tasks gets the share of these tasks"
        )


def _words_for_grid(words: Sequence[str], name: str, missing: Sequence[str], out: Path) -> list[str]:
    """Change the arguments of a dry run of all grids to those that run one grid in its own directory.

    Args:
        words: the arguments of `mtkd`.
        missing: options that the grid needs and that are not among them.
    """
    command, *given = [word for word in words if word != "--dry-run"]
    positions = [n for n, word in enumerate(given) if word == "--out" or word.startswith("--out=")]
    for position in reversed(positions):
        del given[position : position + (2 if given[position] == "--out" else 1)]
    placeholders = [word for option in missing for word in (f"--{option}", option.upper())]
    return [command, name, *given, *placeholders, "--out", str(out)]
