"""Filtering the questions of one shard, and making unanswerable rows from those that are kept."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from augment.questions.answer_context import sentences_around
from augment.questions.filtering.answerability import checked_answers, words_of
from augment.questions.filtering.filter_report import Tally
from augment.questions.filtering.heuristics import Reason, copied_share
from augment.questions.filtering.unanswerable import (
    AnsweredQuestion,
    Paragraphs,
    UnanswerableMethod,
    UnanswerableRows,
    UnanswerableSettings,
    make_unanswerable,
)
from augment.questions.question_rows import QuestionRow
from tasks.common.argument_markers import Range
from tasks.common.arguments import PositiveInt, Seed, check_fields
from tasks.common.errors import UserError
from tasks.scoring.answers import Answer, Answerer
from tasks.scoring.squad import token_f1

_Fraction = Annotated[float, Range(0, 1, above=True)]


@dataclass(frozen=True)
class FilterSettings:
    """The settings of the filter.

    Attributes:
        min_confidence: the teacher's answer must beat "no answer" by more than this.
        min_overlap: minimum F1 for two answers to agree in the round trip, in (0, 1].
        max_copied: drop questions that share at least this fraction of their trigrams with the context,
            in (0, 1].
        round_trip: check that the teacher's answer agrees with a second answer.
        any_form: keep texts that do not look like questions.
        unanswerable: the share of unanswerable rows in the result, in [0, 1).
        labels: write the teacher's answers.
        seed: random seed for making the unanswerable rows.
        shard_rows: number of questions examined for one file.

    Raises:
        UserError: a number is out of range.
    """

    min_confidence: float = 0.0
    min_overlap: _Fraction = 0.5
    max_copied: _Fraction = 0.9
    round_trip: bool = True
    any_form: bool = False
    unanswerable: float = 0.0
    labels: bool = False
    seed: Seed = 0
    shard_rows: PositiveInt = 10_000

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.unanswerable < 1:
            raise UserError(
                f"`unanswerable={self.unanswerable}` is not valid", expected="0 or more, and below 1"
            )

    def to_json(self) -> dict[str, float | int | bool]:
        """The fields by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class FilteredShard:
    """The rows of one filtered shard, in order, and the counts."""

    rows: list[QuestionRow]
    tally: Tally


def filter_shard(
    questions: Sequence[QuestionRow],
    verdicts: Sequence[Reason | None],
    settings: FilterSettings,
    stride: int,
    answerer: Answerer,
    advance: Callable[[int], None],
) -> FilteredShard:
    """Filter questions and make unanswerable rows from those that are kept.

    Args:
        verdicts: one per question: the reason to drop it if that is known already.
        stride: at least the highest question number (`copy`) of any paragraph.
        advance: called with the number of questions just decided.
    """
    reasons = [
        verdict or _copied(question, settings) for question, verdict in zip(questions, verdicts, strict=True)
    ]
    advance(sum(reason is not None for reason in reasons))
    answers = _answer(questions, reasons, settings, answerer, advance)
    if settings.round_trip:
        _round_trip(questions, reasons, answers, settings, answerer)
    kept = [
        AnsweredQuestion(question, answers[index])
        for index, (question, reason) in enumerate(zip(questions, reasons, strict=True))
        if reason is None
    ]
    n_unanswerable = round(len(kept) * settings.unanswerable / (1 - settings.unanswerable))
    options = UnanswerableSettings(settings.seed, settings.min_confidence, stride)
    made = make_unanswerable(kept, Paragraphs.of(questions), n_unanswerable, options, answerer)
    tally = Tally(
        read=len(questions),
        kept=len(kept),
        dropped=Counter(reason for reason in reasons if reason is not None),
        made=Counter(UnanswerableMethod(row.method) for row in made.rows),
        refused=made.refused,
    )
    return FilteredShard(_in_order(kept, made, stride, labels=settings.labels), tally)


def _copied(question: QuestionRow, settings: FilterSettings) -> Reason | None:
    share = copied_share(words_of(question.text), words_of(question.context))
    return Reason.COPIED if share >= settings.max_copied else None


def _answer(
    questions: Sequence[QuestionRow],
    reasons: list[Reason | None],
    settings: FilterSettings,
    answerer: Answerer,
    advance: Callable[[int], None],
) -> dict[int, Answer]:
    """The teacher's answers by question index; unanswered questions are marked in `reasons`."""
    indices = [index for index, reason in enumerate(reasons) if reason is None]
    remaining_questions = [questions[index] for index in indices]
    answers: dict[int, Answer] = {}
    replies = checked_answers(
        answerer,
        [question.text for question in remaining_questions],
        [question.context for question in remaining_questions],
    )
    for index, answer in zip(indices, replies, strict=True):
        answers[index] = answer
        advance(1)
        if not answer.found(settings.min_confidence):
            reasons[index] = Reason.NO_ANSWER
    return answers


def _round_trip(
    questions: Sequence[QuestionRow],
    reasons: list[Reason | None],
    answers: dict[int, Answer],
    settings: FilterSettings,
    answerer: Answerer,
) -> None:
    """Mark questions in `reasons` whose answer does not agree with a second one.

    The second answer is the one that the question was generated for. If that is unknown, it is the teacher's
    answer given only the sentence of the first answer and its neighbours.
    """
    again: list[int] = []
    for index, question in enumerate(questions):
        if reasons[index] is not None:
            continue
        made_from = question.answer if question.asked_for is None else question.asked_for
        if made_from is None:
            again.append(index)
        elif token_f1(answers[index].text, [made_from]) < settings.min_overlap:
            reasons[index] = Reason.ROUND_TRIP
    cuts = {
        index: sentences_around(questions[index].context, answers[index].start, answers[index].stop, 1)
        for index in again
    }
    again = [index for index in again if cuts[index] != questions[index].context]
    replies = checked_answers(
        answerer, [questions[index].text for index in again], [cuts[index] for index in again]
    )
    for index, answer in zip(again, replies, strict=True):
        agrees = token_f1(answer.text, [answers[index].text]) >= settings.min_overlap
        if not (agrees and answer.found(settings.min_confidence)):
            reasons[index] = Reason.ROUND_TRIP


def _in_order(
    kept: Sequence[AnsweredQuestion], made: UnanswerableRows, stride: int, *, labels: bool
) -> list[QuestionRow]:
    """The rows in output order: each question, followed by the unanswerable rows made from it."""
    position = {answered.question.uid: number for number, answered in enumerate(kept)}
    rows = [
        replace(answered.question, answer=answered.answer.text, start=answered.answer.start)
        for answered in kept
    ]

    def order(row: QuestionRow) -> tuple[int, int]:
        attempt, copy = divmod(row.copy - 1, stride)
        return position[f"{row.parent}#{copy + 1}"], attempt

    rows = sorted([*rows, *made.rows], key=order)
    return rows if labels else [replace(row, answer=None, start=None) for row in rows]
