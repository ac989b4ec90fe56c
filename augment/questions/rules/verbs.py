"""English verbs: the forms of irregular and of common regular verbs, and the base form of each."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from augment.questions.rules.words import IRREGULAR, WORDS

_VOWELS = "aeiou"


class Form(NamedTuple):
    """The base form of a verb form, and what the form can be.

    kinds: some of the letters b (base), s (third person singular), d (past tense) and n (past participle).
    """

    base: str
    kinds: str


def third_person(base: str) -> str:
    """The third person singular, as in "she VERBs"."""
    if base.endswith(("s", "sh", "ch", "x", "z", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2] not in _VOWELS else base + "s"


def _past_forms(base: str) -> list[str]:
    """The regular past tense; two if a British spelling differs (traveled, travelled)."""
    if base.endswith("e"):
        return [base + "d"]
    if base.endswith("y") and base[-2] not in _VOWELS:
        return [base[:-1] + "ied"]
    short = base[-1] not in "wxy" + _VOWELS and base[-2] in _VOWELS and base[-3:-2] not in _VOWELS
    syllables = sum(a in _VOWELS and b not in _VOWELS for a, b in pairwise(base))
    if short and (syllables == 1 or base in WORDS["doubled"]):
        return [base + base[-1] + "ed"]
    return [base + "ed", base + "led"] if base.endswith("l") else [base + "ed"]


def _forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}

    def add(form: str, base: str, kinds: str) -> None:
        old = forms.setdefault(form, Form(base, ""))
        if old.base == base:
            forms[form] = Form(base, old.kinds + kinds)

    for base, past, participle in IRREGULAR:
        for form, kind in ((base, "b"), (third_person(base), "s"), (past, "d"), (participle, "n")):
            add(form, base, kind)
    for base in sorted(WORDS["regular"]):
        for form, kind in ((base, "b"), (third_person(base), "s")):
            add(form, base, kind)
        for form in _past_forms(base):
            add(form, base, "dn")
    return forms


FORMS = _forms()
"""Verb form -> its base form and kinds; "found" and "wound" are taken for the past tense of find and wind."""


def base_of(word: str) -> str:
    """The base form of a verb form; the word itself if it is not known."""
    if word in ("has", "have", "had"):
        return "have"
    return FORMS[word].base if word in FORMS else word
