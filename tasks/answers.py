"""Answers of a model of extractive question answering, and what gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """The best answer to a question in its context.

    Attributes:
        text: the answer; "" = none.
        start: its first character in the context; -1 = none.
        score: start logit + end logit of the best span.
        null: the score of "no answer", minus the threshold that was best on validation rows.
    """

    text: str
    start: int
    score: float
    null: float

    @property
    def stop(self) -> int:
        """The character after its last."""
        return self.start + len(self.text)

    @property
    def margin(self) -> float:
        """By how much the best span beats "no answer"."""
        return self.score - self.null

    def found(self, least: float) -> bool:
        """True if there is an answer that beats "no answer" by more than `least`."""
        return self.text.strip() != "" and self.margin > least

    def refused(self, least: float) -> bool:
        """True if "no answer" wins, by at least `least` where that is above 0."""
        return self.margin <= -max(least, 0.0)


class Answerer(Protocol):
    """A teacher that answers questions."""

    @property
    def digest(self) -> str:
        """Of everything that decides the answers: weights, tokeniser, settings."""

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """The answer to each question in its own context."""
