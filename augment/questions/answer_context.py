"""Contexts cut at the sentence of an answer: what is around it, and what is left without it."""

from __future__ import annotations

from augment.questions.sentences import places


def around(context: str, start: int, stop: int, neighbours: int = 0) -> str:
    """The sentence (or sentences) that the characters from `start` to `stop` stand in.

    Args:
        neighbours: sentences more on each side.
    """
    found = places(context)
    first, last = _holding(found, start, stop)
    first, last = max(0, first - neighbours), min(len(found) - 1, last + neighbours)
    return context[found[first][0] : found[last][1]]


def without(context: str, start: int, stop: int) -> str:
    """The context without that sentence; "" if nothing is left."""
    found = places(context)
    first, last = _holding(found, start, stop)
    return " ".join(context[a:b] for a, b in [*found[:first], *found[last + 1 :]])


def _holding(found: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    """The first and last sentence that some characters, of which one at least is no space, lie in."""
    held = [number for number, (first, end) in enumerate(found) if first < stop and start < end]
    return held[0], held[-1]
