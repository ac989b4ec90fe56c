"""The words of a sentence with offsets and tags: parts of speech, as far as lists and neighbours tell them.

Each tag is one letter, so that the grammar of `clauses` can be regular expressions over a string of tags.
The letters of function words are those of `words.toml`: D determiner, I preposition, F "of", K "to" before a
verb, A modal, B H o be/have/do, e n g be/been/being, h "have" after a modal, T not, U subject pronoun,
O object pronoun, S subordinator, W relative, & and/or, k but, C number word, R adverb, J adjective, ! there.
The others are N noun or unknown word, P name, Q quoted title, Y date, Z number, V finite verb, E past or
participle, X participle, G -ing form, v infinitive, s and b third person and base form that may be a noun,
' possessive, ~ comma inside a name, _ comma to skip, : dash or colon, ? unknown, and punctuation.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from augment.questions.rules.context import in_context
from augment.questions.rules.verbs import FORMS
from augment.questions.rules.words import DAYS, FUNCTION_WORDS, MONTHS, WORDS

_TOKEN = re.compile(
    rf"""“[^“”]{{1,70}}”|"[^"]{{1,70}}"
    |\b(?:(?:{DAYS}),?\s(?=\d|[JFMASOND][a-z]+\s\d))?
      (?:(?:\d{{1,2}}\s)?(?:{MONTHS})(?:\s\d{{1,2}}\b(?!,\d))?(?:,?\s\d{{3,4}}\b)?)
    |(?:e\.g|i\.e)\.|(?:[A-Z]\.){{2,}}|[A-Z]\.(?=\s[A-Z])
    |(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|No|Inc|vs|v|Gov|Gen|Col|Maj|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Prof|Mt|Ft|Bros|Wm)\.
    |[$£€]\s?\d+(?:[.,]\d+)*(?:\s(?:million|billion|trillion)\b)?
    |\d+(?:st|nd|rd|th)?(?:-[a-z]+)+
    |\d{{1,4}}\s(?:BCE?|CE|AD)\b
    |\d+(?:[.,/:–-]\d+)*(?:st|nd|rd|th|s|%|[a-z]{{1,2}}(?![a-z]))?
    |[^\W\d_]\w*(?:[-–'’.&/](?!s\b)\w+)*|['’]s\b|['’](?=\s)|\S""",
    re.VERBOSE,
)
_BRACKETS = re.compile(r"\s*(?:\([^()]*\)|\[[^\[\]]*\])")
_MONTH, _DAY = frozenset(MONTHS.split("|")), frozenset(DAYS.split("|"))
_PUNCTUATION = (
    {word: ":" for word in ("–", "—", "-", ":", "e.g.", "i.e.")} | {c: c for c in "&,.;"} | {"%": "N"}
)
_ADJECTIVE, _NOUN = tuple(WORDS["adjective_endings"]), tuple(WORDS["noun_endings"])


class Tagged(NamedTuple):
    """The words of a sentence, their offsets in the paragraph, and a string with one tag per word."""

    words: list[str]
    starts: list[int]
    stops: list[int]
    tags: str

    def text(self, start: int, stop: int) -> str:
        """The words from start to stop, spaced as in the paragraph, without what is in brackets."""
        parts: list[str] = []
        for index in range(start, stop):
            if self.tags[index] != "_":
                spaced = index > start and self.starts[index] > self.stops[index - 1]
                parts.append(" " * spaced + self.words[index])
        return "".join(parts)


def tag_sentence(text: str, start: int, stop: int, uncapitalised: frozenset[str]) -> Tagged:
    """Tag the words of text[start:stop], without what is in brackets.

    Args:
        uncapitalised: the words that the paragraph has in lower case, or with a capital inside a sentence.
    """
    sentence = text[start:stop]
    if "(" in sentence or "[" in sentence:
        sentence = _BRACKETS.sub(lambda m: " " * len(m.group()), sentence)
    tokens = list(_TOKEN.finditer(sentence))
    words = [match.group() for match in tokens]
    raw = [_first_tag(word) for word in words]
    _open_sentence(words, raw, uncapitalised)
    starts = [start + m.start() for m in tokens]
    stops = [start + m.end() for m in tokens]
    return Tagged(words, starts, stops, in_context(words, raw))


@functools.lru_cache(maxsize=1 << 16)
def _first_tag(word: str) -> str:
    """The tag of a word without context."""
    first = word[0]
    if first in '"“':
        inside = word[1:-1]
        short = inside.count(" ") < (8 if inside[:1].isupper() else 3)
        return "Q" if short and inside[:1].isalnum() and inside[-1] not in ",;:." else "?"
    if word in _PUNCTUATION:
        return _PUNCTUATION[word]
    if first.isdigit() or first in "$£€":
        return _number_tag(word)
    if first.isalpha():
        start = word.split()[0].rstrip(",")
        if start in _MONTH or (start in _DAY and start != word):
            return "Y"
        return "P" if first.isupper() else _lower_tag(word)
    return "'" if word in ("'s", "’s", "'", "’") else "?"


def _number_tag(word: str) -> str:
    if (" " in word and word[0].isdigit()) or (word[-1] == "s" and word[-2:-1].isdigit()):
        return "Y"  # 4 May, 30 BC, the 1960s
    if word[-2:] in ("st", "nd", "rd", "th") or ("-" in word and word[-1].islower()):
        return "J"  # 20th, 19th-century
    return "Y" if len(word) == 4 and word.isdigit() and "1000" <= word <= "2099" else "Z"


def _lower_tag(word: str) -> str:
    if tag := FUNCTION_WORDS.get(word):
        return tag
    if form := FORMS.get(word):
        kinds = form.kinds
        if "b" in kinds:
            return "L" if "d" in kinds else "l" if "n" in kinds else "b"
        return (
            "s" if kinds[0] == "s" else "E" if "d" in kinds and "n" in kinds else "V" if "d" in kinds else "X"
        )
    if "-" in word and {FUNCTION_WORDS.get(part) for part in word.split("-")} == {"C"}:
        return "C"  # forty-eight
    if word.endswith("ly") and word not in WORDS["not_adverbs"]:
        return "R"
    if word.endswith("ing") and len(word) > 5:
        return "G"
    if word.endswith("ed") and len(word) > 4 and not word.endswith("eed"):
        return "E"
    noun = word in WORDS["not_adjectives"] or word.endswith(("ment", "tent"))
    return "J" if word.endswith(_ADJECTIVE) and not noun else "N"


def _open_sentence(words: list[str], raw: list[str], uncapitalised: frozenset[str]) -> None:
    """Tag the first word of a sentence as if it had no capital, unless it is a name."""
    if not words or raw[0] != "P" or (words[0].isupper() and len(words[0]) > 1):
        return
    word = words[0].lower()
    follows = "".join(raw[1:2])
    after = "".join(words[1:2])
    tag = _lower_tag(word)
    name = words[0] in uncapitalised or words[0] in WORDS["first_names"]
    if word in FUNCTION_WORDS:
        title = words[0] == "A" and raw[1:3] == ["P", "P"] and "".join(raw[3:4]) in "sVEBH"  # A Bronx Tale is
        lower = not title and not (tag == "J" and follows == "P")
    elif name or (follows and follows in "P'" and tag not in "RG"):
        lower = False
    else:
        plural = (
            word.endswith("s")
            and not word.endswith(("ss", "us", "is"))
            and after in ("are", "were", "have", "of")
        )
        lower = word in uncapitalised or word in FORMS or tag in "JRG" or plural or word.endswith(_NOUN)
    if lower:
        raw[0], words[0] = tag, word
