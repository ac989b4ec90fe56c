"""The paragraphs that questions are generated from, selected in little memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from augment.questions.generation.paragraphs import (
    Counts,
    Paragraph,
    Words,
    as_rows,
    paragraphs_of,
    select_paragraphs,
)
from augment.questions.rules.generate import is_english
from tasks.data.rows import Rows, concat

_CHUNK = 4096  # paragraphs held as Python objects


class ParagraphFilter(Protocol):
    """Drops the paragraphs that a kind of generator cannot use; must be picklable."""

    def __call__(self, paragraphs: list[Paragraph]) -> tuple[list[Paragraph], Counts]:
        """The usable paragraphs, and only the counts of those that were left out or shortened."""


@dataclass(frozen=True)
class EnglishOnly:
    """Drops paragraphs in other languages, for the rules."""

    def __call__(self, paragraphs: list[Paragraph]) -> tuple[list[Paragraph], Counts]:
        """The English paragraphs, and how many others there are."""
        english = [paragraph for paragraph in paragraphs if is_english(paragraph.text)]
        return english, Counts(not_english=len(paragraphs) - len(english))


@dataclass(frozen=True)
class ParagraphSelection:
    """Which paragraphs are used. Each one is judged alone, so that any process can select some of them.

    Attributes:
        words: the allowed word count; None = any.
        usable: drops those that the generator cannot use; None = it can use all.
    """

    words: Words | None = None
    usable: ParagraphFilter | None = None

    def select(self, paragraphs: Iterable[Paragraph]) -> tuple[list[Paragraph], Counts]:
        """The selected paragraphs or pieces of them, in order."""
        chosen, counts = select_paragraphs(paragraphs, self.words)
        if self.usable is None:
            return chosen, counts
        kept, left_out = self.usable(chosen)
        return kept, replace(counts + left_out, kept=len(kept))

    def rows(self, task: str, paragraphs: Iterator[Paragraph], limit: int | None) -> tuple[Rows, Counts]:
        """The selected paragraphs as rows, which are memory-mapped if there are many.

        Args:
            limit: maximum number of paragraphs, a random subset of those with an allowed word count.
        """
        if limit is None:
            return _collect(self, task, paragraphs)
        rows, counts = _collect(replace(self, usable=None), task, paragraphs)
        if limit < len(rows):
            rows = rows.take(np.sort(np.random.default_rng(0).choice(len(rows), limit, replace=False)))
        if self.usable is None:
            return rows, counts
        rows, left = _collect(replace(self, words=None), task, paragraphs_of(rows))
        left_out = {name: getattr(left, name) for name in ("shortened", "too_long", "not_english", "kept")}
        return rows, replace(counts, **left_out)


def _collect(
    selection: ParagraphSelection, task: str, paragraphs: Iterator[Paragraph]
) -> tuple[Rows, Counts]:
    total = Counts()

    def parts() -> Iterator[Rows]:
        nonlocal total
        yield as_rows(task, [])
        while chunk := list(itertools.islice(paragraphs, _CHUNK)):
            chosen, counts = selection.select(chunk)
            total += counts
            yield as_rows(task, chosen)

    return concat(parts()), total
