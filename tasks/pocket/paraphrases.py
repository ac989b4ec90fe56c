"""Pocket tasks about two sentences that may mean the same: paraphrase (mrpc, qqp), similarity (stsb)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasks.pocket import words
from tasks.pocket.rng import GeneratedRow, Rng
from tasks.pocket.words import a, plural, sentence, terms

# Verbs that mean the same, in the past tense (which is also their participle).
DEEDS = (
    ("bought", "purchased"),
    ("repaired", "fixed"),
    ("built", "constructed"),
    ("found", "discovered"),
    ("gathered", "collected"),
    ("inspected", "examined"),
    ("destroyed", "ruined"),
    ("cleaned", "washed"),
    ("requested", "ordered"),
    ("stored", "kept"),
    ("exhibited", "displayed"),
    ("guarded", "protected"),
    ("counted", "tallied"),
    ("valued", "appraised"),
    ("rented", "leased"),
)
# Nouns that mean the same.
GOODS = (
    ("car", "automobile"),
    ("bicycle", "bike"),
    ("ship", "vessel"),
    ("picture", "image"),
    ("house", "home"),
    ("shop", "store"),
    ("aeroplane", "aircraft"),
    ("stone", "rock"),
    ("couch", "sofa"),
    ("phone", "telephone"),
    ("coat", "jacket"),
    ("present", "gift"),
    ("road", "street"),
    ("clock", "timepiece"),
    ("book", "volume"),
)
AGENTS = terms(
    "museum bank school hospital company university council army church hotel library airline factory "
    "newspaper bakery theatre farm club court police"
)


@dataclass(frozen=True)
class Fact:
    """What a news sentence says: who did what to how many of which things, where and when."""

    agent: str
    deed: tuple[str, str]
    number: str
    goods: tuple[str, str]
    city: str
    day: str


def _news(rng: Rng, fact: Fact, style: int) -> str:
    """One wording of the fact: any synonyms, and active, passive or with the day in front."""
    deed, goods = rng.pick(fact.deed), f"{fact.number} {plural(rng.pick(fact.goods))}"
    if style == 0:
        return sentence(f"the {fact.agent} {deed} {goods} in {fact.city} on {fact.day}")
    if style == 1:
        return sentence(f"{goods} were {deed} by the {fact.agent} in {fact.city} on {fact.day}")
    return sentence(f"on {fact.day} , the {fact.agent} in {fact.city} {deed} {goods}")


def mrpc(rng: Rng, label: int) -> GeneratedRow:
    """Two news sentences about the same fact (1), or about facts that differ in some parts (0)."""
    fact = Fact(
        rng.pick(AGENTS),
        rng.pick(DEEDS),
        rng.pick(words.NUMBERS),
        rng.pick(GOODS),
        rng.pick(words.CITIES),
        rng.pick(words.DAYS),
    )
    first, second = rng.sample(range(3), 2)
    second_fact = fact if label == 1 else _altered(rng, fact)
    return GeneratedRow((_news(rng, fact, first), _news(rng, second_fact, second)), label)


def _altered(rng: Rng, fact: Fact) -> Fact:
    """The fact with one to three of its parts changed."""
    changes: dict[str, object] = {
        "agent": rng.other(AGENTS, fact.agent),
        "deed": rng.other(DEEDS, fact.deed),
        "number": rng.other(words.NUMBERS, fact.number),
        "goods": rng.other(GOODS, fact.goods),
        "city": rng.other(words.CITIES, fact.city),
        "day": rng.other(words.DAYS, fact.day),
    }
    chosen = rng.sample(tuple(changes), 1 + rng.below(3))
    return replace(fact, **{name: changes[name] for name in chosen})  # type: ignore[arg-type]


# Questions about a subject X; each line holds paraphrases of one intent.
INTENTS = (
    ("How can I learn {}?", "What is the best way to learn {}?", "How do I get better at {}?"),
    ("Is {} hard for a beginner?", "How difficult is {} for beginners?", "Do beginners find {} difficult?"),
    ("Who invented {}?", "Who was the inventor of {}?", "Which person came up with {}?"),
    ("Where can I buy a book about {}?", "Which shop sells books on {}?", "Where are books about {} sold?"),
    ("Why do people like {}?", "What makes {} so popular?", "Why is {} loved by so many people?"),
    ("How old is {}?", "When did {} begin?", "How long has {} been around?"),
    ("Is {} good for my health?", "Does {} have health benefits?", "Can {} make me healthier?"),
    ("How much money can I earn with {}?", "What does {} pay?", "Can I make a living from {}?"),
    ("What is the history of {}?", "How did {} develop over time?", "What is the story behind {}?"),
    ("Is it safe to teach {} to children?", "Can kids learn {} safely?", "Is {} dangerous for children?"),
)
SUBJECTS = terms(
    "chess boxing painting swimming cooking photography yoga football tennis poetry dancing fishing "
    "gardening programming judo skiing surfing cycling drumming sewing baking pottery running climbing "
    "rowing knitting singing golf juggling origami archery calligraphy hiking wrestling magic karate"
)


def qqp(rng: Rng, label: int) -> GeneratedRow:
    """Two questions with the same intent and subject (1), or with another intent, subject or both (0)."""
    intent, subject = rng.below(len(INTENTS)), rng.pick(SUBJECTS)
    first = rng.pick(INTENTS[intent])
    if label == 1:
        return GeneratedRow((first.format(subject), rng.other(INTENTS[intent], first).format(subject)), label)
    change = rng.below(3)
    if change != 0:
        intent = rng.other(range(len(INTENTS)), intent)
    second = rng.pick(INTENTS[intent])
    other_subject = rng.other(SUBJECTS, subject) if change != 1 else subject
    return GeneratedRow((first.format(subject), second.format(other_subject)), label)


# Activities and their objects; the members of one line are interchangeable.
ACTIVITIES = (
    ("slicing", ("onion", "carrot", "potato", "tomato", "cucumber", "pepper")),
    ("playing", ("guitar", "violin", "flute", "piano", "trumpet", "drum")),
    ("riding", ("horse", "bicycle", "camel", "donkey", "scooter", "pony")),
    ("reading", ("book", "letter", "newspaper", "map", "poem", "menu")),
    ("washing", ("car", "dog", "window", "plate", "shirt", "truck")),
    ("carrying", ("box", "ladder", "suitcase", "basket", "bucket", "chair")),
    ("drawing", ("house", "cat", "flower", "tree", "boat", "bridge")),
    ("chasing", ("ball", "rabbit", "chicken", "thief", "butterfly", "bus")),
)
ACTORS = (
    ("man", "gentleman"),
    ("woman", "lady"),
    ("child", "kid"),
    ("doctor", "physician"),
    ("monkey", "ape"),
)
LOOKS = (("happy", "cheerful"), ("old", "elderly"), ("thin", "slim"), ("tall", "lanky"), ("angry", "furious"))
STSB_COSTS = {"actor": 1.5, "activity": 1.5, "object": 1.0, "look": 0.5, "place": 0.5}
SYNONYM_COST = 0.25


def stsb(rng: Rng, n_edits: int) -> GeneratedRow:
    """Two captions of one pattern, and how alike they are.

    The score is 5 - sum of `STSB_COSTS` over the parts that differ (a new activity brings a new object)
    - 0.25 per synonym, from 5.0 (nothing differs) to 0.0 (everything does). `n_edits`: number of edits.
    """
    (act, things), actor, look = rng.pick(ACTIVITIES), rng.pick(ACTORS), rng.pick(LOOKS)
    first = (look[0], actor[0], act, rng.pick(things), rng.pick(words.PLACES))
    edits = rng.sample(("actor", "activity", "object", "look", "place", "actor word", "look word"), n_edits)
    now_look, now_actor, now_act, thing, place = first
    score = 5.0 - sum(STSB_COSTS.get(edit, 0.0) for edit in edits)
    if "activity" in edits:
        now_act, options = rng.other(ACTIVITIES, (act, things))
        thing = rng.other(options, thing)
        score -= 0.0 if "object" in edits else STSB_COSTS["object"]
    elif "object" in edits:
        thing = rng.other(things, thing)
    if "place" in edits:
        place = rng.other(words.PLACES, place)
    if "actor" in edits:
        now_actor = rng.other(ACTORS, actor)[0]
    elif "actor word" in edits:
        now_actor, score = actor[1], score - SYNONYM_COST
    if "look" in edits:
        now_look = rng.other(LOOKS, look)[0]
    elif "look word" in edits:
        now_look, score = look[1], score - SYNONYM_COST
    second = (now_look, now_actor, now_act, thing, place)
    pair = (first, second) if rng.chance(0.5) else (second, first)
    return GeneratedRow((_caption(*pair[0]), _caption(*pair[1])), score)


def _caption(look: str, actor: str, act: str, thing: str, place: str) -> str:
    return sentence(a(f"{look} {actor}"), "is", act, a(thing), "in the", place)
