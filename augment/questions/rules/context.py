"""Parts of speech in context: which of the tags that a word can have its neighbours allow.

The letters that stand for tags are explained in `tagging`.
"""

from __future__ import annotations

from augment.questions.rules.words import MONTHS, PLACES, WORDS

_MONTH = frozenset(MONTHS.split("|"))
_BOUNDS = (
    ("more", "than"),
    ("less", "than"),
    ("fewer", "than"),
    ("at", "least"),
    ("at", "most"),
    ("up", "to"),
)
_NOMINAL = frozenset("NPQsbLJZCYG")
_SUBJECT_END = frozenset("NPQYZsbLC)")


def in_context(words: list[str], raw: list[str]) -> str:
    """Decide between the parts of speech that a word can have, from its neighbours.

    Args:
        raw: the tag of each word without context; the tag after "to" is changed if the word must be a verb.

    Returns:
        One letter per word.
    """
    tags: list[str] = []
    before = "."  # the tag before, without adverbs
    finite = False  # a finite verb since the last boundary
    for i in range(len(raw)):
        new = _tag_in_context(words, raw, i, tags, before, finite)
        tags.append(new)
        if new in "VEBHAo":
            finite = True
        elif new in ";:SWk&":
            finite = False
        if new not in "RT":
            before = new
    return "".join(tags)


def _tag_in_context(
    words: list[str], raw: list[str], i: int, tags: list[str], before: str, finite: bool
) -> str:
    """The tag of word i, given the tags of the words before it. The first rule that applies decides.

    Args:
        before: the last of these tags, without adverbs.
        finite: True if there has been a finite verb since the last boundary.
    """
    tag = raw[i]
    follows = raw[i + 1] if i + 1 < len(raw) else "."
    if tag == "N" and before == "P" and follows == "P" and words[i] in WORDS["particles"]:
        return "P"  # Élisabeth de Campan
    if tag in "YZC":
        return _number_in_context(words, i, tag, before, follows, tags[-1:] == ["P"])
    if tag == "E":
        by = i + 1 < len(words) and words[i + 1] == "by"
        return _past(before, follows, by)
    if tag == "X":
        return "J" if before in "DC'" and follows in _NOMINAL else "X"
    if tag == "G" and before in "DJC'":
        return "J" if follows in _NOMINAL else "N"
    if tag == "s":
        later = next((later_tag for later_tag in raw[i + 1 :] if later_tag != "R"), ".")
        return _third(before, later, words[i])
    if tag in "bLl":
        return _base(before, follows, words, i, tag)
    if tag == "h":
        return "D" if follows in _NOMINAL or follows == "E" else "O"
    if words[i] in WORDS["compass"]:
        return "J" if follows in _NOMINAL else "R"
    if tag == "F" and words[i - 1] in WORDS["compass"]:
        return "I"
    if tag in "RIK" and _bound(words, raw, i):
        return "R"
    if tag == "K":
        return _to(before, follows, raw, i)
    if tag == "H" and before in "AK":
        return "h"
    if tag == "D" and words[i] == "that":
        return _that(before, follows, finite)
    if tag == "o" and before == "X":
        return "X"
    if tag == "P" and words[i] == "I":
        return "U"
    if tag == "," and before == "P" and follows == "P" and _inside_name(words, raw, i):
        return "~"
    if tag == "," and "~" in tags[-4:] and follows in "IYRVEBHA":
        return "_"
    return tag


def _to(before: str, follows: str, raw: list[str], i: int) -> str:
    """The word "to": before an infinitive, between numbers, or a preposition."""
    unlisted_verb = follows == "N" and raw[i + 2 : i + 3] == ["D"]  # to VERB the
    if unlisted_verb:
        raw[i + 1] = "b"
    if before in "ZC" and follows in "ZC":
        return "&"
    return "K" if unlisted_verb or follows in "bLleRHo" else "I"


def _that(before: str, follows: str, finite: bool) -> str:
    """The word "that": a relative pronoun, a conjunction or a determiner."""
    noun_clause = before == "N" and finite and follows in "NJP"
    if before in _SUBJECT_END and not noun_clause:
        return "W"
    return "S" if finite and before in "VEXbs" else "D"


def _number_in_context(
    words: list[str], i: int, tag: str, before: str, follows: str, after_name: bool
) -> str:
    """A number that is part of a name (Apollo 8, the 1998 games, Brian May) or a year (in 683)."""
    if tag == "Y":
        if before == "P" and words[i] in _MONTH:
            return "P"
        return "J" if before in "DJ'" and follows in "NPQJ" else "Y"
    if after_name and follows not in "NJ":
        return "P"
    year = tag == "Z" and before == "I" and len(words[i]) == 3 and words[i - 1].lower() == "in"
    return "Y" if year and follows not in "Nsb" else tag


def _inside_name(words: list[str], raw: list[str], comma: int) -> bool:
    """True for the comma in "Houston, Texas" and "Watson, Jr.", but not in an enumeration."""
    if words[comma + 1].rstrip(".") in ("Jr", "Sr", "Inc"):
        return True
    stop = comma + 1
    while stop < len(raw) and raw[stop] == "P":
        stop += 1
    after = "".join(raw[stop : stop + 2])
    listed = after.startswith(("&", "'", ",P", ",&"))
    last = words[stop - 1]
    return (last in PLACES or last == "Island") and words[comma - 1] not in WORDS["countries"] and not listed


def _past(before: str, follows: str, by: bool) -> str:
    """A form that is past tense or participle."""
    if before in "BHnehgo":
        return "X"
    if before in "DJC'IFZ":
        return "J" if follows in _NOMINAL else "X"
    return "X" if before in ".,G;:S" or by else "E"


def _third(before: str, follows: str, word: str) -> str:
    """A form that is a verb in the third person or a plural noun."""
    sure = before in "NPQ'" and word in WORDS["third_persons"]
    if before in "UW" or sure or (before == "&" and follows in "DCZ"):
        return "V"
    if follows == "F" and word != "consists":
        return "N"
    verb = (before in "NPQ'" and follows not in "BHAo.'bsEL") or (before == "&" and follows in "IK")
    return "s" if verb else "N"


def _base(before: str, follows: str, words: list[str], i: int, tag: str) -> str:
    """A form that is an infinitive, a plural verb or a noun; L: also past tense, l: also participle."""
    if before in "AKo":
        return "v"
    if before in "UW":
        return "V"
    if before in "BHn" and tag in "Ll":
        return "X"
    possible = follows not in "BHAo.'" and (follows != "F" or words[i] == "consist")
    plural = words[i - 1].endswith("s") or (before == "P" and "and" in words[:i])
    if before in "NP" and i and possible and (tag == "L" or plural):
        return "E" if tag == "L" else "b"
    return "N"


def _bound(words: list[str], raw: list[str], i: int) -> bool:
    """True for the words of "more than 20", "at least 20" and "up to 20"."""
    for first in (i, i - 1):
        pair = tuple(words[max(first, 0) : first + 2])
        if 0 <= first < len(words) - 2 and raw[first + 2] in "CZ" and pair in _BOUNDS:
            return True
    sure = words[i] in ("over", "about") or raw[i - 1] in "BH"  # but "passed under three bridges"
    return (
        sure
        and words[i] in ("over", "about", "around", "under")
        and "".join(raw[i + 1 : i + 2]) in ("C", "Z")
    )
