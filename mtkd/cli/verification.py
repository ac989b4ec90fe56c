"""`mtkd verify`."""

from __future__ import annotations

from pathlib import Path

import click

import mtkd
from mtkd.cli.options import PATH, echo, report_options, show
from tasks.common.errors import UserError


@click.command()
@click.argument("place", type=PATH, metavar="DIR")
@report_options
def verify(place: Path, json_file: str | None) -> None:
    """Compare the files in DIR with their recorded digests.

    DIR is a run, model, corpus, store, export or question generator, or a directory with several of these.

    Damaged shards of a store can be rebuilt with `mtkd store build --repair --out DIR`.
    """
    result = mtkd.verify(place)

    def draw() -> None:
        for file, state in result.damaged.items():
            echo(f"{file} {state}")
        echo(f"{result.files - len(result.damaged):,} of {result.files:,} files are intact")

    show(result.to_json(), json_file, draw)
    if result.damaged:
        others = f" and {len(result.damaged) - 1} more" if len(result.damaged) > 1 else ""
        file, state = next(iter(result.damaged.items()))
        raise UserError(f"{file} {state}{others}", hint=result.hints[file])
