"""Generating questions from paragraphs: choose answers, build prompts, and keep distinct questions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from augment.counter_rng import draw_number
from augment.questions.generation.answer_candidates import choose_answers
from augment.questions.generation.decoding import Prompt, Strategy
from augment.questions.generator import Reading
from augment.questions.prompt_formats import PromptFormat
from augment.questions.sentences import sentences

_ATTEMPTS = 4  # how often a question is drawn if the paragraph has the same one already
_ANSWER_ROOM = 32  # tokens of a prompt reserved for the answer and the words of the template

Decode = Callable[[list[Prompt], Strategy], list[list[list[int]]]]


@dataclass(frozen=True)
class QuestionOptions:
    """How questions are generated from paragraphs.

    Attributes:
        reading: the generator's input format and limits.
        count: number of questions per paragraph.
        spacy: the spaCy pipeline that finds answers; None = find them by rules.
    """

    reading: Reading
    strategy: Strategy
    seed: int = 0
    count: int = 1
    spacy: str | None = None


def readable(tokenizer: Any, texts: list[str], reading: Reading) -> list[str | None]:
    """Shorten each text to the sentences that fit the generator; None if no sentence fits.

    The leading sentences are kept, or, if the format shows a single sentence, all that fit individually.
    """
    room = reading.max_input - 1 - (_ANSWER_ROOM if reading.format.uses_answer else 0)
    result: list[str | None] = list(texts)
    long = [index for index, text in enumerate(texts) if len(text.encode()) > room]
    counted = _lengths(tokenizer, [texts[index] for index in long])
    for index, length in zip(long, counted, strict=True):
        if length > room:
            parts = sentences(texts[index])
            sizes = _lengths(tokenizer, parts)
            if reading.format.sentence and max(sizes) <= room:
                continue
            reached = sizes if reading.format.sentence else itertools.accumulate(sizes)
            fitting = [part for part, size in zip(parts, reached, strict=True) if size <= room]
            result[index] = " ".join(fitting) or None
    return result


def _lengths(tokenizer: Any, texts: list[str]) -> list[int]:
    if not texts:
        return []
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False, verbose=False).input_ids]


class GeneratedQuestion(NamedTuple):
    """A generated question, and the answer it was generated for (None if the format names no answer)."""

    text: str
    asked_for: str | None


@dataclass(frozen=True)
class _Request:
    """One question to generate: the row, its number in the row, and the text and answer of the prompt."""

    row: int
    number: int
    text: str
    answer: str | None


def decode_questions(
    tokenizer: Any, decode: Decode, options: QuestionOptions, uids: list[str], contexts: list[str]
) -> list[list[GeneratedQuestion]]:
    """Generate up to `options.count` distinct, non-blank questions about each context.

    The questions about a context depend only on the model, the settings, its uid and its text.
    """
    form = options.reading.format
    questions = [list[GeneratedQuestion]() for _ in contexts]
    shown = readable(tokenizer, contexts, options.reading)
    requests = [
        request
        for row, context in enumerate(shown)
        if context and context.strip()
        for request in _requests(row, context, form, options)
    ]
    strategy = options.strategy
    until = _up_to(tokenizer.convert_tokens_to_ids(form.end)) if form.end else list
    for attempt in range(_ATTEMPTS if strategy.sample else 1):
        ids = tokenizer([request.text for request in requests], verbose=False).input_ids if requests else []
        prompts = [
            Prompt(tuple(tokens), draw_number(options.seed, uids[request.row], request.number, attempt))
            for tokens, request in zip(ids, requests, strict=True)
        ]
        texts = [
            tokenizer.batch_decode([until(tokens) for tokens in ids], skip_special_tokens=True)
            for ids in decode(prompts, strategy)
        ]
        done = [False] * len(requests)
        for rank in range(max(map(len, texts), default=0)):  # the best of each prompt before any second
            for index, request in enumerate(requests):
                text = texts[index][rank]
                done[index] |= _add_question(questions[request.row], text, request.answer, options.count)
        requests = [request for request, finished in zip(requests, done, strict=True) if not finished]
    return questions


def _up_to(end: int) -> Callable[[list[int]], list[int]]:
    """A function that leaves out the token `end` of a question and all after it."""
    return lambda tokens: tokens[: tokens.index(end)] if end in tokens else tokens


def _requests(row: int, context: str, form: PromptFormat, options: QuestionOptions) -> list[_Request]:
    """The requests for one context: one per question, or a single one if beam search returns several."""
    if not form.uses_answer:
        count = 1 if options.strategy.beams > 1 else options.count
        return [_Request(row, number, form.prompt(context), None) for number in range(count)]
    requests = []
    for number, answer in enumerate(choose_answers(context, options.count, options.spacy)):
        short = " ".join(answer.text.split()[:8])
        requests.append(_Request(row, number, form.prompt(context, short, answer.start), short))
    return requests


def _add_question(questions: list[GeneratedQuestion], text: str, answer: str | None, count: int) -> bool:
    """Add a question unless it is blank, a repetition or one too many; False if another is needed."""
    text = " ".join(text.split())
    if len(questions) < count and text and text not in (question.text for question in questions):
        questions.append(GeneratedQuestion(text, answer))
        return True
    return len(questions) >= count
