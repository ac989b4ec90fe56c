"""Which part of a teacher's hidden states is kept for a student to learn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from tasks.common.errors import UserError
from tasks.common.records import Layer, Record, Seed, Size

TokenRule = Literal["left", "att", "att-no-sep", "att-last-no-sep"]
ActivationRule = Literal["magnitude", "uniform", "random"]


@dataclass(frozen=True)
class Selection(Record):
    """Which part of the hidden states is kept (Liu et al. 2021, section 4).

    Attributes:
        tokens: N_L, how many tokens are kept per row at most; None = all.
        token_selection: which tokens are kept: the first (`left`), or those that [CLS] attends to most,
            including [SEP] (`att`) or excluding it (the other rules).
        width: N_W, the fraction of the activations kept, 0 < N_W <= 1.
        activation_selection: which activations are kept: the largest of each vector (`magnitude`), or the
            same ones in all vectors (`uniform`, `random`).
        scored: (layer, layer whose attention ranks its tokens) pairs, for rules that use attention.
        seed: the seed of `random` (`train.seed`); None for the other rules, and in stores of format 3, which
            all keep the same activations.
    """

    tokens: Size | None = None
    token_selection: TokenRule = "att-last-no-sep"
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    activation_selection: ActivationRule = "magnitude"
    scored: tuple[tuple[Layer, Layer], ...] = ()
    seed: Seed | None = None

    @property
    def ranked(self) -> bool:
        """True if attention decides which tokens are kept."""
        return self.tokens is not None and self.token_selection != "left"

    @property
    def excludes_sep(self) -> bool:
        """True if [SEP] is never kept."""
        return self.ranked and self.token_selection != "att"

    def n_kept_activations(self, size: int) -> int:
        """How many activations of a vector of this size are kept; at least one."""
        return max(1, min(size, round(self.width * size)))

    def covers(self, other: Selection) -> bool:
        """True if everything that `other` keeps is also kept by this selection."""
        if other.tokens is None:
            tokens = self.tokens is None
        elif not other.ranked:
            tokens = self.tokens is None or (self.token_selection == "left" and other.tokens <= self.tokens)
        else:
            ranks = dict(self.scored)
            same_ranking = self.token_selection == other.token_selection and all(
                ranks.get(layer) == ranked_by for layer, ranked_by in other.scored
            )
            tokens = self.ranked and same_ranking and self.tokens is not None and other.tokens <= self.tokens
        same_rule = (self.activation_selection, self.seed) == (other.activation_selection, other.seed)
        narrower = (
            other.width <= self.width
            if self.activation_selection == "magnitude"
            else other.width == self.width
        )
        return tokens and (self.width == 1 or (same_rule and narrower))

    def joined(self, other: Selection) -> Selection:
        """Combine the selections of two terms.

        Raises:
            UserError: they differ in more than the layers whose attention ranks the tokens.
        """
        if replace(self, scored=()) != replace(other, scored=()):
            raise UserError(
                "two terms keep different parts of the teacher's hidden states: "
                f"{self.describe()}, and {other.describe()}",
                hint="use the same tokens, token_selection, width and activation_selection in both terms",
            )
        return replace(self, scored=tuple(sorted({*self.scored, *other.scored})))

    def describe(self) -> str:
        """Describe the selection in words, for messages."""
        tokens = "all tokens" if self.tokens is None else f"{self.tokens} tokens by {self.token_selection}"
        seed = "" if self.seed is None else f" (seed {self.seed})"
        rule = "" if self.width == 1 else f" by {self.activation_selection}{seed}"
        return f"{tokens}, {self.width:g} of the width{rule}"
