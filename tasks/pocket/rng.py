"""Random draws that are equal on every machine and Python version, and the type of a generated row."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Option = TypeVar("Option")


@dataclass(frozen=True)
class GeneratedRow:
    """One generated row: its texts (one or two) and its label (a class id, or a score)."""

    texts: tuple[str, ...]
    label: float


class Rng:
    """Random draws based only on `Random.random()`, whose sequence Python guarantees to stay the same."""

    def __init__(self, seed: str):
        self._random = random.Random(seed).random

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        return int(self._random() * n)

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self._random() < p

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options."""
        return options[self.below(len(options))]

    def sample(self, options: Sequence[Option], k: int) -> list[Option]:
        """k different options in random order."""
        remaining = list(options)
        return [remaining.pop(self.below(len(remaining))) for _ in range(k)]

    def other(self, options: Sequence[Option], *taken: Option) -> Option:
        """One of the options that is not in `taken`."""
        return self.pick([option for option in options if option not in taken])


Maker = Callable[[Rng, int], GeneratedRow]
"""Draws one row with the requested label (stsb: with the requested number of edits)."""
