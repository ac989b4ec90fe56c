"""What a phrase stands for, and the question words that ask for it."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from augment.questions.rules.tagging import Tagged
from augment.questions.rules.words import PLACES, WORDS

_RUN = re.compile(r"[A-ZÀ-Þ][\w'’.-]*(?:\s[A-ZÀ-Þ][\w'’.-]*)+")
_PERSONAL = re.compile(r"\b(?:he|she|his|her|him)\b", re.IGNORECASE)
_IMPERSONAL = re.compile(r"\bits?\b", re.IGNORECASE)
_LOCATED = re.compile(r"\b(?:in|In|at|from|near)\s([A-ZÀ-Þ][\w'’-]+)")
_NO_PLACE = tuple(WORDS["no_place_endings"])
_PLACE_ENDINGS = tuple(WORDS["place_endings"])
_NOT_PLURAL = ("ss", "us", "is")


class NameHints(NamedTuple):
    """What a paragraph reveals about the names in it.

    Attributes:
        persons, places: single words of names.
        personal: whether the paragraph has more of he, she, his and her than of it and its.
    """

    persons: set[str]
    places: Counter[str]
    personal: bool


def read_names(text: str) -> NameHints:
    """Collect hints about the names of a paragraph."""
    memory = NameHints(set(), Counter(), len(_PERSONAL.findall(text)) > len(_IMPERSONAL.findall(text)))
    titles = WORDS["titles"]
    firsts = WORDS["first_names"]
    things = WORDS["thing_heads"]
    for match in _RUN.finditer(text):
        parts = match.group().split()
        if (
            (parts[0] in firsts or parts[0].rstrip(".") in titles)
            and len(parts) < 5
            and parts[-1] not in things
        ):
            memory.persons.update(part for part in parts if part not in titles)
    memory.places.update(name for name in _LOCATED.findall(text) if not name.endswith(_NO_PLACE))
    return memory


class Phrase(NamedTuple):
    """A noun phrase: words start..stop, its head, and what it stands for.

    kind: person, group (of people), body (such as a committee), place, thing, number, date or unknown.
    """

    start: int
    stop: int
    head: int
    kind: str


def read_phrase(sentence: Tagged, start: int, stop: int, memory: NameHints) -> Phrase:
    """Find the head of a noun phrase and what it stands for."""
    end = start
    while end < stop and sentence.tags[end] not in "FI&XEGWK":
        end += 1
    head = max(end - 1, start)
    tag, word = sentence.tags[head], sentence.words[head]
    if tag in "YCZQ":
        kind = {"Y": "date", "Q": "thing"}.get(tag, "number")
    else:
        kind = _kind_of_noun(word) if tag in "Nsb" else _kind_of_name(sentence, start, head, memory)
    return Phrase(start, stop, head, kind)


def _kind_of_noun(word: str) -> str:
    if word in WORDS["bodies"]:
        return "body"
    if word in WORDS["people"] or (word.endswith(("man", "woman", "ist")) and len(word) > 5):
        return "person"
    if word in WORDS["groups"] or word.endswith(("men", "ists")) or word.removesuffix("s") in WORDS["people"]:
        return "group"
    agent = word.endswith(("er", "or", "ers", "ors")) and word.removesuffix("s") not in WORDS["not_agents"]
    return "unknown" if agent and len(word) > 5 else "thing"


def _kind_of_name(sentence: Tagged, start: int, head: int, memory: NameHints) -> str:
    tags, words = sentence.tags, sentence.words
    first = _name_start(tags, start, head)
    run, last = words[first : head + 1], words[head]
    if "~" in tags[start : head + 1]:
        return "place" if last in PLACES else "person"
    described = start < first and tags[first - 1] == "N" and words[first - 1] in WORDS["people"]
    titled = run[0].rstrip(".") in WORDS["titles"] and len(run) > 1
    if described or titled or last.lower() in WORDS["people"]:
        return "person"  # the chemist Marie Curie
    if last in WORDS["thing_heads"]:
        return "place" if last in WORDS["place_heads"] else "thing"
    named = run[0] in WORDS["first_names"]
    if start < first and tags[first - 1] in "N'" and not named:
        return "thing"  # the novel Flying Fox, Paul's Christology
    if last in PLACES or (last.endswith(_PLACE_ENDINGS) and not named):
        return "place"
    if tags[start] == "D" and words[start].lower() in ("the", "a", "an"):
        team = first == start + 1 and last.endswith("s") and not last.endswith(_NOT_PLURAL) and len(run) < 3
        return "group" if team else "thing"
    if (len(run) > 1 and named) or last in memory.persons:
        return "person"
    if last in WORDS["languages"] or last in WORDS["companies"] or (last.isupper() and len(last) > 1):
        return "thing"
    return "place" if memory.places[last] else "unknown"


def _name_start(tags: str, start: int, head: int) -> int:
    """Where the name at the end of a phrase begins."""
    while head > start and tags[head - 1] == "P":
        head -= 1
    return head


def is_plural(word: str) -> bool:
    """True for plural nouns, as far as their endings tell."""
    return (word.endswith("s") and not word.endswith(_NOT_PLURAL)) or word in WORDS["groups"]


def who_or_what(sentence: Tagged, phrase: Phrase, personal: bool) -> tuple[str, int] | None:
    """The words that ask for a phrase, and where the answer begins; None if that is not certain.

    Args:
        personal: whether the phrase stands for a person unless something indicates otherwise.
    """
    tags = sentence.tags
    words = sentence.words
    start = phrase.start
    head = phrase.head
    kind = phrase.kind
    first = _name_start(tags, start, head)
    if tags[head] == "P" and start < first and tags[first - 1] == "N" and phrase.stop == head + 1:
        described = sentence.text(start + (tags[start] == "D"), first)  # the chemist Marie Curie
        owned = tags[start] == "D" and words[start].lower() not in ("the", "a", "an")
        plain = (
            not owned and not set(tags[start:first]) & {"'", ","} and words[first - 1] not in WORDS["empty"]
        )
        if plain and "-" not in words[first - 1] and kind in ("person", "unknown", "thing"):
            return f"which {described}", first
    if words[head] in WORDS["empty"]:
        return None
    if kind in ("person", "group") or (kind == "body" and personal):
        return "who", start
    if kind == "unknown":
        return ("who", start) if personal and head - start < 4 else None
    common = start < first and tags[first - 1] in "JN"
    if tags[head] == "P" and words[head] in WORDS["asked_by_head"] and head > first and not common:
        return f"which {words[head].lower()}", start
    country = kind == "place" and first == head and words[head] in WORDS["countries"]
    return "which country" if country else "what", start


def counted_nouns(sentence: Tagged, phrase: Phrase) -> tuple[int, int] | None:
    """Where number and counted noun begin in "more than 20 large towns"; None if nothing is counted."""
    tags, words = sentence.tags, sentence.words
    number = phrase.start
    while number < phrase.stop and tags[number] == "R":
        number += 1
    noun = number
    while noun < phrase.head and tags[noun] in "CZ":
        noun += 1
    head = words[phrase.head]
    clear = tags[phrase.head] in "Nsb" and is_plural(head) and head not in WORDS["lengths"]
    if set(words[number + 1 : noun]) - WORDS["scales"]:
        return None
    numbers = set(tags[noun : phrase.head]) & set("PYQ") or set(tags[noun : phrase.stop]) & set("CZ")
    if noun == number or not clear or numbers or words[number].endswith("%"):
        return None
    while number > phrase.start and words[number - 1].lower() in WORDS["bounds"]:
        number -= 1
    return number, noun
