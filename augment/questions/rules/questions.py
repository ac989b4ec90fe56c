"""The questions about a clause: about its subject, an object, a date, a place, a number or a reason."""

from __future__ import annotations

from collections.abc import Iterator

from augment.questions.rules.answers import Memory, counted_nouns, who_or_what
from augment.questions.rules.clauses import Chunk, Clause
from augment.questions.rules.composer import Composer, RuleQuestion, Subject
from augment.questions.rules.words import WORDS

_NEAR = frozenset(["in", "at", "on", "near", "from"])
_NOUN_ENDINGS = ("s", "tion", "ment", "or", "er", "ity", "ness")


def clause_questions(clause: Clause, memory: Memory, subject: Subject) -> Iterator[RuleQuestion]:
    """The questions that can be asked about a clause."""
    one = Composer(clause, memory, subject)
    if one.tags[clause.subject[0]] == "!":
        yield from _about_existing(one)
        return
    yield from _about_subject(one)
    for chunk in clause.chunks:
        if chunk.kind == "why":
            yield from one.ask("why", chunk.start, chunk.stop, one.others(chunk), 3.0)
        elif chunk.kind == "np" and chunk.whole:
            yield from _about_object(one, chunk)
        elif chunk.kind == "pp" and chunk.whole:
            yield from _about_phrase(one, chunk)
    for lead in clause.lead:
        wh, start = one.wh(lead)
        if wh and not (wh == "where" and one.base in WORDS["without_place"]):
            rest = one.others(lead, without="when" if wh == "when" else "")
            yield from one.ask(_of_year(one, lead, wh, start), start, lead.stop, rest, 3.8, lead)


def _about_existing(one: Composer) -> Iterator[RuleQuestion]:
    """There are 20 towns in the county: how many towns are there in the county?"""
    first, *rest = one.chunks or [Chunk("", 0, 0)]
    number = counted_nouns(one.sentence, one.phrase(first.start, first.stop)) if first.kind == "np" else None
    if number and first.whole and (rest or one.lead()):
        towns = one.sentence.text(number[1], first.stop)
        parts = ["how many", towns, one.words[one.clause.verb[0]], "there", *one.others(first), one.lead()]
        yield from one.check(parts, *number, 3.5)


def _about_subject(one: Composer) -> Iterator[RuleQuestion]:
    start, stop = one.clause.subject
    tags = one.tags[start:stop]
    tail = one.others(None)
    if tags[0] == "U" or "&" in tags or "W" in tags or not tail or one.base == "include":
        return
    phrase = one.phrase(start, stop)
    number = counted_nouns(one.sentence, phrase)
    if number and tags[0] in "CZR":
        parts = ["how many", one.sentence.text(number[1], stop), *one.group, *tail, one.lead()]
        yield from one.check(parts, *number, 3.0)
        return
    complement = one.chunks[0]
    named = set(one.tags[complement.start : complement.stop]) == {"P"}
    definite = complement.kind in ("adj", "adv") or (
        complement.kind == "np" and (named or one.words[complement.start] == "the")
    )
    if tags[0] in "CZ" or one.vague(start, stop) or (one.copula and not definite):
        return
    acts = one.base in WORDS["done_to_persons" if one.passive else "persons_do"]
    acts = acts or (phrase.kind == "body" and not one.passive and not one.copula)
    things = one.passive and one.base in WORDS["done_to_things"]
    asked = who_or_what(one.sentence, phrase, acts or (one.memory.personal and not things))
    if one.copula and complement.kind == "np" and (tags[0] == "D" or phrase.kind == "unknown"):
        kind = one.phrase(complement.start, complement.stop).kind
        asked = {"person": ("who", start), "group": ("who", start), "thing": asked or ("what", start)}.get(
            kind
        )
    if not asked:
        return
    wh, begin = asked
    if wh == "what" and one.base in WORDS["minds_do"] and not one.passive:
        wh = "who"
    plain = wh == "what" and one.tags[phrase.head] not in "PQ" and not one.passive
    plural = one.subject.plural and (wh == "who" or wh.startswith("which"))
    keep = plural or (one.copula and complement.kind == "np")
    yield from one.check([wh, *one.predicate(keep), *tail, one.lead()], begin, stop, 0.5 if plain else 2.0)


def _about_object(one: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    place = one.chunks.index(chunk)
    following = one.chunks[place + 1] if place + 1 < len(one.chunks) else Chunk("", chunk.stop, chunk.stop)
    if place and one.chunks[place - 1].kind in ("np", "adj", "inf", "ing"):
        return
    phrase = one.phrase(chunk.start, chunk.stop)
    if one.tags[chunk.start] in "CZR":
        yield from _about_number(one, chunk, following)
    elif one.copula:
        yield from _about_complement(one, chunk)
    else:
        asked = who_or_what(one.sentence, phrase, False)
        two = (one.base in WORDS["two_objects"] and not one.passive) or following.kind == "np"
        names = (
            "&" in one.tags[chunk.start : chunk.stop]
            and phrase.kind == "thing"
            and one.tags[phrase.head] == "P"
        )
        agent = one.passive and phrase.kind != "thing" and one.base not in WORDS["naming"]
        if not asked or two or names or agent or one.vague(chunk.start, chunk.stop):
            return
        wh, begin = asked
        if wh == "who" and one.base in WORDS["linking"]:
            wh = "what"
        causes = following.kind == "inf" and one.base in WORDS["object_acts"]
        later = [one.text(following)] if causes else one.after(chunk, "when", "where", "as")
        tail = [*one.before(chunk), *later]
        yield from one.ask(wh, begin, chunk.stop, tail, 1.8 if one.tags[phrase.head] in "PQ" else 1.2)


def _about_number(one: Composer, chunk: Chunk, following: Chunk) -> Iterator[RuleQuestion]:
    """How many, how much, how long; or what, if the subject is a quantity."""
    words = one.words
    number = counted_nouns(one.sentence, one.phrase(chunk.start, chunk.stop))
    amount = chunk.start + (one.tags[chunk.start] == "R")
    later = one.after(chunk, "when", "where")
    if one.copula and following.kind == "adj" and words[following.start] in WORDS["measured"]:
        tail = one.others(chunk)[1:]
        yield from one.ask(f"how {words[following.start]}", chunk.start, chunk.stop, tail, 3.0)
    elif one.words[following.start : following.start + 1] == ["per"]:
        return
    elif one.copula and one.subject.kind == "thing" and set(one.subject.text.split()) & WORDS["quantities"]:
        yield from one.ask("what", chunk.start, chunk.stop, later, 2.0)
    elif words[amount][0] in "$£€" and chunk.stop == amount + 1:
        yield from one.ask("how much", chunk.start, chunk.stop, [*one.before(chunk), *later], 3.0)
    elif number and not one.copula and "percent" not in words[chunk.start : chunk.stop]:
        yield from one.ask(
            f"how many {one.sentence.text(number[1], chunk.stop)}", *number, one.others(chunk), 3.5
        )


def _about_complement(one: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """Who or what is the subject?"""
    phrase, article = one.phrase(chunk.start, chunk.stop), one.words[chunk.start]
    subject = one.tags[one.clause.subject[0]], one.words[one.clause.subject[0]]
    wh = "who" if "person" in (one.subject.kind, phrase.kind) else "what"
    indefinite = article in ("a", "an", "one")
    short = (chunk.stop - chunk.start < 3 or (one.subject.plural and indefinite)) and wh == "what"
    common = wh == "who" and indefinite and not one.subject.text[0].isupper()
    unclear = (
        phrase.kind in ("date", "unknown")
        or one.words[phrase.head] in WORDS["empty"]
        or "'" in one.subject.text
    )
    if subject[0] in "CZR" or subject[1] in ("a", "an") or short or common or unclear:
        return
    tail = one.after(chunk, "when") if article == "the" else []
    yield from one.ask(wh, chunk.start, chunk.stop, tail, 0.8)


def _about_phrase(one: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """About a prepositional phrase: a date, a place, a duration, or the object of a preposition."""
    wh, start = one.wh(chunk)
    if not wh:
        yield from _about_inner(one, chunk)
    elif wh != "where":
        rest = one.others(chunk, without="when" if wh.endswith("when") else "")
        yield from one.ask(_of_year(one, chunk, wh, start), start, chunk.stop, rest, 4.0)
    elif not _belongs_before(one, chunk):
        yield from one.ask("where", start, chunk.stop, one.others(chunk), 3.0)


def _of_year(one: Composer, chunk: Chunk, wh: str, start: int) -> str:
    """In what year, instead of when, for every second year."""
    year = one.words[start]
    odd = wh == "when" and one.words[chunk.start].lower() == "in" and year.isdigit() and int(year) % 2
    return "in what year" if odd else wh


def _belongs_before(one: Composer, chunk: Chunk) -> bool:
    """True if a place may belong to the phrase before it, as in "the situation in Darfur"."""
    place = one.chunks.index(chunk)
    if one.base in WORDS["without_place"] and not one.passive:
        return True
    if not place:
        return False
    last = one.chunks[place - 1]
    definite = last.kind == "np" and one.words[last.start] == "the" and one.tags[chunk.start - 1] == "N"
    near = last.kind == "pp" and one.words[last.start] in _NEAR
    return one.copula or definite or near or last.kind in ("inf", "ing")


def _about_inner(one: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """About the object of a preposition, which comes first ("by which ...") or last ("... by?")."""
    inner, preposition = chunk.start + 1, one.words[chunk.start].lower()
    phrase, place = one.phrase(inner, chunk.stop), one.chunks.index(chunk)
    number = counted_nouns(one.sentence, phrase) if one.tags[inner] in "CZR" else None
    if number and preposition in ("in", "for", "with", "by", "of", "to"):
        towns = one.sentence.text(number[1], chunk.stop)
        yield from one.ask(f"{preposition} how many {towns}", *number, one.others(chunk), 2.5)
        return
    moves = phrase.kind == "place" and (
        preposition == "from" or (preposition == "to" and one.base in WORDS["motion"])
    )
    attached = (
        (preposition == "of" and one.copula)
        or place > 1
        or (place == 1 and one.chunks[0].kind not in ("adj", "adv"))
    )
    if (attached and not (moves and preposition == "to")) or phrase.kind in ("number", "date"):
        return
    if preposition not in WORDS["stranded"] and one.base not in WORDS["preposition_last"]:
        return
    bare = chunk.stop - inner == 1 and one.tags[inner] == "N" and not one.words[inner].endswith(_NOUN_ENDINGS)
    if one.vague(inner, chunk.stop) or (
        preposition == "to" and bare
    ):  # perhaps a verb: "scripted to dispense"
        return
    before, later = one.before(chunk), one.after(chunk, "when")
    if moves:
        tail = [*before, *(["from"] if preposition == "from" else []), *later]
        yield from one.ask("where", inner, chunk.stop, tail, 2.0)
        return
    asked = who_or_what(one.sentence, phrase, preposition == "by" and one.passive and one.memory.personal)
    if preposition == "as" or one.base == "belong" or (asked is None and preposition in ("of", "into")):
        asked = "what", inner
    if asked is None:
        return
    wh, begin = asked
    rank = 2.2 if one.tags[phrase.head] in "PQ" else 1.5
    if wh.startswith("which"):
        yield from one.ask(f"{preposition} {wh}", begin, chunk.stop, [*before, *later], rank)
    else:
        yield from one.ask(wh, begin, chunk.stop, [*before, preposition, *later], rank)
