"""`mtkd compare --dry-run`: print the commands of one grid or of all grids, or one command per grid."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.cli.flags import as_options
from mtkd.cli.options import echo, say
from mtkd.jobs.grid.grid_plan import PlannedRun
from mtkd.jobs.grid.placeholders import placeholder_notes
from tasks.common.errors import UserError, counted


def print_grid(name: str, options: Mapping[str, Any]) -> None:
    """Print the commands of a grid's runs, and which of their words are placeholders for missing options.

    Args:
        options: the arguments of `mtkd.compare`; `out` may be None.
    """
    from mtkd.api.grid_runs import plan_dry_run

    out = options["out"] or Path(Path(name).stem)
    planned, hints = plan_dry_run(name, options, out=out, only_grid=True)
    commands = _commands(planned)
    for command in commands:
        echo(command)
    _print_notes(commands, hints, without_out=options["out"] is None)


def print_all_grids(options: Mapping[str, Any], *, one_command: bool) -> None:
    """Print, for each built-in grid, what it reproduces and its commands, or why it cannot run.

    Args:
        options: the arguments of `mtkd.compare`; `out` may be None.
        one_command: whether to print one command that runs the grid, instead of the commands of its runs.

    Raises:
        UserError: no grid can run with these options.
    """
    from mtkd.api.grid_runs import plan_dry_run
    from mtkd.grids import grid_names, load_grid

    blocks: list[str] = []
    all_commands: list[str] = []
    all_hints: dict[str, str] = {}
    refused: list[UserError] = []
    for name in grid_names():
        grid, out = load_grid(name, {}, {}), (options["out"] or Path()) / name
        description = f"{grid.title}; {grid.source}"
        try:
            planned, hints = plan_dry_run(name, options, out=out)
        except UserError as error:
            refused.append(error)
            blocks.append(f"# {name}: {description}\n{as_options(_why_not(error))}")
            continue
        commands = _commands(planned)
        runs = counted(len(commands), "run")
        all_hints |= {key: all_hints.get(key, hint) for key, hint in hints.items()}
        if one_command:
            commands = [shlex.join(["mtkd", *_words_for_grid(sys.argv[1:], name, [*hints], out)])]
        else:
            all_commands += commands
        blocks.append("\n".join([f"# {name} ({runs}): {description}", *commands]))
    none_left = len(refused) == len(blocks)
    if none_left and len({error.problem for error in refused}) == 1:
        raise refused[0]
    echo("\n\n".join(blocks))
    if none_left:
        raise UserError("no built-in grid can run with these options", hint="the reasons are above")
    _print_notes(all_commands, all_hints, without_out=options["out"] is None)
    if one_command:
        say("\nadd --dry-run to print the commands of one grid; `mtkd compare all --dry-run` prints all")


def _why_not(error: UserError) -> str:
    """The error of a grid as comments of a shell script."""
    hint = f" ({error.hint})" if error.hint else ""
    return "# cannot run with these options: " + "\n#   ".join(
        map(str.strip, f"{error.problem}{hint}".splitlines())
    )


def _commands(planned: Sequence[PlannedRun]) -> list[str]:
    """The command lines of some runs, without duplicates."""
    jobs = dict.fromkeys(job for run in planned for job in run.jobs)
    return [job.command_line for job in jobs]


def _print_notes(commands: Sequence[str], hints: Mapping[str, str], *, without_out: bool) -> None:
    """Explain the placeholders in the commands."""
    for note in placeholder_notes(commands, hints, without_out=without_out):
        say(as_options(note))


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
