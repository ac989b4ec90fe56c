"""`mtkd augment questions`: its commands."""

from __future__ import annotations

import click

from mtkd.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "filter": (
            "mtkd.cli.questions_filter:filter_questions",
            "keep the questions that a teacher can answer",
        ),
    },
)
def questions() -> None:
    """Make questions about paragraphs, for a teacher to answer."""
