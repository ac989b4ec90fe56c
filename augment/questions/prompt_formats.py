"""What the generator reads: a context, alone or behind the answer that is asked for, whole or in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from augment.questions.answer_context import around
from tasks.errors import UserError


@dataclass(frozen=True)
class Format:
    """How a prompt is written.

    Attributes:
        template: with {context}, and {answer} where the answer is marked.
        sentence: of the context only the sentence that the answer stands in.
    """

    name: str
    template: str
    sentence: bool = False

    @property
    def asks_for_an_answer(self) -> bool:
        """True if each question is about an answer that is chosen first."""
        return "{answer}" in self.template

    @property
    def marks(self) -> str:
        """The words of the template itself."""
        return self.template.format(answer="", context="").strip()

    def prompt(self, context: str, answer: str = "", start: int = 0) -> str:
        """The prompt of one context.

        Args:
            start: the answer's first character in the context.
        """
        shown = around(context, start, start + len(answer)) if self.sentence else context
        return self.template.format(answer=answer, context=shown)


FORMATS: dict[str, Format] = {
    "context": Format("context", "{context}"),
    "answer": Format("answer", "answer: {answer} context: {context}"),
    "sentence": Format("sentence", "answer: {answer} context: {context}", sentence=True),
}


def check_vocabulary(tokenizer: Any, config: Any, form: Format) -> None:
    """See that the model can read prompts of this format and end a question.

    Raises:
        UserError: no end token, no padding, marks it does not know, or ids that the weights lack.
    """
    for role in ("eos", "pad"):
        token, number = getattr(tokenizer, f"{role}_token_id"), getattr(config, f"{role}_token_id")
        numbers = number if isinstance(number, Sequence) else [number]
        if token is None or token not in numbers:
            raise _lacks(f"its tokeniser says {token} and its configuration {number} for {role}_token_id")
    marks = tokenizer(form.marks, add_special_tokens=False).input_ids if form.marks else []
    if tokenizer.unk_token_id in marks:
        raise _lacks(f"it has no tokens for {form.marks!r}, which the format {form.name!r} needs")
    if "?" not in tokenizer.decode(tokenizer("why?", add_special_tokens=False).input_ids):
        raise _lacks("it has no question mark")
    if len(tokenizer) > config.vocab_size:
        raise _lacks(f"its tokeniser has {len(tokenizer)} tokens, its weights {config.vocab_size}")


def _lacks(what: str) -> UserError:
    return UserError(
        f"the vocabulary of this model cannot be used to write questions: {what}",
        expected="a T5 whose tokeniser has </s>, <pad>, '?' and the words of the format",
        hint="choose another `format` or another model, or train one with `model=fresh`",
    )
