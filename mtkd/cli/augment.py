"""`mtkd augment`: its commands."""

from __future__ import annotations

import click

from mtkd.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "mask": ("mtkd.cli.copies:mask", "copies of rows with words masked"),
        "replace": ("mtkd.cli.copies:replace", "copies with words masked or replaced, and n-grams of them"),
        "questions": ("mtkd.cli.questions:questions", "`questions filter`: questions a teacher can answer"),
    },
)
def augment() -> None:
    """Make training text: corpora of unlabelled rows, for a teacher to label."""
