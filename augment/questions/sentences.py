"""Where sentences end, by rule: enough to cut a paragraph at a place that reads well."""

from __future__ import annotations

import bisect
import itertools
import re

_END = re.compile(r"""[.!?]["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-Þ])""")
_NO_END = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Maj|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|No|Vol|vs|ca|cf|etc"
    r"|e\.g|i\.e|Inc|Ltd|Co|Corp|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|approx|[A-Z]\.[A-Z]))\.$"
)


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph, in order; joined by single spaces they give its words again."""
    pieces = (text[start:stop].strip() for start, stop in _spans(text))
    return [piece for piece in pieces if piece]


def around(text: str, start: int, stop: int) -> str:
    """The sentence, or sentences, that the characters from `start` to `stop` stand in."""
    touched = [(a, b) for a, b in _spans(text) if a < stop and start < b]
    return text[touched[0][0] : touched[-1][1]].strip() if touched else ""


def _spans(text: str) -> list[tuple[int, int]]:
    """First and after-last character of each sentence with the space behind it; together the whole text."""
    ends = [match.end() for match in _END.finditer(text)]
    kept, start = [], 0
    for end in ends:
        if not _NO_END.search(text[start:end].strip()):
            kept.append((start, end))
            start = end
    return [*kept, (start, len(text))]


def pack(sizes: list[int], least: int, most: int) -> list[tuple[int, int]]:
    """Group neighbours into even pieces of `least` to `most`, as few as can be; else fill them up.

    Args:
        sizes: the size of each sentence.

    Returns:
        (first, after last) of each piece, in order; pieces outside the range may be among them.
    """
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    for count in range(-(-total // most), total // least + 1):
        cuts = [0, *(_nearest(ends, total * piece / count) for piece in range(1, count)), len(sizes)]
        pieces = list(itertools.pairwise(cuts))
        if all(least <= sum(sizes[start:stop]) <= most for start, stop in pieces):
            return pieces
    return _filled(sizes, most)


def _nearest(ends: list[int], place: float) -> int:
    """How many sentences end nearest to `place`."""
    after = bisect.bisect_left(ends, place)
    before = ends[after - 1] if after else 0
    return after if place - before < ends[after] - place else after + 1


def _filled(sizes: list[int], most: int) -> list[tuple[int, int]]:
    pieces, start, size = [], 0, 0
    for place, length in enumerate(sizes):
        if size and size + length > most:
            pieces.append((start, place))
            start, size = place, 0
        size += length
    return [*pieces, (start, len(sizes))] if sizes else []
