"""Prompt formats: mtkd's own, and those of published question generators, which are known by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from augment.questions.answer_context import sentences_around
from tasks.common.errors import UserError


@dataclass(frozen=True)
class PromptFormat:
    """A prompt format.

    Attributes:
        template: contains {context}, and {answer} if the prompt names the answer; or {before}, {answer} and
            {after}, if the answer is marked where it stands in the context.
        sentence: whether the context is reduced to the sentence that contains the answer.
        end: the token that ends a question, besides the model's own end token.
    """

    name: str
    template: str
    sentence: bool = False
    end: str | None = None

    @property
    def uses_answer(self) -> bool:
        """True if an answer is chosen first and the question is generated for it."""
        return "{answer}" in self.template

    @property
    def fixed_words(self) -> str:
        """The fixed words of the template."""
        return self.template.format(answer="", context="", before="", after="").strip()

    def prompt(self, context: str, answer: str = "", start: int = 0) -> str:
        """Build the prompt for one context.

        Args:
            start: character offset of the answer in the context.
        """
        stop = start + len(answer)
        shown = sentences_around(context, start, stop) if self.sentence else context
        return self.template.format(
            answer=answer, context=shown, before=context[:start], after=context[stop:]
        )


PROMPT_FORMATS: dict[str, PromptFormat] = {
    "context": PromptFormat("context", "{context}"),
    "answer": PromptFormat("answer", "answer: {answer} context: {context}"),
    "sentence": PromptFormat("sentence", "answer: {answer} context: {context}", sentence=True),
    "lmqg": PromptFormat("lmqg", "generate question: {before}<hl> {answer} <hl>{after}"),
    "lmqg-mt5": PromptFormat("lmqg-mt5", "{before}<hl> {answer} <hl>{after}"),
    "valhalla": PromptFormat("valhalla", "generate question: {before} <hl> {answer} <hl> {after}"),
    "t5-v1_1": PromptFormat(  # a blank to fill in, which is all that this model was trained for
        "t5-v1_1", "{context} Answer: {answer} Question: <extra_id_0>", end="<extra_id_1>"
    ),
    "flan": PromptFormat("flan", 'Write a question about this text whose answer is "{answer}": {context}'),
}
_PUBLISHED = {  # the names of generators on the hub
    r"lmqg/mt5-.*-qg(-trimmed-.*)?": "lmqg-mt5",
    r"lmqg/mt5-.*-qg-ae(-.*)?": "lmqg",  # trained for two tasks, so that it needs the prefix
    r"lmqg/(flan-)?t5-.*-qg(-.*)?": "lmqg",
    r"valhalla/t5-.*-qg-hl": "valhalla",
    r"valhalla/t5-.*-qg-prepend": "answer",
    r"mrm8488/t5-base-finetuned-question-generation-ap": "answer",
    r"google/flan-t5-.*": "flan",
    r"google/t5-v1_1-.*": "t5-v1_1",
}


def published_format(name: str) -> str | None:
    """The format of a published generator, by its name on the hub; None if the name is not known."""
    return next((form for pattern, form in _PUBLISHED.items() if re.fullmatch(pattern, name)), None)


def check_prompt_vocabulary(tokenizer: Any, config: Any, form: PromptFormat) -> None:
    """Check that the model can read prompts of this format and end a question.

    Raises:
        UserError: the end token, the padding token, a word or a special token of the format or the question
            mark is missing from the vocabulary, or the tokeniser has more ids than the weights.
    """
    for role in ("eos", "pad"):
        token = getattr(tokenizer, f"{role}_token_id")
        number = getattr(config, f"{role}_token_id")
        numbers = number if isinstance(number, Sequence) else [number]
        if token is None or token not in numbers:
            raise _unusable(f"{role}_token_id is {token} in its tokeniser and {number} in its configuration")
    fixed_ids = tokenizer(form.fixed_words, add_special_tokens=False).input_ids if form.fixed_words else []
    special = set(re.findall(r"<\w+>", form.template))
    if missing := special - set(tokenizer.get_vocab()):
        raise _unusable(f"it has no token {missing.pop()}, which the format {form.name!r} needs")
    if tokenizer.unk_token_id in fixed_ids:
        raise _unusable(f"it has no tokens for {form.fixed_words!r}, which the format {form.name!r} needs")
    if "?" not in tokenizer.decode(tokenizer("why?", add_special_tokens=False).input_ids):
        raise _unusable("it has no question mark")
    if len(tokenizer) > config.vocab_size:
        raise _unusable(
            f"its tokeniser has {len(tokenizer)} tokens, but its weights have {config.vocab_size}"
        )


def _unusable(problem: str) -> UserError:
    return UserError(
        f"this model's vocabulary cannot be used to generate questions: {problem}",
        expected="a T5 whose tokeniser has </s>, <pad>, '?' and the words of the format",
        hint="choose another `format` or another model, or train one with `model='scratch'`",
    )
