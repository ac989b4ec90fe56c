"""`mtkd push` and `mtkd pull`."""

from __future__ import annotations

from pathlib import Path

import click

import mtkd
from mtkd.cli.options import PATH, say


@click.command()
@click.argument("source", type=PATH, metavar="DIR")
@click.argument("name")
@click.option("--private", is_flag=True, help="if NAME does not exist yet, create it as a private repository")
def push(source: Path, name: str, private: bool) -> None:
    """Upload the model, export or corpus in DIR, with its card, to the Hugging Face hub as NAME.

    First log in with `hf auth login`, or set HF_TOKEN.
    """
    say(f"uploaded to {mtkd.push(source, name, private=private)}")


@click.command()
@click.argument("name")
@click.option("--out", required=True, type=PATH, metavar="DIR", help="the output directory")
@click.option("--revision", help="a branch, tag or commit  [default: the newest]")
def pull(name: str, out: Path, revision: str | None) -> None:
    """Download the model, export or corpus NAME from the Hugging Face hub."""
    say(f"downloaded to {mtkd.pull(name, out=out, revision=revision)}")
