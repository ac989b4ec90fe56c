"""`mtkd augment`: its commands."""

from __future__ import annotations

import click

from mtkd.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "mask": ("mtkd.cli.copies:mask", "copies of rows with words masked"),
        "questions": ("mtkd.cli.questions:questions", "`train|generate`: questions about paragraphs"),
    },
)
def augment() -> None:
    """Make training text: corpora of unlabelled rows, for a teacher to label."""
