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

    This is one long chain of rules because each of them needs the decisions before it.
    """
    tags: list[str] = []
    before = "."  # the tag before, without adverbs
    finite = False  # a finite verb since the last boundary
    for i, tag in enumerate(raw):
        follows = raw[i + 1] if i + 1 < len(raw) else "."
        new = tag
        if tag == "N" and before == "P" and follows == "P" and words[i] in WORDS["particles"]:
            new = "P"  # Élisabeth de Campan
        elif tag in "YZC":
            new = _number_in_context(words, i, tag, before, follows, tags[-1:] == ["P"])
        elif tag == "E":
            by = i + 1 < len(words) and words[i + 1] == "by"
            new = _past(before, follows, by)
        elif tag == "X":
            new = "J" if before in "DC'" and follows in _NOMINAL else "X"
        elif tag == "G" and before in "DJC'":
            new = "J" if follows in _NOMINAL else "N"
        elif tag == "s":
            later = next((later_tag for later_tag in raw[i + 1 :] if later_tag != "R"), ".")
            new = _third(before, later, words[i])
        elif tag in "bLl":
            new = _base(before, follows, words, i, tag)
        elif tag == "h":
            new = "D" if follows in _NOMINAL or follows == "E" else "O"
        elif words[i] in WORDS["compass"]:
            new = "J" if follows in _NOMINAL else "R"
        elif tag == "F" and words[i - 1] in WORDS["compass"]:
            new = "I"
        elif tag in "RIK" and _bound(words, raw, i):
            new = "R"
        elif tag == "K":
            unlisted = follows == "N" and raw[i + 2 : i + 3] == [
                "D"
            ]  # a verb that is not listed: to VERB the
            new = (
                "&"
                if before in "ZC" and follows in "ZC"
                else "K"
                if unlisted or follows in "bLleRHo"
                else "I"
            )
            if unlisted:
                raw[i + 1] = "b"
        elif tag == "H" and before in "AK":
            new = "h"
        elif tag == "D" and words[i] == "that":
            noun_clause = before == "N" and finite and follows in "NJP"
            new = (
                "W"
                if before in _SUBJECT_END and not noun_clause
                else "S"
                if finite and before in "VEXbs"
                else "D"
            )
        elif tag == "o" and before == "X":
            new = "X"
        elif tag == "P" and words[i] == "I":
            new = "U"
        elif tag == "," and before == "P" and follows == "P" and _inside_name(words, raw, i):
            new = "~"
        elif tag == "," and "~" in tags[-4:] and follows in "IYRVEBHA":
            new = "_"
        tags.append(new)
        if new in "VEBHAo":
            finite = True
        elif new in ";:SWk&":
            finite = False
        if new not in "RT":
            before = new
    return "".join(tags)


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
