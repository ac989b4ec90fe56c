"""`mtkd augment`: its commands."""

from __future__ import annotations

import click

from mtkd.cli.lazy_group import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "mask": ("mtkd.cli.augment_copies:mask", "copies of rows with words masked"),
        "replace": (
            "mtkd.cli.augment_copies:replace",
            "copies with words masked or replaced, and n-grams of them",
        ),
        "run": ("mtkd.cli.augment_copies:run_augmenter", "copies by an augmenter of another package"),
        "questions": (
            "mtkd.cli.augment_group:questions",
            "`train|generate|filter`: questions about paragraphs",
        ),
    },
)
def augment() -> None:
    """Make training text: corpora of unlabelled rows, for a teacher to label."""


@click.group(
    cls=LazyGroup,
    lazy={
        "train": (
            "mtkd.cli.augment_questions:train",
            "a T5 learns to ask, from the questions of a span task",
        ),
        "generate": ("mtkd.cli.augment_questions:generate", "it asks about plain paragraphs"),
        "filter": ("mtkd.cli.augment_filter:filter_questions", "what a teacher can answer is kept"),
    },
)
def questions() -> None:
    """Questions about plain paragraphs, written by a T5 and answered by a teacher (WaLDORf)."""
