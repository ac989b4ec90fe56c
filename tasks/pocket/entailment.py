"""Pocket tasks about what follows from a text: entailment (rte, mnli, ax) and pronouns (wnli)."""

from __future__ import annotations

from tasks.pocket import words
from tasks.pocket.rng import GeneratedRow, Rng
from tasks.pocket.words import OFFICE, TOWN, Domain, a, gerund, plural, sentence, terms

ENTAILED, NEUTRAL, CONTRADICTED = 0, 1, 2

# (quantifier of the premise, quantifier of the hypothesis) -> label, for the same nouns.
QUANTIFIERS = {
    ("all", "some"): ENTAILED,
    ("all", "most"): ENTAILED,
    ("most", "some"): ENTAILED,
    ("some", "all"): NEUTRAL,
    ("some", "most"): NEUTRAL,
    ("most", "all"): NEUTRAL,
    ("all", "no"): CONTRADICTED,
    ("no", "all"): CONTRADICTED,
    ("some", "no"): CONTRADICTED,
    ("no", "some"): CONTRADICTED,
}
# (quantifier, whether the hypothesis widens "dogs" to "animals" or narrows "animals" to "dogs") -> label.
WIDENING = {
    ("all", False): ENTAILED,
    ("some", True): ENTAILED,
    ("no", False): ENTAILED,
    ("all", True): NEUTRAL,
    ("some", False): NEUTRAL,
    ("no", True): NEUTRAL,
}


def _quantified(rng: Rng, domain: Domain, label: int) -> tuple[str, str]:
    """ "All dogs in the park are old." against "Some dogs in the park are old." or "Some animals …"."""
    kind, place, state = rng.pick(domain.kinds), rng.pick(domain.places), rng.pick(domain.states)
    general, specific = plural(kind.name), plural(rng.pick(kind.members))
    if label != CONTRADICTED and rng.chance(0.4):
        before, widens = rng.pick([key for key, value in WIDENING.items() if value == label])
        after, subject, other = (before, specific, general) if widens else (before, general, specific)
    else:
        before, after = rng.pick([key for key, value in QUANTIFIERS.items() if value == label])
        subject = other = rng.pick((general, specific))
    rest = f"in the {place} are {state}"
    return sentence(before, subject, rest), sentence(after, other, rest)


def _scene(rng: Rng, domain: Domain, label: int) -> tuple[str, str]:
    """ "A tall man is feeding a dog in the park." against a variation of it."""
    kind, person, place = rng.pick(domain.kinds), rng.pick(domain.people), rng.pick(domain.places)
    thing, look, verb = rng.pick(kind.members), rng.pick(domain.adjectives), rng.pick(kind.verbs)
    who, where, doing = f"{look} {person}", f"in the {place}", gerund(verb)
    premise = sentence(a(who), "is", doing, a(thing), where)
    shorter = rng.pick((person, who))
    if label == ENTAILED:
        named = rng.pick((thing, kind.name, kind.name))
        hypothesis = sentence(a(shorter), "is", doing, a(named), rng.pick(("", where)))
        return premise, hypothesis if hypothesis != premise else sentence(a(person), "is", doing, a(named))
    if label == NEUTRAL:
        general = sentence(a(person), "is", doing, a(rng.pick((thing, kind.name))), where)
        extra = rng.below(3)
        if extra == 0:
            return general, premise
        if extra == 1:
            return premise, sentence(a(shorter), "is", doing, a(thing), "for", rng.pick(FOR_WHOM))
        wider = sentence(a(who), "is", doing, a(kind.name), where)
        return wider, sentence(a(shorter), "is", doing, a(thing), rng.pick(("", where)))
    style = rng.below(3)
    if style == 0:
        return premise, sentence(a(shorter), "is not", doing, a(rng.pick((thing, kind.name))), where)
    if style == 1:
        return premise, sentence("nobody is", doing, a(rng.pick((thing, kind.name))), where)
    return premise, sentence("the", person, "is", rng.pick(ELSE))


FOR_WHOM = (
    "a friend",
    "the first time",
    "his wife",
    "a neighbour",
    "money",
    "fun",
    "an old uncle",
    "a cousin",
)
ELSE = (
    "asleep",
    "sleeping",
    "swimming",
    "alone on a beach",
    "at home in bed",
    "lying in bed",
    "doing nothing",
)


def _denied(rng: Rng, domain: Domain, label: int) -> tuple[str, str]:
    """ "The nurse did not feed an animal." against "The nurse did not feed a dog." and similar."""
    kind, person = rng.pick(domain.kinds), rng.pick(domain.people)
    thing, verb, place = rng.pick(kind.members), rng.pick(kind.verbs), rng.pick(domain.places)
    denial = ["the", person, "did not", verb]
    where = f"in the {place}"
    if label == ENTAILED:
        return sentence(*denial, a(kind.name)), sentence(*denial, a(thing), rng.pick(("", where)))
    if label == NEUTRAL:
        other = rng.other(kind.members, thing)
        return sentence(*denial, a(thing), where), sentence(*denial, a(rng.pick((kind.name, other))), where)
    claim = sentence("the", person, "was", gerund(verb), a(thing), where)
    if rng.chance(0.5):
        return sentence(*denial, a(rng.pick((kind.name, thing))), where), claim
    return claim, sentence(*denial, a(rng.pick((kind.name, thing))), where)


def _inference(rng: Rng, domain: Domain, label: int) -> tuple[str, str]:
    style = rng.pick((_scene, _scene, _quantified, _denied))
    return style(rng, domain, label)


def mnli(domain: Domain, rng: Rng, label: int) -> GeneratedRow:
    """A premise and a hypothesis in one domain: 0 entailment, 1 neutral, 2 contradiction."""
    return GeneratedRow(_inference(rng, domain, label), label)


def ax(rng: Rng, label: int) -> GeneratedRow:
    """The diagnostic set: mnli's rules in either of its domains."""
    return GeneratedRow(_inference(rng, rng.pick((TOWN, OFFICE)), label), label)


def rte(rng: Rng, label: int) -> GeneratedRow:
    """Facts about a person, or an inference as in mnli: 0 entailment, 1 no entailment."""
    if rng.chance(0.4):
        inference_label = ENTAILED if label == 0 else rng.pick((NEUTRAL, CONTRADICTED))
        return GeneratedRow(_inference(rng, TOWN, inference_label), label)
    return GeneratedRow(_people(rng, label == 0), label)


def _people(rng: Rng, follows: bool) -> tuple[str, str]:
    """ "Anna, a nurse from Oslo, bought a car." against a fact that it states, or one that it does not."""
    name, job, city = rng.pick(words.WOMEN + words.MEN), rng.pick(words.JOBS), rng.pick(words.CITIES)
    kind = rng.pick(TOWN.kinds)
    thing, got = rng.pick(kind.members), rng.pick(("bought", "sold", "found", "lost"))
    premise = sentence(name, f", {a(job)} from {city},", got, a(thing), f"on {rng.pick(words.DAYS)}")
    other_job, other_city = rng.other(words.JOBS, job), rng.other(words.CITIES, city)
    other_kind, other_got = rng.other(TOWN.kinds, kind), rng.other(("bought", "sold", "found", "lost"), got)
    right = (
        f"{name} is {a(job)}",
        f"{name} comes from {city}",
        f"{name} {got} {a(kind.name)}",
        f"{a(job)} {got} {a(rng.pick((thing, kind.name)))}",
        f"{name} does not come from {other_city}",
    )
    wrong = (
        f"{name} is {a(other_job)}",
        f"{name} comes from {other_city}",
        f"{name} {got} {a(rng.pick((other_kind.name, rng.pick(other_kind.members))))}",
        f"{a(job)} {rng.pick((other_got, 'never ' + got))} {a(rng.pick((thing, kind.name)))}",
        f"{name} does not come from {city}",
    )
    return premise, sentence(rng.pick(right if follows else wrong))


CONTAINERS = terms("suitcase box bag drawer cupboard basket garage trunk cabinet crate")
CONTENTS = terms("trophy piano statue lamp ball guitar bicycle clock painting carpet mirror vase")
ANIMALS = terms("dog cat horse monkey donkey elephant goat lion rabbit bear pig wolf")
PLAYTHINGS = terms("cart bottle bucket lamp drum radio kettle wagon balloon clock chair ladder basket bell")
MOODS = terms("tired lonely hungry angry bored ill sleepy worried happy afraid thirsty jealous")
CONDITIONS = terms("broken empty rusty expensive wooden plastic cheap cracked metallic unlocked")


def wnli(rng: Rng, label: int) -> GeneratedRow:
    """A sentence with a pronoun, and its clause with a noun substituted: the right (1) or wrong (0) one.

    The clues are the pronoun's gender, animacy, and what must be large or small.
    """
    right = label == 1
    return GeneratedRow(rng.pick((_gender, _animate, _animate, _size, _size))(rng, right), label)


def _gender(rng: Rng, right: bool) -> tuple[str, str]:
    """ "Anna called Peter because she was ill." - "Anna was ill." """
    pair = (rng.pick(words.WOMEN), rng.pick(words.MEN))
    mood, woman = rng.pick(MOODS), rng.chance(0.5)
    caller, called = pair if rng.chance(0.5) else pair[::-1]
    pronoun = "she" if woman else "he"
    verb = rng.pick(("called", "met", "left", "visited"))
    name = pair[0] if woman == right else pair[1]
    return sentence(caller, verb, called, "because", pronoun, "was", mood), sentence(name, "was", mood)


def _animate(rng: Rng, right: bool) -> tuple[str, str]:
    """ "The dog left the cart because it was hungry." - "The dog was hungry." """
    animal, thing = rng.pick(ANIMALS), rng.pick(PLAYTHINGS)
    mood = rng.chance(0.85)
    state = rng.pick(MOODS if mood else CONDITIONS)
    verb = rng.pick(("left", "dropped", "kicked", "pushed", "ignored"))
    noun = animal if mood == right else thing
    return (
        sentence("the", animal, verb, "the", thing, "because it was", state),
        sentence("the", noun, "was", state),
    )


def _size(rng: Rng, right: bool) -> tuple[str, str]:
    """ "The ball did not fit into the box because it was too large." - "The ball was too large." """
    content, container = rng.pick(CONTENTS), rng.pick(CONTAINERS)
    large = rng.chance(0.85)
    size = rng.pick(("large", "big", "wide") if large else ("small", "narrow", "tiny"))
    noun = content if large == right else container
    return (
        sentence("the", content, "did not fit into the", container, "because it was too", size),
        sentence("the", noun, "was too", size),
    )
