"""`mtkd augment` and `mtkd augment questions`: their commands."""

from __future__ import annotations

import click

from mtkd.cli.lazy_group import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "mask": ("mtkd.cli.augment_copies:mask", "copies of rows with masked words"),
        "replace": ("mtkd.cli.augment_copies:replace", "copies with masked or replaced words, and n-grams"),
        "contextual": (
            "mtkd.cli.augment_copies:contextual",
            "copies with words that a masked language model suggests",
        ),
        "run": ("mtkd.cli.augment_copies:run_augmenter", "copies by any augmenter, plugins included"),
        "questions": (
            "mtkd.cli.augment_group:questions",
            "`train|generate|filter`: questions about paragraphs",
        ),
    },
)
def augment() -> None:
    """Generate training text: corpora of unlabelled rows, for a teacher to label."""


@click.group(
    cls=LazyGroup,
    lazy={
        "train": ("mtkd.cli.augment_questions_train:train", "fine-tune a T5 to write questions"),
        "generate": ("mtkd.cli.augment_questions_generate:generate", "write questions about paragraphs"),
        "filter": (
            "mtkd.cli.augment_questions_filter:filter_questions",
            "keep the questions that a teacher can answer",
        ),
    },
)
def questions() -> None:
    """Generate questions about paragraphs, for a teacher to answer (WaLDORf)."""
