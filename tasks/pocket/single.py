"""Pocket tasks over one sentence: acceptability (cola) and sentiment (sst2)."""

from __future__ import annotations

from tasks.pocket import words
from tasks.pocket.dice import Dice, Made
from tasks.pocket.words import plural, sentence, terms, third

WOMEN_NOUNS = (
    "girl",
    "queen",
    "woman",
    "waitress",
    "sister",
    "aunt",
    "actress",
    "princess",
    "mother",
    "daughter",
)
MEN_NOUNS = ("boy", "king", "man", "waiter", "brother", "uncle", "actor", "prince", "father", "son")
REFLEXIVE_VERBS = ("hurt", "washed", "blamed", "praised", "introduced", "defended", "described", "trusted")
LINKS = ("near", "behind", "beside", "next to")


def cola(dice: Dice, wanted: int) -> Made:
    """A sentence that keeps (1) or breaks (0) a rule: agreement, determiner, reflexive, verb form, order."""
    rule = dice.pick((_agreement, _agreement, _determiner, _reflexive, _verb_form, _order, _order))
    return Made((rule(dice, wanted == 1),), wanted)


def _agreement(dice: Dice, good: bool) -> str:
    """The verb agrees with the subject, whatever the number of the noun between them."""
    subject, between = dice.sample(words.JOBS, 2)
    many, many_between = dice.chance(0.5), dice.chance(0.5)
    phrase = f"the {plural(subject) if many else subject}"
    if dice.chance(0.35):
        phrase += f" {dice.pick(LINKS)} the {plural(between) if many_between else between}"
    plural_verb = many == good
    if dice.chance(0.5):
        return sentence(phrase, "are" if plural_verb else "is", _ing(dice), "in the", dice.pick(words.PLACES))
    verb = dice.pick(words.ACTIONS).base
    return sentence(phrase, verb if plural_verb else third(verb), _thing(dice), "every day")


def _ing(dice: Dice) -> str:
    return dice.pick(("sleeping", "waiting", "singing", "working", "dancing", "reading", "talking", "eating"))


def _thing(dice: Dice) -> str:
    return f"the {dice.pick(words.ADJECTIVES)} {dice.pick(words.THINGS)}"


def _determiner(dice: Dice, good: bool) -> str:
    """The determiner agrees with its noun in number."""
    many = dice.chance(0.5)
    determiner = dice.pick(
        ("these", "those", "many", "several") if many else ("this", "that", "every", "each")
    )
    noun = dice.pick(words.JOBS)
    return sentence(
        determiner,
        plural(noun) if many == good else noun,
        dice.pick(words.ACTIONS).past,
        _thing(dice),
        dice.pick(("", "yesterday", "last week")),
    )


def _reflexive(dice: Dice, good: bool) -> str:
    """The reflexive pronoun agrees with the subject in gender and number."""
    woman = dice.chance(0.5)
    if dice.chance(0.5):
        subject = dice.pick(words.WOMEN if woman else words.MEN)
    else:
        subject = "the " + dice.pick(WOMEN_NOUNS if woman else MEN_NOUNS)
    pronoun = "herself" if woman == good else "himself"
    place = f"in the {dice.pick(words.PLACES)}"
    return sentence(subject, dice.pick(REFLEXIVE_VERBS), pronoun, dice.pick((place, "again", "yesterday")))


def _verb_form(dice: Dice, good: bool) -> str:
    """An auxiliary takes the verb form that it governs."""
    verb = dice.pick(words.ACTIONS)
    base, participle = verb.base, verb.participle
    governed = {
        "can": base,
        "will": base,
        "did not": base,
        "must": base,
        "has": participle,
        "had": participle,
    }
    auxiliary = dice.pick(tuple(governed))
    form = governed[auxiliary]
    if not good:
        form = participle if form == base else base
    return sentence("the", dice.pick(words.JOBS), auxiliary, form, _thing(dice))


def _order(dice: Dice, good: bool) -> str:
    """Article, adjective, noun, verb and object stand in the order of English."""
    job, verb, place = dice.pick(words.JOBS), dice.pick(words.ACTIONS).past, dice.pick(words.PLACES)
    adjective, thing = dice.pick(words.ADJECTIVES), dice.pick(words.THINGS)
    orders = (
        f"{job} the {verb} the {adjective} {thing} in the {place}",
        f"the {job} {verb} the {thing} {adjective} in the {place}",
        f"the {job} {verb} {adjective} the {thing} in the {place}",
        f"the {job} the {adjective} {thing} {verb} in the {place}",
        f"the {job} {verb} the {adjective} {thing} the {place} in",
        f"the {job} {verb} the {adjective} in the {thing} {place}",
    )
    return sentence(f"the {job} {verb} the {adjective} {thing} in the {place}" if good else dice.pick(orders))


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
    "film movie story plot script acting dialogue ending music humour camera cast direction pacing "
    "romance comedy drama soundtrack premise hero villain opening finale"
)
STRONG = ("very", "truly", "really", "so", "rather", "quite", "utterly", "always", "often")
NEGATIONS = ("not", "hardly", "never", "not really", "far from")


def sst2(dice: Dice, wanted: int) -> Made:
    """An opinion, positive (1) or not (0): negation turns it round, the last of two clauses decides."""
    positive, style = wanted == 1, dice.below(20)
    if style < 5:
        first, second = dice.sample(ASPECTS, 2)
        return Made((f"{_phrase(dice, positive, first)} , with {_phrase(dice, positive, second)} .",), wanted)
    first, second = dice.sample(ASPECTS, 2)
    if style < 13:
        return Made((f"{_clause(dice, positive, first)} .",), wanted)
    against, verdict = _clause(dice, not positive, first), _clause(dice, positive, second)
    joined = f"although {against} , {verdict} ." if dice.chance(0.3) else f"{against} , but {verdict} ."
    return Made((joined,), wanted)


def _phrase(dice: Dice, positive: bool, aspect: str) -> str:
    return words.a(f"{dice.pick(GOOD if positive else BAD)} {aspect}")


def _clause(dice: Dice, positive: bool, aspect: str) -> str:
    """An opinion on one aspect, plain or through a negated adjective of the other side."""
    if dice.chance(0.35):
        return f"the {aspect} is {dice.pick(NEGATIONS)} {dice.pick(BAD if positive else GOOD)}"
    return f"the {aspect} is {dice.pick(STRONG)} {dice.pick(GOOD if positive else BAD)}"
