"""The questions about a clause: about its subject, an object, a date, a place, a number or a reason."""

from __future__ import annotations

from collections.abc import Iterator

from augment.questions.rules.answers import NameHints, counted_nouns, who_or_what
from augment.questions.rules.chunks import Chunk
from augment.questions.rules.clauses import Clause
from augment.questions.rules.composer import Composer, RuleQuestion, Subject
from augment.questions.rules.words import WORDS

_NEAR = frozenset(["in", "at", "on", "near", "from"])
_NOUN_ENDINGS = ("s", "tion", "ment", "or", "er", "ity", "ness")


def clause_questions(clause: Clause, memory: NameHints, subject: Subject) -> Iterator[RuleQuestion]:
    """The questions that can be asked about a clause."""
    composer = Composer(clause, memory, subject)
    if composer.tags[clause.subject[0]] == "!":
        yield from _about_existing(composer)
        return
    yield from _about_subject(composer)
    for chunk in clause.chunks:
        if chunk.kind == "why":
            yield from composer.ask("why", chunk.start, chunk.stop, composer.others(chunk), 3.0)
        elif chunk.kind == "np" and chunk.complete:
            yield from _about_object(composer, chunk)
        elif chunk.kind == "pp" and chunk.complete:
            yield from _about_phrase(composer, chunk)
    for lead in clause.lead:
        wh, start = composer.wh(lead)
        if wh and not (wh == "where" and composer.base in WORDS["without_place"]):
            rest = composer.others(lead, without="when" if wh == "when" else "")
            yield from composer.ask(_of_year(composer, lead, wh, start), start, lead.stop, rest, 3.8, lead)


def _about_existing(composer: Composer) -> Iterator[RuleQuestion]:
    """There are 20 towns in the county: how many towns are there in the county?"""
    first, *rest = composer.chunks or [Chunk("", 0, 0)]
    number = (
        counted_nouns(composer.sentence, composer.phrase(first.start, first.stop))
        if first.kind == "np"
        else None
    )
    if number and first.complete and (rest or composer.lead()):
        towns = composer.sentence.text(number[1], first.stop)
        parts = [
            "how many",
            towns,
            composer.words[composer.clause.verb[0]],
            "there",
            *composer.others(first),
            composer.lead(),
        ]
        yield from composer.question_if_valid(parts, *number, 3.5)


def _about_subject(composer: Composer) -> Iterator[RuleQuestion]:
    start, stop = composer.clause.subject
    tags = composer.tags[start:stop]
    tail = composer.others(None)
    if tags[0] == "U" or "&" in tags or "W" in tags or not tail or composer.base == "include":
        return
    phrase = composer.phrase(start, stop)
    number = counted_nouns(composer.sentence, phrase)
    if number and tags[0] in "CZR":
        parts = ["how many", composer.sentence.text(number[1], stop), *composer.group, *tail, composer.lead()]
        yield from composer.question_if_valid(parts, *number, 3.0)
        return
    complement = composer.chunks[0]
    named = set(composer.tags[complement.start : complement.stop]) == {"P"}
    definite = complement.kind in ("adj", "adv") or (
        complement.kind == "np" and (named or composer.words[complement.start] == "the")
    )
    if tags[0] in "CZ" or composer.is_vague(start, stop) or (composer.copula and not definite):
        return
    acts = composer.base in WORDS["done_to_persons" if composer.passive else "persons_do"]
    acts = acts or (phrase.kind == "body" and not composer.passive and not composer.copula)
    things = composer.passive and composer.base in WORDS["done_to_things"]
    wh_and_start = who_or_what(composer.sentence, phrase, acts or (composer.memory.personal and not things))
    if composer.copula and complement.kind == "np" and (tags[0] == "D" or phrase.kind == "unknown"):
        kind = composer.phrase(complement.start, complement.stop).kind
        wh_and_start = {
            "person": ("who", start),
            "group": ("who", start),
            "thing": wh_and_start or ("what", start),
        }.get(kind)
    if not wh_and_start:
        return
    wh, begin = wh_and_start
    if wh == "what" and composer.base in WORDS["minds_do"] and not composer.passive:
        wh = "who"
    plain = wh == "what" and composer.tags[phrase.head] not in "PQ" and not composer.passive
    plural = composer.subject.plural and (wh == "who" or wh.startswith("which"))
    keep = plural or (composer.copula and complement.kind == "np")
    yield from composer.question_if_valid(
        [wh, *composer.predicate(keep), *tail, composer.lead()], begin, stop, 0.5 if plain else 2.0
    )


def _about_object(composer: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    index = composer.chunks.index(chunk)
    following = (
        composer.chunks[index + 1] if index + 1 < len(composer.chunks) else Chunk("", chunk.stop, chunk.stop)
    )
    if index and composer.chunks[index - 1].kind in ("np", "adj", "inf", "ing"):
        return
    phrase = composer.phrase(chunk.start, chunk.stop)
    if composer.tags[chunk.start] in "CZR":
        yield from _about_number(composer, chunk, following)
    elif composer.copula:
        yield from _about_complement(composer, chunk)
    else:
        wh_and_start = who_or_what(composer.sentence, phrase, False)
        two = (composer.base in WORDS["two_objects"] and not composer.passive) or following.kind == "np"
        names = (
            "&" in composer.tags[chunk.start : chunk.stop]
            and phrase.kind == "thing"
            and composer.tags[phrase.head] == "P"
        )
        agent = composer.passive and phrase.kind != "thing" and composer.base not in WORDS["naming"]
        if not wh_and_start or two or names or agent or composer.is_vague(chunk.start, chunk.stop):
            return
        wh, begin = wh_and_start
        if wh == "who" and composer.base in WORDS["linking"]:
            wh = "what"
        causes = following.kind == "inf" and composer.base in WORDS["object_acts"]
        later = [composer.text(following)] if causes else composer.after(chunk, "when", "where", "as")
        tail = [*composer.before(chunk), *later]
        yield from composer.ask(
            wh, begin, chunk.stop, tail, 1.8 if composer.tags[phrase.head] in "PQ" else 1.2
        )


def _about_number(composer: Composer, chunk: Chunk, following: Chunk) -> Iterator[RuleQuestion]:
    """How many, how much, how long; or what, if the subject is a quantity."""
    words = composer.words
    number = counted_nouns(composer.sentence, composer.phrase(chunk.start, chunk.stop))
    amount = chunk.start + (composer.tags[chunk.start] == "R")
    later = composer.after(chunk, "when", "where")
    if composer.copula and following.kind == "adj" and words[following.start] in WORDS["measured"]:
        tail = composer.others(chunk)[1:]
        yield from composer.ask(f"how {words[following.start]}", chunk.start, chunk.stop, tail, 3.0)
    elif composer.words[following.start : following.start + 1] == ["per"]:
        return
    elif (
        composer.copula
        and composer.subject.kind == "thing"
        and set(composer.subject.text.split()) & WORDS["quantities"]
    ):
        yield from composer.ask("what", chunk.start, chunk.stop, later, 2.0)
    elif words[amount][0] in "$£€" and chunk.stop == amount + 1:
        yield from composer.ask("how much", chunk.start, chunk.stop, [*composer.before(chunk), *later], 3.0)
    elif number and not composer.copula and "percent" not in words[chunk.start : chunk.stop]:
        yield from composer.ask(
            f"how many {composer.sentence.text(number[1], chunk.stop)}", *number, composer.others(chunk), 3.5
        )


def _about_complement(composer: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """Who or what is the subject?"""
    phrase, article = composer.phrase(chunk.start, chunk.stop), composer.words[chunk.start]
    subject = composer.tags[composer.clause.subject[0]], composer.words[composer.clause.subject[0]]
    wh = "who" if "person" in (composer.subject.kind, phrase.kind) else "what"
    indefinite = article in ("a", "an", "one")
    short = (chunk.stop - chunk.start < 3 or (composer.subject.plural and indefinite)) and wh == "what"
    common = wh == "who" and indefinite and not composer.subject.text[0].isupper()
    unclear = (
        phrase.kind in ("date", "unknown")
        or composer.words[phrase.head] in WORDS["empty"]
        or "'" in composer.subject.text
    )
    if subject[0] in "CZR" or subject[1] in ("a", "an") or short or common or unclear:
        return
    tail = composer.after(chunk, "when") if article == "the" else []
    yield from composer.ask(wh, chunk.start, chunk.stop, tail, 0.8)


def _about_phrase(composer: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """About a prepositional phrase: a date, a place, a duration, or the object of a preposition."""
    wh, start = composer.wh(chunk)
    if not wh:
        yield from _about_inner(composer, chunk)
    elif wh != "where":
        rest = composer.others(chunk, without="when" if wh.endswith("when") else "")
        yield from composer.ask(_of_year(composer, chunk, wh, start), start, chunk.stop, rest, 4.0)
    elif not _belongs_before(composer, chunk):
        yield from composer.ask("where", start, chunk.stop, composer.others(chunk), 3.0)


def _of_year(composer: Composer, chunk: Chunk, wh: str, start: int) -> str:
    """In what year, instead of when, for every second year."""
    year = composer.words[start]
    odd = wh == "when" and composer.words[chunk.start].lower() == "in" and year.isdigit() and int(year) % 2
    return "in what year" if odd else wh


def _belongs_before(composer: Composer, chunk: Chunk) -> bool:
    """True if a place may belong to the phrase before it, as in "the situation in Darfur"."""
    index = composer.chunks.index(chunk)
    if composer.base in WORDS["without_place"] and not composer.passive:
        return True
    if not index:
        return False
    last = composer.chunks[index - 1]
    definite = (
        last.kind == "np" and composer.words[last.start] == "the" and composer.tags[chunk.start - 1] == "N"
    )
    near = last.kind == "pp" and composer.words[last.start] in _NEAR
    return composer.copula or definite or near or last.kind in ("inf", "ing")


def _about_inner(composer: Composer, chunk: Chunk) -> Iterator[RuleQuestion]:
    """About the object of a preposition, which comes first ("by which ...") or last ("... by?")."""
    inner, preposition = chunk.start + 1, composer.words[chunk.start].lower()
    phrase, index = composer.phrase(inner, chunk.stop), composer.chunks.index(chunk)
    number = counted_nouns(composer.sentence, phrase) if composer.tags[inner] in "CZR" else None
    if number and preposition in ("in", "for", "with", "by", "of", "to"):
        towns = composer.sentence.text(number[1], chunk.stop)
        yield from composer.ask(f"{preposition} how many {towns}", *number, composer.others(chunk), 2.5)
        return
    moves = phrase.kind == "place" and (
        preposition == "from" or (preposition == "to" and composer.base in WORDS["motion"])
    )
    attached = (
        (preposition == "of" and composer.copula)
        or index > 1
        or (index == 1 and composer.chunks[0].kind not in ("adj", "adv"))
    )
    if (attached and not (moves and preposition == "to")) or phrase.kind in ("number", "date"):
        return
    if preposition not in WORDS["stranded"] and composer.base not in WORDS["preposition_last"]:
        return
    bare = (
        chunk.stop - inner == 1
        and composer.tags[inner] == "N"
        and not composer.words[inner].endswith(_NOUN_ENDINGS)
    )
    if composer.is_vague(inner, chunk.stop) or (
        preposition == "to" and bare
    ):  # perhaps a verb: "scripted to dispense"
        return
    before, later = composer.before(chunk), composer.after(chunk, "when")
    if moves:
        tail = [*before, *(["from"] if preposition == "from" else []), *later]
        yield from composer.ask("where", inner, chunk.stop, tail, 2.0)
        return
    wh_and_start = who_or_what(
        composer.sentence, phrase, preposition == "by" and composer.passive and composer.memory.personal
    )
    if (
        preposition == "as"
        or composer.base == "belong"
        or (wh_and_start is None and preposition in ("of", "into"))
    ):
        wh_and_start = "what", inner
    if wh_and_start is None:
        return
    wh, begin = wh_and_start
    rank = 2.2 if composer.tags[phrase.head] in "PQ" else 1.5
    if wh.startswith("which"):
        yield from composer.ask(f"{preposition} {wh}", begin, chunk.stop, [*before, *later], rank)
    else:
        yield from composer.ask(wh, begin, chunk.stop, [*before, preposition, *later], rank)
