"""The parts of a question about a clause, in the word order of a question, and whether it is well formed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from augment.questions.rules.answers import NameHints, Phrase, read_phrase
from augment.questions.rules.chunks import Chunk
from augment.questions.rules.clauses import Clause
from augment.questions.rules.verbs import FORMS, base_of, third_person
from augment.questions.rules.words import DAYS, WORDS

_LENGTHS = (5, 22), (4, 22)  # words of a question; of one with a form of "be"
_LONGEST_ANSWER, _LONGEST_REASON = 10, 25  # words
_SINGULAR = {"are": "is", "were": "was", "have": "has", "do": "does"}
_PRONOUNS = frozenset(["he", "she", "it", "they", "him", "them"])
OWNERS = frozenset(["his", "her", "its", "their"])
_SEASONS = frozenset([*DAYS.split("|"), "century", "spring", "summer", "autumn", "winter"])


class RuleQuestion(NamedTuple):
    """A question, its answer (`start` to `stop` of the paragraph) and its rank; better ones rank higher."""

    text: str
    start: int
    stop: int
    rank: float


class Subject(NamedTuple):
    """The words for the subject; `resolved`: whether they replace a pronoun; `kind`: that of `Phrase`."""

    text: str
    kind: str
    plural: bool
    resolved: bool = False


class Composer:
    """The parts of a clause that questions about it are made of.

    Attributes:
        base: the base form of the main verb.
        copula: whether the clause is "SUBJECT is ..."; `passive`: whether its verb is passive.
    """

    def __init__(self, clause: Clause, memory: NameHints, subject: Subject) -> None:
        self.clause = clause
        self.memory = memory
        self.subject = subject
        self.sentence, self.chunks = clause.sentence, clause.chunks
        self.words, self.tags = clause.sentence.words, clause.sentence.tags
        first, stop = clause.verb
        connectives = WORDS["connectives"]
        positions = [i for i in range(first, stop) if self.tags[i] != "R" or self.words[i] not in connectives]
        kinds = "".join(self.tags[i] for i in positions if self.tags[i] not in "RT")
        if clause.auxiliary:
            auxiliary = next(i for i in positions if self.tags[i] != "R")
            positions = [auxiliary, *(i for i in positions if i != auxiliary)]
        self.group = [self.words[i] for i in positions]
        self.main = self.words[stop - 1]
        self.copula = kinds == "B"
        self.base = "be" if self.copula else base_of(self.main)
        self.passive = kinds.endswith("X") and clause.auxiliary and any(kind in "Bne" for kind in kinds)

    def text(self, chunk: Chunk) -> str:
        """The words of a chunk."""
        return self.sentence.text(chunk.start, chunk.stop)

    def phrase(self, start: int, stop: int) -> Phrase:
        """The noun phrase of these words."""
        return read_phrase(self.sentence, start, stop, self.memory)

    def before(self, chunk: Chunk) -> list[str]:
        """The texts of the chunks before this one."""
        return [self.text(other) for other in self.chunks if other.start < chunk.start]

    def after(self, chunk: Chunk, *words: str) -> list[str]:
        """The texts of the later chunks that begin with, or are asked for by, `words`; one per word."""
        later = [other for other in self.chunks if other.start > chunk.start]
        matches = [{self.wh(other)[0], self.words[other.start]} & set(words) for other in later]
        return [
            self.text(other) for n, other in enumerate(later) if matches[n] and matches[n] not in matches[:n]
        ]

    def others(self, chunk: Chunk | None, without: str = "") -> list[str]:
        """The texts of all chunks but this one, reasons, and those that `without` asks for."""
        others = [other for other in self.chunks if other is not chunk and other.kind != "why"]
        return [
            self.text(other) for other in others if not without or not self.wh(other)[0].endswith(without)
        ]

    def lead(self, without: Chunk | None = None, question_word: str = "") -> str:
        """A date or place before the subject, for the end of a question that does not ask for a date too."""
        kinds = ("where",) if "when" in question_word or "year" in question_word else ("when", "where")
        for lead in self.clause.lead:
            if lead is not without and self.tags[lead.start] == "I" and self.wh(lead)[0] in kinds:
                text = self.text(lead)
                return text[0].lower() + text[1:]
        return ""

    def wh(self, chunk: Chunk) -> tuple[str, int]:
        """The words that ask for a date or place, and where the answer begins; "" if there are none."""
        tags, words = self.tags, self.words
        if chunk.kind != "pp" or tags[chunk.start] == "Y":
            return ("when", chunk.start) if chunk.kind == "pp" else ("", 0)
        inner, preposition = chunk.start + 1, words[chunk.start].lower()
        phrase = self.phrase(inner, chunk.stop)
        head = words[phrase.head]
        if phrase.kind == "date" or head in _SEASONS:
            if preposition in ("since", "until"):
                return f"{preposition} when", inner
            if preposition in ("in", "on", "during", "around", "about"):
                return "when", inner
            whole_phrase = preposition in ("after", "before") or (
                preposition == "from" and chunk.stop - chunk.start > 3
            )
            return ("when", chunk.start) if whole_phrase else ("", 0)
        event = "P" in tags[inner : chunk.stop] or head in ("war", "reign", "era", "revolution", "battle")
        if preposition == "during" and event:
            return "when", chunk.start
        if preposition == "for" and head in WORDS["units_of_time"] and tags[inner] in "CZ":
            return "how long", inner
        if preposition == "at" and head == "age" and tags[chunk.stop - 1] in "CZ":
            return "at what age", chunk.stop - 1
        if preposition in ("in", "at", "near", "on") and phrase.kind == "place":
            return "where", chunk.start if preposition in ("near", "on") else inner
        return "", 0

    def predicate(self, keep: bool) -> list[str]:
        """The verb group after "who" or "what", in the singular unless `keep`."""
        first, *rest = self.group
        if keep or (first not in _SINGULAR and self.tags[self.clause.verb[1] - 1] != "b"):
            return self.group
        if first in _SINGULAR:
            return [_SINGULAR[first], *rest]
        return [*self.group[:-1], third_person(self.main)]

    def ask(
        self, wh: str, start: int, stop: int, tail: Iterable[str], rank: float, lead: Chunk | None = None
    ) -> Iterator[RuleQuestion]:
        """A question with the auxiliary before the subject, if it is well formed.

        Args:
            start, stop: the words of the answer.
            tail: what comes after the verb.
            lead: a phrase before the subject that the question leaves out.
        """
        auxiliary, *rest = self.group
        if not self.clause.auxiliary:
            form = FORMS.get(self.main)
            if self.base == "have":
                auxiliary = {"has": "does", "have": "do", "had": "did"}[self.main]
            elif form is None:
                return
            else:
                past = "d" in form.kinds or ("s" not in form.kinds and "b" not in form.kinds)
                auxiliary = "did" if past else "does" if "s" in form.kinds else "do"
            rest = [*self.group[:-1], self.base]
        yield from self.question_if_valid(
            [wh, auxiliary, self.subject.text, *rest, *tail, self.lead(lead, wh)], start, stop, rank
        )

    def question_if_valid(
        self, parts: Iterable[str], start: int, stop: int, rank: float
    ) -> Iterator[RuleQuestion]:
        """The question made of `parts`, unless it or its answer, words start..stop, is not well formed."""
        while start < stop and self.tags[stop - 1] in "_~,":
            stop -= 1
        text = re.sub(r"\s+", " ", " ".join(parts)).strip(" ,")
        words = text.split()
        longest = _LONGEST_REASON if words[0] == "why" else _LONGEST_ANSWER
        shortest, longest_question = _LENGTHS[self.copula]
        if not 0 < stop - start <= longest or not shortest <= len(words) <= longest_question:
            return
        answer = self.sentence.text(start, stop).lower()
        n_interrogatives = 4 if "which" in words[:2] else 1
        other_words = {word.lower().strip(",") for word in words[n_interrogatives:]}
        answer_words = {word for word in answer.split() if len(word) > 3}
        names = [word for word in words[1:] if not word[0].isalpha() or word[0].isupper()]
        long = [word for word in words[2:] if len(word) > 3]
        if (
            other_words & (WORDS["pointing"] | _PRONOUNS)
            or answer in text.lower()
            or (answer_words and len(answer_words & other_words) * 2 >= len(answer_words))
            or (other_words & OWNERS and self.subject.text not in text)
            or (not names and len(long) < 1 + (words[0] in ("what", "who")))
        ):
            return
        rank += 0.3 * min(len(names), 3) + 0.1 * min(len(long), 4) - 0.05 * abs(len(words) - 11)
        rank += 0.5 * self.subject.resolved
        first, last = self.sentence.starts[start], self.sentence.stops[stop - 1]
        yield RuleQuestion(text[0].upper() + text[1:] + "?", first, last, round(rank, 3))

    def is_vague(self, start: int, stop: int) -> bool:
        """True for phrases such as "some towns" and "the town", which tell too little as an answer."""
        tags = self.tags[start:stop]
        return self.words[start].lower() in WORDS["vague"] or tags in ("DN", "Ds", "Db", "DJ")
