"""Candidate answers: entities found by spaCy, or names, numbers and dates found by rules."""

from __future__ import annotations

import functools
import re
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from tasks.common.errors import UserError

_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_SPAN = re.compile(
    rf"""(?:(?:\d{{1,2}}\s)?(?:{_MONTH})(?:\s\d{{1,2}}\b)?(?:,?\s\d{{3,4}}\b)?)
    |(?:[$£€]?\d[\d,.]*\d%?|\d%?)(?:\s(?:million|billion|percent|years|miles|kilometers|km|people))?
    |(?:[A-Z][\w'’-]+)(?:\s(?:(?:of|the|and|de|von|van)\s)*[A-Z][\w'’-]+)*""",
    re.VERBOSE,
)
_LOWER = re.compile(r"\b[a-z][a-z]{5,}\b")
_SHORTENED = re.compile(r"\w+['’](?:ll|ve|re|m|d|t)")
_WORD = re.compile(r"\S+")


class Candidate(NamedTuple):
    """A candidate answer and its character offset in the text."""

    text: str
    start: int


def candidates_by_rule(text: str) -> list[Candidate]:
    """Names, numbers and dates in order, without repetitions.

    Words that are capitalised only because they begin a sentence are skipped.
    """
    words = set(re.findall(r"\w+", text))
    candidates = []
    for match in _SPAN.finditer(text):
        span, start = match.group(), match.start()
        if start == 0 or text[:start].rstrip()[-1:] in (".", "!", "?", '"', "“"):
            first, _, rest = span.partition(" ")
            alone = not rest and (len(first) < 5 or text.count(first) == 1)
            if first.isalpha() and (alone or first.lower() in words):
                span = rest.removeprefix("the ")
                start = match.end() - len(span)
        if span and not _SHORTENED.fullmatch(span):
            candidates.append(Candidate(span, start))
    pattern = _LOWER if _LOWER.search(text) else _WORD
    return _each_once(candidates) or _each_once(
        [Candidate(m.group(), m.start()) for m in pattern.finditer(text)]
    )


def candidates_by_spacy(text: str, name: str) -> list[Candidate]:
    """The entities of a spaCy pipeline in order, without repetitions; if there are none, those by rule."""
    entities = [Candidate(entity.text, entity.start_char) for entity in load_spacy(name)(text).ents]
    return _each_once([entity for entity in entities if entity.text.strip()]) or candidates_by_rule(text)


def _each_once(candidates: list[Candidate]) -> list[Candidate]:
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())


def installed_pipelines() -> list[str]:
    """The names of the installed spaCy pipelines, found without importing spaCy."""
    return sorted({entry.name for entry in entry_points(group="spacy_models")})


@functools.lru_cache(maxsize=1)
def load_spacy(name: str) -> Any:
    """Load the spaCy pipeline of this name.

    Raises:
        UserError: spaCy or the pipeline is not installed.
    """
    advice = "omit `spacy` to find answers by rules"
    try:
        import spacy
    except ImportError as error:
        raise UserError(
            f"`spacy={name!r}`: spaCy is not installed", hint=f"python -m pip install spacy; or {advice}"
        ) from error
    try:
        return spacy.load(name)
    except OSError as error:
        raise UserError(
            f"`spacy={name!r}`: there is no such spaCy pipeline",
            expected=f"installed pipelines: {', '.join(spacy.util.get_installed_models()) or 'none'}",
            hint=f"python -m spacy download {name}; or {advice}",
        ) from error


def choose_answers(text: str, count: int, spacy: str | None) -> list[Candidate]:
    """Up to `count` answers to ask for, spread over a paragraph.

    Args:
        spacy: the spaCy pipeline that finds answers; None = find them by rules.
    """
    candidates = candidates_by_spacy(text, spacy) if spacy else candidates_by_rule(text)
    return spread_over_text(candidates, count)


def spread_over_text(candidates: list[Candidate], count: int) -> list[Candidate]:
    """Select `count` candidates spread over the paragraph, or all if there are no more than that."""
    if len(candidates) <= count:
        return candidates
    return [candidates[(2 * part + 1) * len(candidates) // (2 * count)] for part in range(count)]
