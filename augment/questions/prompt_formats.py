"""Prompt formats: the whole context or one sentence of it, with or without the answer to ask about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from augment.questions.answer_context import around
from tasks.errors import UserError


@dataclass(frozen=True)
class Format:
    """A prompt format.

    Attributes:
        template: contains {context}, and {answer} if the prompt names the answer.
        sentence: whether the context is reduced to the sentence that contains the answer.
    """

    name: str
    template: str
    sentence: bool = False

    @property
    def asks_for_an_answer(self) -> bool:
        """True if an answer is chosen first and the question is generated for it."""
        return "{answer}" in self.template

    @property
    def marks(self) -> str:
        """The fixed words of the template."""
        return self.template.format(answer="", context="").strip()

    def prompt(self, context: str, answer: str = "", start: int = 0) -> str:
        """Build the prompt for one context.

        Args:
            start: character offset of the answer in the context.
        """
        shown = around(context, start, start + len(answer)) if self.sentence else context
        return self.template.format(answer=answer, context=shown)


FORMATS: dict[str, Format] = {
    "context": Format("context", "{context}"),
    "answer": Format("answer", "answer: {answer} context: {context}"),
    "sentence": Format("sentence", "answer: {answer} context: {context}", sentence=True),
}


def check_vocabulary(tokenizer: Any, config: Any, form: Format) -> None:
    """Check that the model can read prompts of this format and end a question.

    Raises:
        UserError: the end token, the padding token, a word of the format or the question mark is missing from
            the vocabulary, or the tokeniser has more ids than the weights.
    """
    for role in ("eos", "pad"):
        token, number = getattr(tokenizer, f"{role}_token_id"), getattr(config, f"{role}_token_id")
        numbers = number if isinstance(number, Sequence) else [number]
        if token is None or token not in numbers:
            raise _lacks(f"{role}_token_id is {token} in its tokeniser and {number} in its configuration")
    marks = tokenizer(form.marks, add_special_tokens=False).input_ids if form.marks else []
    if tokenizer.unk_token_id in marks:
        raise _lacks(f"it has no tokens for {form.marks!r}, which the format {form.name!r} needs")
    if "?" not in tokenizer.decode(tokenizer("why?", add_special_tokens=False).input_ids):
        raise _lacks("it has no question mark")
    if len(tokenizer) > config.vocab_size:
        raise _lacks(f"its tokeniser has {len(tokenizer)} tokens, but its weights have {config.vocab_size}")


def _lacks(what: str) -> UserError:
    return UserError(
        f"this model's vocabulary cannot be used to generate questions: {what}",
        expected="a T5 whose tokeniser has </s>, <pad>, '?' and the words of the format",
        hint="choose another `format` or another model, or train one with `model=fresh`",
    )
