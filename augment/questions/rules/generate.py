"""Questions about a paragraph: sentence by sentence, with pronouns replaced by what they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from augment.questions.rules.answers import NameHints, is_plural, read_names, read_phrase
from augment.questions.rules.clauses import Clause, clauses_of
from augment.questions.rules.composer import OWNERS, RuleQuestion, Subject
from augment.questions.rules.questions import clause_questions
from augment.questions.rules.tagging import tag_sentence
from augment.questions.rules.words import WORDS
from augment.questions.sentences import sentence_spans

_WORD = re.compile(r"[^\W\d_]+")
_INNER = re.compile(r"(?<=[\w,;:)%] )[A-ZÀ-Þ][\w’'-]*")
_CUT = re.compile(r"[(\[\n]")  # an answer must be text without what the tags leave out
_LENGTHS = range(25, 401)  # characters of a sentence
_MIN_ENGLISH_SHARE = 0.12  # of the words of an English text, those that are frequent in English
_MIN_WORDS = 8  # in a text whose language can be told by frequent words

Entities = Callable[[str], list[tuple[str, str]]]
"""From a text to its names with the labels of spaCy's English pipelines (PERSON, GPE, ...)."""


def is_english(text: str) -> bool:
    """False for text in another alphabet, or with too few of the words that are frequent in English."""
    words = _WORD.findall(text.lower())
    if len(words) < _MIN_WORDS:  # too short to tell by frequent words
        return sum(word.isascii() for word in words) * 2 >= len(words)
    return sum(word in WORDS["english"] for word in words) >= max(1, int(_MIN_ENGLISH_SHARE * len(words)))


def generate_rule_questions(
    text: str, count: int | None = None, entities: Entities | None = None
) -> list[RuleQuestion]:
    """The questions about an English paragraph, ordered by their answers.

    Args:
        count: the maximum number of questions; the best ones are kept, from different sentences if possible.
        entities: recognises persons and places; None = only word lists and rules are used.
    """
    memory = read_names(text)
    for name, label in entities(text) if entities else ():
        if label == "PERSON":
            memory.persons.update(name.split())
        elif label in ("GPE", "LOC", "FAC"):
            memory.places.update(name.split())
    uncapitalised = frozenset([word for word in _WORD.findall(text) if word.islower()] + _INNER.findall(text))
    by_sentence: list[list[RuleQuestion]] = []
    topics = _Topics()
    for start, stop in sentence_spans(text):
        questions: list[RuleQuestion] = []
        subjects: list[Subject] = []
        if stop - start in _LENGTHS and text[stop - 1] == ".":
            sentence = tag_sentence(text, start, stop, uncapitalised)
            for clause in clauses_of(sentence) if "?" not in sentence.tags else ():
                if subject := _subject(clause, memory, topics):
                    questions += clause_questions(clause, memory, subject)
                    subjects.append(subject)
                    topics.see(subject)
        topics.last = subjects[0] if subjects else None
        by_sentence.append(
            _distinct(
                [question for question in questions if not _CUT.search(text, question.start, question.stop)]
            )
        )
    return _choose(by_sentence, count)


@dataclass
class _Topics:
    """What pronouns can stand for: the last person, and the first subject of the sentence before."""

    person: Subject | None = None
    last: Subject | None = None

    def see(self, subject: Subject) -> None:
        """Note the subject of a clause."""
        if subject.kind == "person" and not subject.plural:
            self.person = subject

    def of(self, pronoun: str) -> Subject | None:
        """What a pronoun stands for; None if it is not certain."""
        last = self.last
        other = WORDS["female" if pronoun in ("he", "his") else "male"]
        if self.person and self.person.text.split()[-1] in other:
            return None
        if pronoun in ("he", "she", "his", "her"):
            unknown = last and last.kind == "unknown" and not last.plural and not last.text.endswith("s")
            return last if unknown else self.person
        if last is None or last.plural != (pronoun in ("they", "their")):
            return None
        return last if last.plural or last.kind != "person" else None


def _subject(clause: Clause, memory: NameHints, topics: _Topics) -> Subject | None:
    """The subject of a clause, with a pronoun replaced; None if it cannot be resolved."""
    sentence, (start, stop) = clause.sentence, clause.subject
    word, tags = sentence.words[start].lower(), sentence.tags[start:stop]
    if tags == "!":
        return Subject("there", "thing", False)
    topic = topics.of(word) if tags == "U" or word in OWNERS else None
    if tags == "U":
        return topic and topic._replace(kind="person" if word in ("he", "she") else topic.kind, resolved=True)
    phrase = read_phrase(sentence, start, stop, memory)
    head = sentence.words[phrase.head]
    plural = "&" in tags or phrase.kind == "group" or (sentence.tags[phrase.head] != "P" and is_plural(head))
    text = sentence.text(start, stop)
    if topic:
        owner = topic.text + ("'" if topic.plural and topic.text.endswith("s") else "'s")
        kind = "thing" if phrase.kind == "person" else phrase.kind
        return Subject(f"{owner} {text.partition(' ')[2]}", kind, plural, True)
    if not tags.strip("DJR"):
        return None  # "the first"
    unclear = WORDS["pointing"] | OWNERS | {"him", "them"}
    return None if unclear & set(text.lower().split()) else Subject(text, phrase.kind, plural)


def _distinct(questions: list[RuleQuestion]) -> list[RuleQuestion]:
    """The best questions of a sentence whose answers do not overlap."""
    chosen: list[RuleQuestion] = []
    for question in sorted(questions, key=lambda q: (-q.rank, q.start)):
        if all(question.stop <= other.start or other.stop <= question.start for other in chosen):
            chosen.append(question)
    return chosen


def _choose(by_sentence: list[list[RuleQuestion]], count: int | None) -> list[RuleQuestion]:
    """The best questions: first the best one of each sentence, then the second ones; each text once."""
    ranked = sorted(
        (rank, -question.rank, question.start, question)
        for questions in by_sentence
        for rank, question in enumerate(questions)
    )
    by_text: dict[str, RuleQuestion] = {}
    for *_, question in ranked:
        by_text.setdefault(question.text, question)
    return sorted(list(by_text.values())[:count], key=lambda question: question.start)
