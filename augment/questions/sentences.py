"""Where sentences end, by rule: enough to cut a paragraph at a place that reads well."""

from __future__ import annotations

import re

_END = re.compile(r"""[.!?]["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-Þ])""")
_NO_END = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Maj|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|No|Vol|vs|ca|cf|etc"
    r"|e\.g|i\.e|Inc|Ltd|Co|Corp|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|approx|[A-Z]\.[A-Z]))\.$"
)


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph, in order; joined by single spaces they give its words again."""
    found, start = [], 0
    for match in _END.finditer(text):
        piece = text[start : match.end()].strip()
        if not _NO_END.search(piece):
            found.append(piece)
            start = match.end()
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def pack(sizes: list[int], least: int, most: int) -> list[tuple[int, int]]:
    """Group neighbours into pieces of at most `most`, as even as they come, so that few fall below `least`.

    Args:
        sizes: the size of each sentence, most of them below `most`.

    Returns:
        (first, after last) of each piece, in order; a last piece below `least` may be among them.
    """
    total, pieces, start, size, taken = sum(sizes), [], 0, 0, 0
    for place, length in enumerate(sizes):
        left = total - taken
        share = left / max(1, -(-left // most))  # what each piece gets if the rest is divided evenly
        enough = size >= least and size + length / 2 > share
        if size and (size + length > most or enough):
            pieces.append((start, place))
            start, taken, size = place, taken + size, 0
        size += length
    return [*pieces, (start, len(sizes))] if sizes else []
