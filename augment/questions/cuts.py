"""Contexts cut at the sentence of an answer: what is around it, and what is left without it."""

from __future__ import annotations

from augment.questions.answers import Answer
from augment.questions.sentences import sentences

_NEIGHBOURS = 1  # sentences kept on each side


def around(context: str, answer: Answer) -> str:
    """The answer's sentence with a neighbour on each side."""
    spans = _spans(context)
    first, last = _holding(spans, answer)
    start, end = max(0, first - _NEIGHBOURS), min(len(spans) - 1, last + _NEIGHBOURS)
    return context[spans[start][0] : spans[end][1]]


def without(context: str, answer: Answer) -> str:
    """The context without the answer's sentence; "" if nothing is left."""
    spans = _spans(context)
    first, last = _holding(spans, answer)
    return " ".join(context[start:end] for start, end in [*spans[:first], *spans[last + 1 :]])


def _spans(context: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    spans, end = [], 0
    for sentence in sentences(context):
        start = context.index(sentence, end)
        end = start + len(sentence)
        spans.append((start, end))
    return spans


def _holding(spans: list[tuple[int, int]], answer: Answer) -> tuple[int, int]:
    """The first and last sentence that an answer, which is not empty, lies in."""
    stop = answer.start + len(answer.text)
    held = [number for number, (start, end) in enumerate(spans) if start < stop and answer.start < end]
    return held[0], held[-1]
