"""Pocket tasks about one sentence: acceptability (cola) and sentiment (sst2)."""

from __future__ import annotations

from tasks.pocket import words
from tasks.pocket.rng import GeneratedRow, Rng
from tasks.pocket.words import plural, sentence, terms

WOMEN_NOUNS = terms("girl queen woman waitress sister aunt actress princess mother daughter")
MEN_NOUNS = terms("boy king man waiter brother uncle actor prince father son")
REFLEXIVE_VERBS = ("hurt", "washed", "blamed", "praised", "introduced", "defended", "described", "trusted")
DOING = terms("sleeping waiting singing working dancing reading talking eating")
LINKS = ("near", "behind", "beside", "next to")


def cola(rng: Rng, label: int) -> GeneratedRow:
    """A sentence that keeps (1) or breaks (0) a rule: agreement, determiner, reflexive, verb form, order."""
    rule = rng.pick((_order, _order, _order, _order, _agreement, _determiner, _reflexive, _verb_form))
    return GeneratedRow((rule(rng, label == 1),), label)


def _thing(rng: Rng) -> str:
    return f"the {rng.pick(words.ADJECTIVES)} {rng.pick(words.THINGS)}"


def _order(rng: Rng, good: bool) -> str:
    """Article, adjective, noun, verb and object are in English word order."""
    job, verb, place = rng.pick(words.JOBS), rng.pick(words.ACTIONS).past, rng.pick(words.PLACES)
    adjective, thing = rng.pick(words.ADJECTIVES), rng.pick(words.THINGS)
    if good:
        return sentence("the", job, verb, "the", adjective, thing, "in the", place)
    return sentence(
        rng.pick(
            (
                f"{job} the {verb} the {adjective} {thing} in the {place}",
                f"the {job} {verb} {adjective} {thing} the in the {place}",
                f"the {job} {verb} the {thing} {adjective} the in {place}",
                f"the {job} the {adjective} {thing} in the {place} {verb}",
                f"the {job} {verb} the {adjective} {thing} the {place} in",
                f"{verb} the the {job} {adjective} {thing} in the {place}",
            )
        )
    )


def _agreement(rng: Rng, good: bool) -> str:
    """The verb agrees with its subject, not with a noun between them."""
    subject, between = rng.sample(words.JOBS, 2)
    is_plural = rng.chance(0.5)
    phrase = f"the {plural(subject) if is_plural else subject}"
    if rng.chance(0.2):
        phrase += f" {rng.pick(LINKS)} the {rng.pick((between, plural(between)))}"
    verb = "are" if is_plural == good else "is"
    return sentence(phrase, verb, rng.pick(DOING), "in the", rng.pick(words.PLACES))


def _determiner(rng: Rng, good: bool) -> str:
    """The determiner agrees with its noun in number."""
    many = rng.chance(0.5)
    determiner = rng.pick(("these", "many") if many else ("this", "every"))
    noun = rng.pick(words.JOBS)
    subject = plural(noun) if many == good else noun
    return sentence(
        determiner, subject, rng.pick(words.ACTIONS).past, _thing(rng), rng.pick(("", "yesterday"))
    )


def _reflexive(rng: Rng, good: bool) -> str:
    """The reflexive pronoun agrees with its subject in gender."""
    woman = rng.chance(0.5)
    subject = rng.pick(WOMEN_NOUNS if woman else MEN_NOUNS)
    pronoun = "herself" if woman == good else "himself"
    return sentence("the", subject, rng.pick(REFLEXIVE_VERBS), pronoun, "in the", rng.pick(words.PLACES))


def _verb_form(rng: Rng, good: bool) -> str:
    """An auxiliary is followed by the right verb form: "can paint", "has painted"."""
    verb = rng.pick(words.ACTIONS)
    takes_base = rng.chance(0.5)
    auxiliary = rng.pick(("can", "will", "did not") if takes_base else ("has", "had", "have not"))
    job = rng.pick(words.JOBS)
    form = verb.base if takes_base == good else verb.participle
    return sentence("the", plural(job) if auxiliary == "have not" else job, auxiliary, form, _thing(rng))


GOOD = terms(
    "brilliant charming delightful funny moving wonderful superb clever fresh touching elegant exciting "
    "graceful gripping inspired lovely memorable powerful splendid warm witty thrilling beautiful "
    "convincing enjoyable excellent fascinating honest imaginative rewarding"
)
BAD = terms(
    "boring dull awful terrible clumsy silly tedious shallow weak bland lifeless predictable annoying "
    "messy pointless stale ugly empty dreadful sloppy painful tiresome hollow ridiculous horrible "
    "confusing disappointing forgettable lazy unpleasant"
)
ASPECTS = terms(
    "lighting dancing story plot script acting dialogue ending music humour camera cast direction pacing "
    "romance comedy drama soundtrack premise hero villain opening finale"
)
STRONG = ("very", "truly", "really", "so", "rather", "quite", "utterly", "always", "often")
OPENINGS = ("i remember", "everyone talks about", "you will notice", "this is all about")
NEGATIONS = ("not", "hardly", "never", "not really", "far from")


def sst2(rng: Rng, label: int) -> GeneratedRow:
    """A positive (1) or negative (0) opinion. Negation reverses it; the last of two clauses decides."""
    positive, style = label == 1, rng.below(20)
    first, second = rng.sample(ASPECTS, 2)
    if style < 5:
        praise = GOOD if positive else BAD
        text = f"{rng.pick(OPENINGS)} its {rng.pick(praise)} {first} and its {rng.pick(praise)} {second}"
    elif style < 13:
        text = _clause(rng, positive, first)
    else:
        against, verdict = _clause(rng, not positive, first), _clause(rng, positive, second)
        text = f"although {against} , {verdict}" if rng.chance(0.3) else f"{against} , but {verdict}"
    return GeneratedRow((f"{text} .",), label)


def _clause(rng: Rng, positive: bool, aspect: str) -> str:
    """An opinion on one aspect, expressed directly or by negating the opposite adjective."""
    if rng.chance(0.35):
        return f"the {aspect} is {rng.pick(NEGATIONS)} {rng.pick(BAD if positive else GOOD)}"
    return f"the {aspect} is {rng.pick(STRONG)} {rng.pick(GOOD if positive else BAD)}"
