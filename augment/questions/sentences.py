"""Rule-based sentence splitting, good enough to cut paragraphs at readable positions."""

from __future__ import annotations

import bisect
import itertools
import re

_END = re.compile(r"""[.!?]["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-Þ])""")
_NO_END = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Maj|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|No|Vol|vs|ca|cf|etc"
    r"|e\.g|i\.e|Inc|Ltd|Co|Corp|v|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|approx|[A-Z]\.[A-Z]))\.$"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """The (start, stop) character offsets of each sentence, without surrounding spaces."""
    spans, start = [], 0
    for end in (*(match.end() for match in _END.finditer(text)), len(text)):
        piece = text[start:end].strip()
        if end < len(text) and _NO_END.search(piece):
            continue
        if piece:
            first = text.index(piece, start)
            spans.append((first, first + len(piece)))
        start = end
    return spans


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph in order; joining them with spaces restores its words."""
    return [text[start:stop] for start, stop in sentence_spans(text)]


def group_sentences(sizes: list[int], least: int, most: int) -> list[tuple[int, int]]:
    """Group neighbouring sentences into as few pieces of similar size as possible.

    If the pieces cannot all have between `least` and `most` words, they are filled greedily up to `most`.

    Args:
        sizes: number of words in each sentence.

    Returns:
        the (start, stop) sentence indices of each piece, in order; some may be outside the range.
    """
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    for count in range(-(-total // most), total // least + 1):
        cuts = [0, *(_nearest(ends, total * piece / count) for piece in range(1, count)), len(sizes)]
        pieces = list(itertools.pairwise(cuts))
        if all(least <= sum(sizes[start:stop]) <= most for start, stop in pieces):
            return pieces
    return _filled(sizes, most)


def _nearest(ends: list[int], target: float) -> int:
    """The number of leading sentences whose end is nearest to `target`."""
    after = bisect.bisect_left(ends, target)
    before = ends[after - 1] if after else 0
    return after if target - before < ends[after] - target else after + 1


def _filled(sizes: list[int], most: int) -> list[tuple[int, int]]:
    pieces = []
    start = 0
    size = 0
    for index, length in enumerate(sizes):
        if size and size + length > most:
            pieces.append((start, index))
            start, size = index, 0
        size += length
    return [*pieces, (start, len(sizes))] if sizes else []
