"""Chunks, the parts of a clause after its verb: noun phrases, prepositional phrases, infinitives and so on.

The letters in regular expressions are the tags that `tagging` explains.
"""

from __future__ import annotations

from dataclasses import dataclass

from augment.questions.rules.clause_patterns import BOTH, NEW_CLAUSE, OBJECT, PREDICATE, SURE_CLAUSE
from augment.questions.rules.tagging import Tagged
from augment.questions.rules.words import WORDS

FINITE = frozenset("VBHAo")
CLAUSAL = frozenset(("as", "after", "before", "since", "until", "than"))
_PARTICLES = frozenset(["up", "down", "out", "off", "on", "over", "along", "in", "around", "through"])


@dataclass
class Chunk:
    """A part of a clause: words start..stop.

    kind: np, pp (its first word is the preposition, unless it is a date), adv, adj, inf (to do), ing, or why.
    complete: False if a restrictive clause follows inside it, so that it is not a complete answer.
    """

    kind: str
    start: int
    stop: int
    complete: bool = True


def add_chunk(sentence: Tagged, chunks: list[Chunk], position: int) -> int | None:
    """Add the chunk at `position` and return where it ends; None if the rules do not know it.

    There is one branch for each kind of word that a chunk can begin with.
    """
    tags = sentence.tags
    words = sentence.words
    tag = sentence.tags[position]
    last = chunks[-1] if chunks and chunks[-1].kind in ("np", "pp") else None
    follows = tags[position + 1 : position + 2]
    kind = "adv"
    complete = True
    stop = position + 1
    if tag == "S" or (tag == "J" and words[position : position + 2] == ["due", "to"]):
        return _add_reason(sentence, chunks, position)
    if tag == "W":
        return _add_relative_clause(sentence, chunks, position)
    if tag in "KGXE" or (tag in "IF" and follows == "G"):
        return _add_verb_phrase(tags, chunks, last, position)
    if tag in "IF":
        kind, stop = "pp", noun_phrase_end(tags, position + 1)
        if follows == "Y" and stop == position + 1:
            stop = position + 2 + 2 * (tags[position + 2 : position + 4] in ("IY", "KY", "&Y"))
        if stop == position + 1:
            if words[position] not in _PARTICLES or tags[stop : stop + 1] not in (",", ".", ";", "I", "D"):
                return None
            kind = "adv"  # to set up
        between_names = tags[position - 1] == "P" and "P" in tags[position + 1 : stop]
        if last and words[position] == "for" and between_names:
            last.stop = stop  # the National Endowment for the Arts
            return stop
    elif tag == "Y":
        kind = "pp"
        if tags[position - 1] in "NP" and words[position].isdigit():
            return None  # "the years 1549"
    elif tag == "O":
        kind, complete = "np", False
    elif (end := noun_phrase_end(tags, position)) > position:
        kind, stop = "np", end
        if tags[position - 1] == "Y":
            return None
    elif tag == "J":
        kind = "adj"
    elif tag != "R":
        return None
    finite = "VBHAosbE" if words[position] in CLAUSAL else "VBHAo"
    if kind in ("np", "pp") and stop < len(tags) and tags[stop] in finite:
        return len(tags) if kind == "pp" and chunks else None  # "after the war ended"
    if kind != "adv" or follows == "F" or words[position] not in WORDS["connectives"]:
        chunks.append(Chunk(kind, position, stop, complete))
    return stop


def _add_reason(sentence: Tagged, chunks: list[Chunk], position: int) -> int | None:
    """Add the reason after "because", "because of" or "due to"; for the result see `add_chunk`."""
    tags = sentence.tags
    of = tags[position] == "J" or tags[position + 1 : position + 2] == "F"  # a noun phrase follows, no clause
    start = position + 1 + of
    stop = noun_phrase_end(tags, start) if of else _boundary(tags, start, ",.;:")
    listed = tags[stop : stop + 1] == "," and is_enumerated(tags, stop)
    if stop == start or listed:
        return None
    chunks.append(Chunk("why", start, stop, True))
    return stop


def _add_relative_clause(sentence: Tagged, chunks: list[Chunk], position: int) -> int | None:
    """Extend the last chunk by the relative clause at `position`; for the result see `add_chunk`."""
    stop = _boundary(sentence.tags, position, ",.;:")
    if not chunks or sentence.words[position] == "what" or stop - position > 12:
        return None
    chunks[-1].stop, chunks[-1].complete = stop, False
    return stop


def _add_verb_phrase(tags: str, chunks: list[Chunk], last: Chunk | None, position: int) -> int | None:
    """Add an infinitive or a participle with all that belongs to it; for the result see `add_chunk`.

    Args:
        last: the last chunk if it is a noun phrase, which a participle belongs to.
    """
    tag, stop = tags[position], _stretch(tags, position + 1)
    alone = stop == position + 1 and tags[stop : stop + 1] == ","
    if not stop or (tag in "XE" and (alone or not last)):
        return None
    if tag in "GXE" and last:
        last.stop, last.complete = stop, False
    else:
        chunks.append(Chunk("inf" if tag == "K" else "ing", position, stop, True))
    return stop


def _stretch(tags: str, position: int) -> int:
    """The end of an infinitive or participle with all that belongs to it; 0 if it is not certain."""
    start = position
    while position < len(tags) and tags[position] not in ",.;:SWk":
        if tags[position] == "&" and NEW_CLAUSE.match(tags, position):
            break
        position += 1
    unsure = any(tag in FINITE for tag in tags[start:position]) or tags[position : position + 1] == "W"
    return (
        0 if unsure or (tags[position : position + 1] == "," and is_enumerated(tags, position)) else position
    )


def is_enumerated(tags: str, comma: int) -> bool:
    """True if a comma is the first one of an enumeration."""
    if SURE_CLAUSE.match(tags, comma + 1):
        return False
    following = OBJECT.match(tags, comma + 1)
    if not following:
        return tags[comma + 1 : comma + 2] in ("J", "&", "G", "X")
    return tags[following.end() : following.end() + 1] in ("&", ",")


def noun_phrase_end(tags: str, position: int) -> int:
    """The end of the noun phrase at `position`, with its "of" and "and"; `position` if there is none."""
    match = OBJECT.match(tags, position)
    if not match:
        return position
    both = BOTH.match(tags, match.end())
    if both and tags[match.end() - 1] != "Y" and not PREDICATE.match(tags, both.end()):
        return both.end()
    return match.end()


def _boundary(tags: str, position: int, stops: str) -> int:
    """The position of the first of `stops` from `position` on."""
    return next((i for i in range(position, len(tags)) if tags[i] in stops), len(tags))
