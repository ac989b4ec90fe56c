"""The augmenter "questions" of `model=rules`: questions made by rules, with their answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augment.augmenter import Augmenter, Copies
from augment.questions.question_rows import QuestionRow, question_table
from augment.questions.rules.generate import Entities, generate_rule_questions
from tasks.common.sha256 import digest_bytes
from tasks.data.corpus_reader import QUESTION_SCHEMA
from tasks.data.rows import Rows

RULES = "rules"
_CHUNK = 256  # paragraphs per table
_ABOUT = (
    "The questions were made from single sentences by rules of English grammar, without a trained model: the "
    "answer is taken out, its question word comes first, and the words are put in the order of a question "
    "(after Heilman and Smith 2010, and Lewis et al. 2019). `answer` is what a question asks for. {counts}"
)


@dataclass(frozen=True)
class RuleQuestions(Augmenter):
    """Questions about paragraphs, made by rules; the two texts of a row are the paragraph and its source.

    Attributes:
        spacy: the spaCy pipeline that recognises persons and places; None = rules only.
        words: the word range of the paragraphs, for the manifest; `counts`: how many were used, for the card.
    """

    spacy: str | None = None
    words: str = "any"
    counts: str = ""

    name = "questions"
    kind = "questions"
    schema = QUESTION_SCHEMA

    @property
    def description(self) -> str:
        """How the questions were made, with the paragraph counts."""
        return _ABOUT.format(counts=self.counts).strip()

    @property
    def settings(self) -> dict[str, float | int | str]:
        """All settings that affect the questions, by name."""
        return {
            "model": RULES,
            "model_digest": digest_rules(),
            "answers": self.spacy or "rule",
            "words": self.words,
        }

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield up to `copies` questions about each of `rows`."""
        entities = load_entities(self.spacy) if self.spacy else None
        for start in range(0, len(rows), _CHUNK):
            part = rows.take(np.arange(start, min(start + _CHUNK, len(rows))))
            texts = [column.to_pylist() for column in (part.uids, *part.texts)]
            question_rows = [
                QuestionRow(
                    rows.task,
                    uid,
                    number,
                    question.text,
                    text,
                    self.name,
                    source,
                    answer,
                    question.start,
                    answer,
                )
                for uid, text, source in zip(*texts, strict=True)
                for number, question in enumerate(generate_rule_questions(text, copies, entities), 1)
                for answer in (text[question.start : question.stop],)
            ]
            yield Copies(question_table(question_rows), 0, 0, 0)


@functools.cache
def digest_rules() -> str:
    """SHA-256 of the rules and word lists, so that a corpus is not resumed with other rules."""
    directory = Path(__file__).parent
    files = [*sorted(directory.glob("*.py")), directory / "words.toml", directory.parent / "sentences.py"]
    return digest_bytes(*(path.read_bytes() for path in files))


def load_entities(pipeline: str) -> Entities:
    """The entities that a spaCy pipeline finds; UserError if it is not installed."""
    from augment.questions.generation.answer_candidates import load_spacy

    nlp = load_spacy(pipeline)
    return lambda text: [(entity.text, entity.label_) for entity in nlp(text).ents]
