"""Making unanswerable questions, as in SQuAD 2.0, from answerable ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from augment.counter_rng import draw_number
from augment.questions.answer_context import remove_sentences
from augment.questions.filtering.answerability import checked_answers, words_of
from augment.questions.question_rows import QuestionRow
from tasks.scoring.answers import Answer, Answerer

TRIES = 4  # maximum number of contexts tried per question
_BATCH = 256


class UnanswerableMethod(StrEnum):
    """How a context without the answer is obtained; the `method` of the row."""

    OTHER = "unanswerable-other"
    REMOVED = "unanswerable-removed"


class Rejection(StrEnum):
    """Why such a context was rejected."""

    HELD = "the context contains the answer"
    ANSWERED = "the teacher still answers"


@dataclass(frozen=True)
class AnsweredQuestion:
    """A kept question with the teacher's answer."""

    question: QuestionRow
    answer: Answer


@dataclass(frozen=True)
class Paragraphs:
    """The contexts that questions can be paired with.

    Attributes:
        contexts: paragraph uid -> its context.
        uids: all paragraphs.
        sources: source (title or file) -> uids of its paragraphs.
    """

    contexts: dict[str, str]
    uids: list[str]
    sources: dict[str | None, list[str]]

    @staticmethod
    def of(questions: Iterable[QuestionRow]) -> Paragraphs:
        """Collect the paragraphs of some questions."""
        contexts: dict[str, str] = {}
        sources: dict[str | None, list[str]] = defaultdict(list)
        for question in questions:
            if question.parent not in contexts:
                contexts[question.parent] = question.context
                sources[question.source].append(question.parent)
        return Paragraphs(contexts, list(contexts), sources)

    def other(self, question: QuestionRow, number: int) -> str:
        """Another paragraph of the same article, or else of any article; "" if there is none.

        Args:
            number: decides which one is chosen.
        """
        article = self.sources[question.source] if question.source else []
        for uids in (article, self.uids):
            for step in range(len(uids)):
                context = self.contexts[uids[(number + step) % len(uids)]]
                if context != question.context:
                    return context
        return ""


@dataclass(frozen=True)
class UnanswerableRows:
    """The unanswerable rows made from the questions of a shard, and the rejected contexts by reason."""

    rows: list[QuestionRow] = field(default_factory=list)
    refused: Counter[Rejection] = field(default_factory=Counter)


@dataclass(frozen=True)
class UnanswerableSettings:
    """The seed, the minimum margin (see `Answer.refused`), and the step added to `copy` for each attempt."""

    seed: int
    min_margin: float
    stride: int


def make_unanswerable(
    kept: Sequence[AnsweredQuestion],
    paragraphs: Paragraphs,
    count: int,
    settings: UnanswerableSettings,
    answerer: Answerer,
) -> UnanswerableRows:
    """Make up to `count` unanswerable rows, each checked by the teacher.

    The questions are used in random order. Each is paired at random with another paragraph, or with its own
    paragraph without the answer's sentence; once all questions were tried, further contexts are tried.
    """
    made = UnanswerableRows()
    order = sorted(kept, key=lambda answered: draw_number(settings.seed, "order", answered.question.uid))
    candidates = _candidates(order, paragraphs, settings, made.refused)
    while len(made.rows) < count and (batch := list(islice(candidates, _BATCH))):
        answers = checked_answers(answerer, [row.text for row in batch], [row.context for row in batch])
        for row, answer in zip(batch, answers, strict=True):
            if not answer.refused(settings.min_margin):
                made.refused[Rejection.ANSWERED] += 1
            elif len(made.rows) < count:
                made.rows.append(row)
    return made


def _candidates(
    order: Sequence[AnsweredQuestion],
    paragraphs: Paragraphs,
    settings: UnanswerableSettings,
    refused: Counter[Rejection],
) -> Iterator[QuestionRow]:
    """Yield questions with contexts that may not answer them, in rounds over all questions."""
    tried = {(answered.question.uid, answered.question.context) for answered in order}
    for attempt in range(1, TRIES + 1):
        for answered in order:
            way, context = _propose(answered, paragraphs, attempt, settings.seed)
            if not context or (answered.question.uid, context) in tried:
                continue
            tried.add((answered.question.uid, context))
            if _contains(context, answered.answer.text):
                refused[Rejection.HELD] += 1
                continue
            copy = answered.question.copy + attempt * settings.stride
            yield replace(answered.question, copy=copy, context=context, method=way, answer="", start=-1)


def _propose(
    answered: AnsweredQuestion, paragraphs: Paragraphs, attempt: int, seed: int
) -> tuple[UnanswerableMethod, str]:
    """The context for one attempt: the first two attempts use both ways, later ones other paragraphs."""
    removing = (draw_number(seed, "way", answered.question.uid) + attempt) % 2 and attempt <= 2
    if removing and (
        context := remove_sentences(answered.question.context, answered.answer.start, answered.answer.stop)
    ):
        return UnanswerableMethod.REMOVED, context
    number = draw_number(seed, "other", answered.question.uid, attempt)
    return UnanswerableMethod.OTHER, paragraphs.other(answered.question, number)


def _contains(context: str, answer: str) -> bool:
    """True if the context contains the answer's words in sequence."""
    return f" {' '.join(words_of(answer))} " in f" {' '.join(words_of(context))} "
