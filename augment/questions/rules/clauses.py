"""Main clauses: what comes before the subject, the subject, the verb and what follows.

The letters in regular expressions are the tags that `tagging` explains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from augment.questions.rules.chunks import CLAUSAL, FINITE, Chunk, add_chunk, is_enumerated
from augment.questions.rules.clause_patterns import (
    ANY_VERB,
    ASIDE,
    LEAD,
    LEAD_PHRASE,
    NEW_CLAUSE,
    OPENING,
    PREDICATE,
    STARTS,
    SUBJECT,
    VERB,
)
from augment.questions.rules.tagging import Tagged
from augment.questions.rules.verbs import FORMS, Form
from augment.questions.rules.words import WORDS

_ASIDES = 3  # at most this many parts of an apposition between commas


@dataclass
class Clause:
    """A clause.

    Attributes:
        lead: the phrases before the subject.
        subject, verb: (start, stop) of the words; the verb group has its adverbs.
        auxiliary: whether the verb group begins with an auxiliary or a form of "be".
        chunks: what follows the verb.
    """

    sentence: Tagged
    lead: list[Chunk]
    subject: tuple[int, int]
    verb: tuple[int, int]
    auxiliary: bool
    chunks: list[Chunk] = field(default_factory=list)


def clauses_of(sentence: Tagged) -> Iterator[Clause]:
    """The main clauses of a sentence that the grammar knows."""
    last = 0
    for start in [0, *(match.end() for match in STARTS.finditer(sentence.tags))]:
        if start and sentence.tags[start - 1] != ";" and not ANY_VERB.search(sentence.tags, last, start):
            continue  # inside an enumeration
        last = start
        if clause := _clause(sentence, start):
            yield clause


def _clause(sentence: Tagged, start: int) -> Clause | None:
    tags = sentence.tags
    start = _after_opening(sentence, start)
    lead = LEAD.match(tags, start)
    at = lead.end() if lead else start
    leads = _leads(sentence, start, at)
    if tags[at : at + 2] == "!B":
        return _with_chunks(Clause(sentence, leads, (at, at + 1), (at + 1, at + 2), True))
    subject = SUBJECT.match(tags, at)
    if not subject:
        return None
    position = subject.end() + tags.startswith("_", subject.end())
    group = _verb_group(sentence, position)
    for _ in range(_ASIDES):
        aside = ASIDE.match(tags, position)
        if group or not aside:
            break
        position = aside.end()
        group = _verb_group(sentence, position + 1)
    return _with_chunks(Clause(sentence, leads, subject.span(), *group)) if group else None


def _verb_group(sentence: Tagged, start: int) -> tuple[tuple[int, int], bool] | None:
    """The words of the verb group that begins at `start`, and whether it has an auxiliary."""
    tags, first = sentence.tags, start
    while tags[first : first + 1] == "R":
        first += 1
    if tags[first : first + 1] == "X" and tags[start - 1] == ",":  # after an apposition, a past tense
        past = "d" in FORMS.get(sentence.words[first], Form("", "")).kinds and not _reduced(sentence, first)
        return ((start, first + 1), False) if past else None
    verb = VERB.match(tags, first)
    noun = tags[first : first + 1] in ("s", "b") and _later_verb(tags, first + 1)
    if not verb or noun or "T" in verb.group() or _reduced(sentence, first):
        return None
    return (start, verb.end()), verb.lastgroup != "main" and verb.group() != "H"


def _after_opening(sentence: Tagged, start: int) -> int:
    """Where the main clause begins after a participle or a subordinate clause that does not limit it."""
    tags = sentence.tags
    if not OPENING.match(tags, start) or (
        tags[start] in "SI" and sentence.words[start] not in WORDS["openings"]
    ):
        return start
    comma = tags.find(",", start)
    while comma > 0:
        subject = SUBJECT.match(tags, comma + 1)
        if subject and PREDICATE.match(tags, subject.end()):
            return comma + 1
        comma = tags.find(",", comma + 1)
    return start


def _leads(sentence: Tagged, start: int, stop: int) -> list[Chunk]:
    """The dates and prepositional phrases before the subject; not those that may belong to each other."""
    tags, leads = sentence.tags, list[Chunk]()
    position = start
    while position < stop:
        if leads and tags[position - 1] not in ",Y" and tags[position] == "I":
            # "after a death in 1680"
            nested = tags[position + 1] != "Y" or sentence.words[leads[-1].start] in CLAUSAL
            return [] if nested else [Chunk("pp", position, position + 2)]
        if tags[position] == "Y":
            leads.append(Chunk("pp", position, position + 1))
        elif tags[position] == "I" and (phrase := LEAD_PHRASE.match(tags, position + 1)):
            leads.append(Chunk("pp", position, min(phrase.end(), stop)))
            position = phrase.end() - 1
        position += 1
    return leads


def _later_verb(tags: str, start: int, more: str = "") -> bool:
    """True if a certain finite verb follows before the clause can have ended."""
    for tag in tags[start:]:
        if tag in FINITE or tag in more:
            return True
        if tag in ",;:.SWU&k":
            return False
    return False


def _reduced(sentence: Tagged, at: int) -> bool:
    """True if a past form may begin a reduced relative clause ("the law passed in 1960 was ...")."""
    tags = sentence.tags
    if tags[at] not in "EX":
        return False
    if _later_verb(tags, at + 1):
        return True
    bare = tags[at + 1 : at + 2] in ("I", "F", ".", ",", "") or tags[at + 1 : at + 3] == "RI"
    form = FORMS.get(sentence.words[at])
    called = form is not None and form.base in WORDS["two_objects"]
    if ((bare or called) and _later_verb(tags, at + 1, "E")) or (called and tags[at - 1 : at + 2] == "NEP"):
        return True
    return bare and tags[at - 1] != "P" and (form is None or form.base not in WORDS["intransitive"])


def _with_chunks(clause: Clause) -> Clause | None:
    """The clause with what follows its verb, up to its end; None if the rules do not know it."""
    tags, chunks = clause.sentence.tags, clause.chunks
    position: int | None = clause.verb[1]
    while position is not None and position < len(tags) and tags[position] not in ".;:":
        tag = tags[position]
        dated = any("Y" in tags[chunk.start : chunk.stop] for chunk in chunks)
        if tag == "_" or (tag == "," and tags[position + 1 : position + 3] == "IY" and not dated):
            position += 1
        elif tag == ",":
            if is_enumerated(tags, position) and (not chunks or chunks.pop().kind != "pp"):
                return None
            break
        elif tag in "&k":
            return clause if NEW_CLAUSE.match(tags, position) else None
        elif tag == "S" and clause.sentence.words[position] != "because":
            return None if position == clause.verb[1] or clause.sentence.words[position] == "that" else clause
        else:
            position = add_chunk(clause.sentence, chunks, position)
    return clause if position is not None else None
