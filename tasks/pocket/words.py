"""The vocabulary of the pocket tasks, and the little English grammar that they need."""

from __future__ import annotations

from dataclasses import dataclass


def terms(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


WOMEN = terms(
    "Anna Maria Laura Emily Sarah Julia Helen Grace Alice Nora Clara Lucy Emma Diana Ruth Susan Linda "
    "Karen Martha Irene Olivia Sophie Rachel Amelia Hannah Teresa Monica Bridget Joanna Carmen"
)
MEN = terms(
    "Peter John David Thomas Henry Robert Daniel Simon Oscar Martin George Frank Paul Victor Albert "
    "Walter James Philip Edward Samuel Arthur Hugo Felix Leon Adam Brian Kevin Stefan Marcus Nathan"
)
SURNAMES = terms(
    "Baker Carter Hughes Foster Miller Porter Walsh Jensen Berg Novak Rossi Moreau Keller Silva Tanaka "
    "Murphy Grant Palmer Turner Webb Dalton Hayes Lindgren Costa Meyer Fischer Quinn Barnes Sutton Ellis"
)
JOBS = terms(
    "teacher nurse farmer baker pilot singer driver lawyer doctor painter gardener soldier waiter tailor "
    "plumber dancer writer sailor hunter banker dentist chemist student carpenter reporter builder "
    "cleaner potter miner librarian"
)
CITIES = terms(
    "Oslo Paris London Berlin Madrid Rome Vienna Prague Dublin Lisbon Athens Boston Chicago Denver "
    "Toronto Sydney Tokyo Cairo Lima Havana Geneva Milan Hamburg Warsaw Seattle Dallas Moscow Delhi "
    "Nairobi Budapest"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = terms("two three four five six seven eight nine ten twelve twenty thirty")
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey", "orange", "purple")
ADJECTIVES = terms(
    "old new large small heavy broken wooden expensive cheap beautiful ugly dirty strange famous modern "
    "tiny lovely empty narrow rusty"
)
THINGS = terms(
    "wall boat fence table chair lamp clock mirror bicycle carpet bottle basket window door piano wagon "
    "statue painting bridge cottage tower bench ladder kettle blanket drum candle wheel camera radio"
)
PLACES = terms(
    "park kitchen garden street market school yard station library forest barn hotel field square bakery "
    "hospital stadium village theatre cafe"
)


@dataclass(frozen=True)
class Verb:
    """Three forms of a verb that takes a thing as its object."""

    base: str
    past: str
    participle: str


ACTIONS = tuple(
    Verb(*terms(forms))
    for forms in (
        "paint painted painted",
        "clean cleaned cleaned",
        "carry carried carried",
        "sell sold sold",
        "buy bought bought",
        "repair repaired repaired",
        "watch watched watched",
        "find found found",
        "draw drew drawn",
        "steal stole stolen",
        "hide hid hidden",
        "move moved moved",
        "break broke broken",
        "choose chose chosen",
        "take took taken",
        "see saw seen",
        "forget forgot forgotten",
        "lift lifted lifted",
        "touch touched touched",
        "burn burned burned",
        "measure measured measured",
        "photograph photographed photographed",
    )
)

IRREGULAR_PLURALS = {"aircraft": "aircraft", "scarf": "scarves"}


def plural(noun: str) -> str:
    """The plural of a singular noun of this vocabulary."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def gerund(verb: str) -> str:
    """The -ing form of a verb of this vocabulary ("drive" -> "driving")."""
    return verb.removesuffix("e") + "ing"


def a(noun: str) -> str:
    """The noun phrase with its indefinite article; `noun` may start with an adjective."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def sentence(*parts: str) -> str:
    """Join the non-empty parts into a sentence that starts with a capital and ends with a full stop."""
    text = " ".join(part for part in parts if part).replace(" ,", ",")
    return text[0].upper() + text[1:] + "."


@dataclass(frozen=True)
class Category:
    """A kind of thing: its name (hypernym), its members (hyponyms), and suitable verbs in base form."""

    name: str
    members: tuple[str, ...]
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """A domain of sentences: people and adjectives for them, kinds of things, their states, and places."""

    people: tuple[str, ...]
    kinds: tuple[Category, ...]
    places: tuple[str, ...]
    adjectives: tuple[str, ...]
    states: tuple[str, ...]


def _category(name: str, members: str, verbs: str) -> Category:
    return Category(name, terms(members), terms(verbs))


TOWN = Domain(
    people=("man", "woman", "boy", "girl", *JOBS[:20]),
    kinds=(
        _category("animal", "dog cat horse cow goat rabbit pig donkey", "feed wash follow photograph"),
        _category("fruit", "apple banana pear peach plum lemon cherry mango", "eat peel buy pack"),
        _category("vehicle", "car truck bus van tractor taxi motorcycle", "drive clean repair park"),
        _category("instrument", "guitar violin flute trumpet cello harp banjo", "play carry tune sell"),
        _category("garment", "coat shirt dress jacket sweater skirt scarf", "fold wear iron mend"),
        _category("tool", "hammer shovel drill axe rake wrench chisel", "borrow hold lend sharpen"),
        _category("flower", "rose tulip daisy lily orchid poppy", "water pick smell sell"),
        _category("toy", "doll kite puzzle puppet balloon marble", "make break hide bring"),
    ),
    places=PLACES,
    adjectives=("young", "tall", "happy", "tired", "quiet", "old", "short", "friendly", "busy", "angry"),
    states=("old", "clean", "dirty", "wet", "small", "heavy", "beautiful", "expensive", "missing", "safe"),
)
OFFICE = Domain(
    people=terms(
        "engineer captain judge clerk scientist manager officer guard director architect minister professor "
        "detective inspector secretary diplomat translator astronomer geologist surgeon"
    ),
    kinds=(
        _category("document", "contract letter report map invoice passport permit", "read sign copy print"),
        _category("building", "castle church museum palace warehouse temple", "inspect visit draw restore"),
        _category("machine", "printer pump generator computer scanner engine", "test install start order"),
        _category("insect", "bee ant beetle wasp moth butterfly", "study catch examine describe"),
        _category("ship", "ferry tanker yacht submarine trawler canoe", "board build steer register"),
        _category("jewel", "diamond ruby emerald pearl sapphire", "weigh polish admire insure"),
        _category("weapon", "sword rifle spear cannon dagger", "collect lock display load"),
    ),
    places=terms(
        "harbour laboratory office factory archive tunnel court airport embassy mine bank observatory "
        "basement"
    ),
    adjectives=("senior", "careful", "famous", "nervous", "foreign", "retired", "clever", "polite", "strict"),
    states=(
        "ancient",
        "fragile",
        "valuable",
        "secret",
        "modern",
        "damaged",
        "foreign",
        "forbidden",
        "useful",
    ),
)
