"""Rare words, which the training rows of the pocket tasks lack, as 500 rows of real text lack many words.

The generators use only the common words of `tasks.pocket.words`. In validation, test and unlabelled rows,
some of these are then replaced by rarer words of the same class, the same in both texts of a row. Labels
therefore stay correct, but a model must know the words from pretraining, or from many unlabelled rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasks.pocket.rng import Rng
from tasks.pocket.words import plural

SHARE = 0.6  # the share of the words with a rarer word that are replaced

# Each line: a common word, then rarer words of the same class. No word is there twice.
_NAMES = """
Anna Ingrid; Maria Paloma; Laura Beatrice; Emily Harriet; Sarah Naomi; Julia Camille; Helen Astrid;
Grace Leila; Alice Margot; Nora Yasmin; Clara Fiona; Lucy Daphne; Emma Elsa; Peter Dmitri; John Ahmed;
David Rafael; Thomas Gustav; Henry Nigel; Robert Klaus; Daniel Mateo; Simon Boris; Oscar Ravi;
Martin Jamal; George Pedro; Frank Otto; Paul Sergei; Baker Novotny; Carter Gonzalez; Hughes Kowalski;
Foster Yamamoto; Miller Johansson; Porter Okafor; Oslo Helsinki; Paris Brussels; London Manchester;
Berlin Munich; Madrid Barcelona; Rome Naples; Vienna Zurich; Prague Bratislava; Dublin Edinburgh;
Lisbon Porto; Athens Istanbul; Boston Philadelphia; Chicago Detroit; Denver Phoenix; Toronto Montreal;
Sydney Melbourne; Tokyo Osaka; Cairo Tunis; Lima Bogota
"""
_ADJECTIVES = """
brilliant masterful; charming endearing; delightful joyous; funny hilarious; moving poignant;
wonderful marvelous; superb outstanding; clever ingenious; fresh original; touching heartfelt;
elegant stylish; exciting exhilarating; gripping riveting; inspired visionary; lovely sweet;
memorable unforgettable; powerful compelling; splendid glorious; warm affectionate; witty sparkling;
thrilling electrifying; convincing believable; enjoyable entertaining; excellent terrific;
fascinating absorbing; imaginative inventive; rewarding satisfying; boring monotonous; dull dreary;
awful atrocious; terrible abysmal; clumsy inept; silly idiotic; tedious plodding; shallow superficial;
weak feeble; bland insipid; predictable formulaic; annoying irritating; messy incoherent;
pointless worthless; stale unoriginal; dreadful appalling; sloppy careless; painful excruciating;
tiresome wearisome; hollow phony; ridiculous ludicrous; horrible ghastly; confusing baffling;
disappointing underwhelming; forgettable mediocre; lazy uninspired; unpleasant repulsive; heavy massive;
expensive costly; beautiful gorgeous; ugly hideous; dirty filthy; strange peculiar; famous renowned;
modern contemporary; rusty corroded
"""
_NOUNS = """
lighting cinematography; story narrative; plot storyline; script screenplay; acting performance;
music score; humour satire; cast ensemble; direction filmmaking; romance courtship; drama tragedy;
hero protagonist; villain antagonist; finale climax; teacher tutor; nurse midwife; farmer rancher;
baker chef; pilot astronaut; singer guitarist; driver chauffeur; lawyer attorney; painter sculptor;
gardener landscaper; soldier sergeant; waiter bartender; tailor seamstress; plumber electrician;
dancer ballerina; writer novelist; sailor fisherman; hunter ranger; banker accountant;
dentist orthodontist; chemist physicist; student pupil; carpenter bricklayer; reporter journalist;
wall curtain; boat raft; fence gate; table desk; chair stool; lamp lantern; bottle jug; basket hamper;
window shutter; door hatch; wagon chariot; bridge viaduct; bench hammock; ladder staircase;
kettle teapot; blanket pillow; candle torch; garden vineyard; street avenue; market bazaar;
station terminal; forest jungle; barn stable; field pasture; bakery pizzeria; village hamlet;
theatre cinema; cafe restaurant; dog hamster; cat ferret; horse mule; cow alpaca; goat llama;
rabbit squirrel; pig badger; donkey zebra; apple apricot; banana pineapple; pear melon; peach nectarine;
plum grape; lemon lime; cherry raspberry; mango papaya; truck lorry; van minivan; tractor bulldozer;
motorcycle moped; guitar ukulele; violin viola; flute clarinet; trumpet trombone; cello saxophone;
harp accordion; shirt blouse; dress gown; sweater hoodie; hammer mallet; shovel spade; drill screwdriver;
rake hoe; rose carnation; tulip daffodil; daisy sunflower; orchid hyacinth; doll teddy; kite frisbee;
puzzle jigsaw; letter memo; report transcript; map chart; invoice receipt; castle fortress;
church cathedral; palace mansion; printer copier; pump compressor; computer laptop; bee hornet;
beetle ladybug; moth dragonfly; ferry catamaran; yacht sailboat; diamond topaz; ruby amethyst;
rifle shotgun; chess poker; boxing fencing; swimming snorkeling; cooking grilling; yoga pilates;
football rugby; tennis badminton; poetry storytelling; gardening beekeeping; programming robotics;
skiing snowboarding; cycling skateboarding; sewing embroidery; baking confectionery;
pottery glassblowing; running sprinting; golf bowling; museum gallery; school academy; hospital clinic;
university institute; army navy; airline railway; onion leek; carrot radish; potato turnip;
tomato cabbage; cucumber zucchini; pepper celery; newspaper magazine; poem diary; plate saucer;
suitcase backpack; flower bouquet; tree bush
"""


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(";"):
        common, rare = entry.split()
        yield common, rare


RARE = dict([*_pairs(_NAMES), *_pairs(_ADJECTIVES), *_pairs(_NOUNS)])
"""Common word -> rarer word of the same class."""
# Every form of a common word -> (the common word, the same form of its rarer word).
_FORMS = {common: (common, rare) for common, rare in RARE.items()}
_FORMS |= {plural(common): (common, plural(rare)) for common, rare in _pairs(_NOUNS)}
_ARTICLE = re.compile(r"\b([Aa])n? (?=([A-Za-z]))")


def with_rare_words(rng: Rng, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Replace some common words of a row by rarer ones of the same class, the same ones in every text."""
    chosen: dict[str, bool] = {}

    def replaced(match: re.Match[str]) -> str:
        word = match[0]
        form = word if word in _FORMS else word[0].lower() + word[1:]
        if form not in _FORMS:
            return word
        common, rare = _FORMS[form]
        if common not in chosen:
            chosen[common] = rng.chance(SHARE)
        if not chosen[common]:
            return word
        return rare if word == form else rare.capitalize()

    return tuple(_ARTICLE.sub(_article, re.sub(r"[A-Za-z]+", replaced, text)) for text in texts)


def _article(match: re.Match[str]) -> str:
    """ "A" or "an" as the letter after it requires."""
    return f"{match[1]}n " if match[2].lower() in "aeiou" else f"{match[1]} "
