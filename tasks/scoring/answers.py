"""Answers of an extractive question-answering model, and the interface of such models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """The best answer to a question in its context.

    Attributes:
        text: the answer; "" if there is none.
        start: offset of its first character in the context; -1 if there is none.
        score: start logit plus end logit of the best span.
        null: the score of "no answer" minus the threshold tuned on the validation rows.
    """

    text: str
    start: int
    score: float
    null: float

    @property
    def stop(self) -> int:
        """Offset of the character after the answer."""
        return self.start + len(self.text)

    @property
    def margin(self) -> float:
        """How much higher the best span scores than "no answer"."""
        return self.score - self.null

    def found(self, min_margin: float) -> bool:
        """True if there is an answer that beats "no answer" by more than `min_margin`."""
        return self.text.strip() != "" and self.margin > min_margin

    def refused(self, min_margin: float) -> bool:
        """True if "no answer" wins; by a margin of at least `min_margin` if that is positive."""
        return self.margin <= -max(min_margin, 0.0)


class Answerer(Protocol):
    """A teacher that answers questions."""

    @property
    def digest(self) -> str:
        """A digest of everything that determines the answers: weights, tokeniser, settings."""

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """Answer each question in the context at the same index."""
