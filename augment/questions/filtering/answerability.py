"""What a teacher of extractive question answering says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.errors import UserError

_BATCH = 64  # questions shown to the teacher at once
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Answer:
    """The best answer to a question in its context.

    Attributes:
        text: the answer; "" = none.
        start: its first character in the context; -1 = none.
        score: start logit + end logit of the best span.
        null: the same of "no answer".
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
        """How far the best span beats "no answer"."""
        return self.score - self.null

    def found(self, least: float) -> bool:
        """True if there is an answer that beats "no answer" by more than `least`."""
        return self.text.strip() != "" and self.margin > least

    def refused(self, least: float) -> bool:
        """True if "no answer" wins, by `least` at least where that is above 0."""
        return self.margin <= -max(least, 0.0)


class Answerer(Protocol):
    """A teacher that answers questions."""

    @property
    def digest(self) -> str:
        """Of all that decides the answers: weights, tokeniser, settings."""

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """The answer to each question in its own context."""


def ask(answerer: Answerer, questions: Sequence[str], contexts: Sequence[str]) -> Iterator[Answer]:
    """The teacher's answers in order, asked for in batches of fixed size.

    Raises:
        UserError: an answer that does not stand where the teacher says.
    """
    for start in range(0, len(questions), _BATCH):
        part = slice(start, start + _BATCH)
        answers = answerer(questions[part], contexts[part])
        for question, context, answer in zip(questions[part], contexts[part], answers, strict=True):
            if answer.text and (answer.start < 0 or not context.startswith(answer.text, answer.start)):
                raise UserError(
                    f"the teacher's answer {answer.text!r} to {question!r} does not stand at character "
                    f"{answer.start} of the context {context[:60]!r}...",
                    hint="this is a fault of the teacher's decoding, not of the corpus",
                )
            yield answer


def words_of(text: str) -> list[str]:
    """The words of a text without case and punctuation."""
    return _WORD.findall(text.casefold())
