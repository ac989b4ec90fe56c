"""Querying an extractive question-answering teacher."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tasks.common.errors import UserError
from tasks.scoring.answers import Answer, Answerer

_BATCH = 64  # questions sent to the teacher at once
_WORD = re.compile(r"\w+")


def checked_answers(
    answerer: Answerer, questions: Sequence[str], contexts: Sequence[str]
) -> Iterator[Answer]:
    """Yield the teacher's answers in order, querying it in batches of fixed size.

    Raises:
        UserError: an answer is not in the context at the position given by the teacher.
    """
    for start in range(0, len(questions), _BATCH):
        part = slice(start, start + _BATCH)
        answers = answerer(questions[part], contexts[part])
        for question, context, answer in zip(questions[part], contexts[part], answers, strict=True):
            if answer.text and (answer.start < 0 or not context.startswith(answer.text, answer.start)):
                raise UserError(
                    f"the teacher's answer {answer.text!r} to {question!r} is not at character "
                    f"{answer.start} of the context {context[:60]!r}...",
                    hint="the fault is in the decoding of the teacher's answers, not in the corpus",
                )
            yield answer


def words_of(text: str) -> list[str]:
    """The words of a text, case-folded and without punctuation."""
    return _WORD.findall(text.casefold())
