"""The word lists of `words.toml`."""

from __future__ import annotations

import tomllib
from importlib import resources

_TABLES = tomllib.loads(resources.files(__package__).joinpath("words.toml").read_text("utf-8"))

FUNCTION_WORDS: dict[str, str] = {
    word: tag for tag, words in _TABLES.pop("tags").items() for word in words.split()
}
"""Word -> tag, as in `tagging`."""

IRREGULAR: list[list[str]] = [line.split() for line in _TABLES["verbs"].pop("irregular").split(";")]
"""Base form, past tense and participle of each irregular verb."""

WORDS: dict[str, frozenset[str]] = {
    name: frozenset(words.split()) for table in _TABLES.values() for name, words in table.items()
}
"""The other lists by name."""

PLACES = WORDS["places"] | WORDS["countries"]
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
"""As regular expressions."""
