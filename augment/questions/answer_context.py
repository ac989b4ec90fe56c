"""The sentence of a context that contains an answer, and the context without that sentence."""

from __future__ import annotations

from augment.questions.sentences import sentence_spans


def sentences_around(context: str, start: int, stop: int, neighbours: int = 0) -> str:
    """The sentence or sentences that contain the characters from `start` to `stop`.

    Args:
        neighbours: number of further sentences to include on each side.
    """
    spans = sentence_spans(context)
    first, last = _containing(spans, start, stop)
    first, last = max(0, first - neighbours), min(len(spans) - 1, last + neighbours)
    return context[spans[first][0] : spans[last][1]]


def remove_sentences(context: str, start: int, stop: int) -> str:
    """The context without the sentence of those characters; "" if nothing is left."""
    spans = sentence_spans(context)
    first, last = _containing(spans, start, stop)
    return " ".join(context[a:b] for a, b in [*spans[:first], *spans[last + 1 :]])


def _containing(spans: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    """The first and last sentence that overlap the characters, which must not all be spaces."""
    overlapping = [number for number, (first, end) in enumerate(spans) if first < stop and start < end]
    return overlapping[0], overlapping[-1]
