"""The reasons for dropping a question, and the checks that need no teacher."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum

from augment.questions.filtering.answerability import words_of

_SHORTEST = 3  # minimum number of words in a question
_GRAM = 3  # length of the n-grams compared with the context
_WORDS = frozenset(("who", "whom", "whose", "what", "when", "where", "which", "why", "how"))
_MARKS = frozenset("?？؟")


class Reason(StrEnum):
    """Why a question was dropped, in the order of the checks."""

    NO_QUESTION = "not a question"
    REPEATED = "repeated for the same paragraph"
    ELSEWHERE = "repeated from another paragraph"
    COPIED = "copied from the context"
    NO_ANSWER = "the teacher finds no answer"
    ROUND_TRIP = "different answer in the round trip"


class Seen:
    """The questions seen so far, to find repetitions (ignoring case and punctuation)."""

    def __init__(self) -> None:
        self._questions: set[bytes] = set()
        self._pairs: set[bytes] = set()  # digests of a question and its paragraph

    def check(self, question: str, parent: str) -> Reason | None:
        """Check whether the question was seen before, for this paragraph or for another one."""
        key = _digest(" ".join(words_of(question)))
        pair = _digest(parent, key)
        repeated, elsewhere = pair in self._pairs, key in self._questions
        self._questions.add(key)
        self._pairs.add(pair)
        if repeated:
            return Reason.REPEATED
        return Reason.ELSEWHERE if elsewhere else None


def is_question(text: str) -> bool:
    """True if a text has at least three words, and a question mark or a question word (who, what, ...)."""
    words = words_of(text)
    return len(words) >= _SHORTEST and not (_MARKS.isdisjoint(text) and _WORDS.isdisjoint(words))


def copied_share(question: Sequence[str], context: Sequence[str]) -> float:
    """The share of the question's trigrams that occur in the context; 1 if it is an excerpt of it.

    Args:
        question, context: words, from `words_of`.
    """
    size = min(_GRAM, len(question))
    runs = _runs(question, size)
    if not runs:
        return 0.0
    context_runs = set(_runs(context, size))
    return sum(run in context_runs for run in runs) / len(runs)


def _runs(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[start:] for start in range(size)), strict=False))


def _digest(text: str, more: bytes = b"") -> bytes:
    return hashlib.blake2b(text.encode() + more, digest_size=16).digest()
