"""From paragraphs to questions: prompts of what fits, candidates for answers, questions that differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from augment.questions.generation.answer_candidates import by_rule, by_spacy, spread
from augment.questions.generation.decoding import Prompt, Strategy, stream_of
from augment.questions.generator import Reading
from augment.questions.prompt_formats import Format
from augment.questions.sentences import sentences

_ATTEMPTS = 4  # draws of a question until it is one that the paragraph does not have yet
_ANSWER_ROOM = 32  # tokens of a prompt that are left for the answer and the marks

Decode = Callable[[list[Prompt], Strategy], list[list[list[int]]]]


@dataclass(frozen=True)
class Asking:
    """How paragraphs are asked about.

    Attributes:
        reading: what the generator reads; `spacy`: the pipeline that finds answers, None = by rule.
        count: questions wanted of each paragraph.
    """

    reading: Reading
    strategy: Strategy
    seed: int = 0
    count: int = 1
    spacy: str | None = None


def readable(tokenizer: Any, texts: list[str], reading: Reading) -> list[str | None]:
    """What may be read of each text: all, the sentences that fit, or None if none does.

    Those that fit are the leading ones; where the format shows one sentence, all not too long themselves.
    """
    room = reading.max_input - 1 - (_ANSWER_ROOM if reading.format.asks_for_an_answer else 0)
    result: list[str | None] = list(texts)
    long = [place for place, text in enumerate(texts) if len(text.encode()) > room]
    counted = _lengths(tokenizer, [texts[place] for place in long])
    for place, length in zip(long, counted, strict=True):
        if length > room:
            parts = sentences(texts[place])
            sizes = _lengths(tokenizer, parts)
            if reading.format.sentence and max(sizes) <= room:
                continue
            reached = sizes if reading.format.sentence else itertools.accumulate(sizes)
            fitting = [part for part, size in zip(parts, reached, strict=True) if size <= room]
            result[place] = " ".join(fitting) or None
    return result


def _lengths(tokenizer: Any, texts: list[str]) -> list[int]:
    if not texts:
        return []
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False, verbose=False).input_ids]


class GeneratedQuestion(NamedTuple):
    """What the generator wrote, and the answer that it was asked for (None: the format asks for none)."""

    text: str
    asked_for: str | None


@dataclass(frozen=True)
class _Wish:
    """One question that is wanted: of row `row`, its number there, the prompt's text and answer."""

    row: int
    number: int
    text: str
    answer: str | None


def generate_questions(
    tokenizer: Any, decode: Decode, asking: Asking, uids: list[str], contexts: list[str]
) -> list[list[GeneratedQuestion]]:
    """The questions about each context: up to `asking.count` that differ, none of them blank.

    What is asked about a context depends on the model, the settings, its uid and its text alone.
    """
    form, found = asking.reading.format, [list[GeneratedQuestion]() for _ in contexts]
    shown = readable(tokenizer, contexts, asking.reading)
    wishes = [
        wish
        for row, context in enumerate(shown)
        if context and context.strip()
        for wish in _wishes(row, context, form, asking)
    ]
    strategy = asking.strategy
    for attempt in range(_ATTEMPTS if strategy.sample else 1):
        ids = tokenizer([wish.text for wish in wishes], verbose=False).input_ids if wishes else []
        prompts = [
            Prompt(tuple(one), stream_of(asking.seed, uids[wish.row], wish.number, attempt))
            for one, wish in zip(ids, wishes, strict=True)
        ]
        texts = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in decode(prompts, strategy)]
        had = [False] * len(wishes)
        for rank in range(max(map(len, texts), default=0)):  # the best of each prompt before any second
            for place, wish in enumerate(wishes):
                had[place] |= _take(found[wish.row], texts[place][rank], wish.answer, asking.count)
        wishes = [wish for wish, done in zip(wishes, had, strict=True) if not done]
    return found


def _wishes(row: int, context: str, form: Format, asking: Asking) -> list[_Wish]:
    """The prompts for one context: one a question, or a single one where beams give several."""
    if not form.asks_for_an_answer:
        count = 1 if asking.strategy.beams > 1 else asking.count
        return [_Wish(row, number, form.prompt(context), None) for number in range(count)]
    found = by_spacy(context, asking.spacy) if asking.spacy else by_rule(context)
    wishes = []
    for number, answer in enumerate(spread(found, asking.count)):
        short = " ".join(answer.text.split()[:8])
        wishes.append(_Wish(row, number, form.prompt(context, short, answer.start), short))
    return wishes


def _take(questions: list[GeneratedQuestion], text: str, answer: str | None, count: int) -> bool:
    """Add a question if it is new and there is room for it; False if it is blank or there already."""
    text = " ".join(text.split())
    if len(questions) < count and text and text not in (question.text for question in questions):
        questions.append(GeneratedQuestion(text, answer))
        return True
    return len(questions) >= count
