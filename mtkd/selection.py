"""Which part of a teacher's hidden states is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tasks.errors import UserError

TokenRule = Literal["left", "att", "att-no-sep", "att-last-no-sep"]
UnitRule = Literal["magnitude", "uniform", "random"]


@dataclass(frozen=True)
class Selection:
    """Which part of hidden states is kept (Liu et al. 2021, section 4).

    Attributes:
        tokens: N_L, the most tokens kept of a row; None = all.
        by: which: the first (`left`), or those that [CLS] attends to most, [SEP] among them (`att`) or not.
        width: N_W, the share of the activations kept, 0 < N_W <= 1.
        units: which: the largest of each vector (`magnitude`), or the same of all vectors.
        scored: (layer, layer whose attention ranks its tokens) where attention does.
    """

    tokens: int | None = None
    by: TokenRule = "att-last-no-sep"
    width: float = 1.0
    units: UnitRule = "magnitude"
    scored: tuple[tuple[int, int], ...] = ()

    @property
    def ranked(self) -> bool:
        """True if attention says which tokens are kept."""
        return self.tokens is not None and self.by != "left"

    @property
    def without_ends(self) -> bool:
        """True if [SEP] is never kept."""
        return self.ranked and self.by != "att"

    def kept_units(self, width: int) -> int:
        """How many activations are kept of a vector of `width`; one or more."""
        return max(1, min(width, round(self.width * width)))

    def covers(self, other: Selection) -> bool:
        """True if `other` can be taken out of what is kept here."""
        if other.tokens is None:
            tokens = self.tokens is None
        elif not other.ranked:
            tokens = self.tokens is None or (self.by == "left" and other.tokens <= self.tokens)
        else:
            ranks = dict(self.scored)
            alike = self.by == other.by and all(ranks.get(layer) == of for layer, of in other.scored)
            tokens = self.ranked and alike and self.tokens is not None and other.tokens <= self.tokens
        same = self.units == other.units
        narrower = other.width <= self.width if self.units == "magnitude" else other.width == self.width
        return tokens and (self.width == 1 or (same and narrower))

    def joined(self, other: Selection) -> Selection:
        """One selection for what two terms ask for.

        Raises:
            UserError: they differ in more than the layers they rank by.
        """
        if replace(self, scored=()) != replace(other, scored=()):
            raise UserError(
                "two terms keep different parts of the teacher's hidden states: "
                f"{self.describe()}, and {other.describe()}",
                hint="give their tokens, by, width and units the same values",
            )
        return replace(self, scored=tuple(sorted({*self.scored, *other.scored})))

    def describe(self) -> str:
        """In words, for messages."""
        tokens = "all tokens" if self.tokens is None else f"{self.tokens} tokens by {self.by}"
        return f"{tokens}, {self.width:g} of the width" + ("" if self.width == 1 else f" by {self.units}")
