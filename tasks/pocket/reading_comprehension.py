"""Pocket tasks about answers in a text: whether a sentence holds the answer (qnli), and where (squad)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasks.pocket import words
from tasks.pocket.rng import GeneratedRow, Rng
from tasks.pocket.words import terms

SITES = terms(
    "museum library theatre hospital school bakery hotel stadium castle market factory bridge garden college "
    "bank"
)
PURPOSES = (
    "to help the poor",
    "to honour the king",
    "to create jobs",
    "to attract visitors",
    "to feed the soldiers",
    "to train young people",
    "to celebrate the peace",
    "to save an old forest",
)


@dataclass(frozen=True)
class Site:
    """All facts about one place."""

    name: str
    founder: str
    year: str
    city: str
    colour: str
    rooms: str
    purpose: str
    cost: str


@dataclass(frozen=True)
class Slot:
    """One fact to ask about: questions, and statements that hold the answer, as templates over a Site."""

    field: str
    questions: tuple[str, ...]
    statements: tuple[str, ...]


SLOTS = (
    Slot(
        "founder",
        ("Who founded the {name}?", "Which person opened the {name}?"),
        ("The {name} was founded by {founder}.", "{founder} opened the {name} with great joy."),
    ),
    Slot(
        "year",
        ("When was the {name} opened?", "In what year did the {name} open?"),
        ("The {name} opened its doors in {year}.", "In {year}, the first visitors came to the {name}."),
    ),
    Slot(
        "city",
        ("Where is the {name}?", "In which city does the {name} stand?"),
        ("The {name} stands near the river in {city}.", "Travellers to {city} like to see the {name}."),
    ),
    Slot(
        "colour",
        ("What colour is the {name}?", "In which colour was the {name} painted?"),
        ("The walls of the {name} were painted {colour}.", "The roof of the {name} is bright {colour}."),
    ),
    Slot(
        "rooms",
        ("How many rooms does the {name} have?", "What is the number of rooms in the {name}?"),
        ("The {name} has {rooms} rooms.", "There are {rooms} rooms in the {name}."),
    ),
    Slot(
        "purpose",
        ("Why was the {name} built?", "What was the purpose of the {name}?"),
        ("The {name} was built {purpose}.", "Workers built the {name} {purpose}."),
    ),
    Slot(
        "cost",
        ("How much did the {name} cost?", "What was the price of the {name}?"),
        ("The {name} cost {cost} dollars.", "The town paid {cost} dollars for the {name}."),
    ),
)


def _random_site(rng: Rng) -> Site:
    people = words.WOMEN + words.MEN
    return Site(
        name=f"{rng.pick(words.SURNAMES)} {rng.pick(SITES).capitalize()}",
        founder=f"{rng.pick(people)} {rng.pick(words.SURNAMES)}",
        year=str(1700 + rng.below(300)),
        city=rng.pick(words.CITIES),
        colour=rng.pick(words.COLOURS),
        rooms=rng.pick((*words.NUMBERS[2:], "forty", "fifty", "sixty", "ninety")),
        purpose=rng.pick(PURPOSES),
        cost=f"{2 + rng.below(90)},000",
    )


def _fill(pattern: str, site: Site) -> str:
    return pattern.format(**vars(site))


def qnli(rng: Rng, label: int) -> GeneratedRow:
    """A question and a sentence that answers it (0) or not (1).

    A sentence that does not answer states another fact about the same place, or the same fact about another
    place.
    """
    site, slot = _random_site(rng), rng.pick(SLOTS)
    question, stated = _fill(rng.pick(slot.questions), site), slot
    if label == 1 and rng.chance(0.8):
        stated = rng.other(SLOTS, slot)
    elif label == 1:
        site = replace(site, name=_other_name(rng, site.name))
    return GeneratedRow((question, _fill(rng.pick(stated.statements), site)), label)


def _other_name(rng: Rng, name: str) -> str:
    surname, site = name.split()
    return f"{rng.other(words.SURNAMES, surname)} {site}"


@dataclass(frozen=True)
class PocketQuestion:
    """One question about a paragraph; `start` is the character offset of its answer in the context.

    If the paragraph does not answer the question, `answer` is "" and `start` is -1.
    """

    text: str
    answer: str
    start: int


@dataclass(frozen=True)
class GeneratedParagraph:
    """A paragraph of 4 to 6 sentences and the questions about it."""

    title: str
    context: str
    questions: tuple[PocketQuestion, ...]


def squad(rng: Rng, unanswered: bool = False) -> GeneratedParagraph:
    """A paragraph about one place, with a sentence or two about another, and three questions about the first.

    Args:
        unanswered: add a question that the paragraph does not answer.
    """
    site = _random_site(rng)
    other_site = replace(_random_site(rng), name=_other_name(rng, site.name))
    slots = rng.sample(SLOTS, 3 + rng.below(2))
    facts = [(site, slot) for slot in slots]
    facts += [(other_site, slot) for slot in rng.sample(SLOTS, 1 + rng.below(2))]
    context, starts = "", {}
    for subject, slot in rng.sample(facts, len(facts)):
        pattern = rng.pick(slot.statements)
        if subject is site:
            before = pattern.split("{" + slot.field + "}")[0]
            starts[slot.field] = len(context) + len(_fill(before, subject))
        context += _fill(pattern, subject) + " "
    questions = [
        PocketQuestion(_fill(rng.pick(slot.questions), site), getattr(site, slot.field), starts[slot.field])
        for slot in slots[:3]
    ]
    if unanswered:
        slot = rng.pick([slot for slot in SLOTS if slot not in slots])
        questions.append(PocketQuestion(_fill(rng.pick(slot.questions), site), "", -1))
    return GeneratedParagraph(site.name, context.rstrip(), tuple(questions))
