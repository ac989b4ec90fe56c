"""The augmenter of an endpoint: its options are validated, and the cost of its requests estimated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from augment.questions.endpoint.address import Address
from augment.questions.endpoint.answer_log import AnswerLog
from augment.questions.endpoint.client import Client
from augment.questions.endpoint.endpoint_augmenter import EndpointPrompt, EndpointQuestions
from augment.questions.endpoint.question_text import read_template
from augment.questions.generation.answer_candidates import load_spacy
from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.paragraphs import Counts, Paragraph
from tasks.common.errors import UserError, brief

_RESERVED = ("model", "messages", "stream", "n")  # fields of a request that `extra_body` may not change
_LIMITS = {  # option -> (least, most); other kinds of models have other limits
    "per_paragraph": (1, 100),
    "max_output": (1, 100_000),
    "temperature": (0, 100),
    "top_p": (1e-6, 1),
}


def read_options(config: GenerationConfig) -> tuple[EndpointPrompt, Client]:
    """Validate the options; returns the prompt and a client that has sent nothing yet.

    Raises:
        UserError: an option cannot be used.
    """
    for option, (least, most) in _LIMITS.items():
        value = getattr(config, option)
        if value is not None and not least <= value <= most:
            raise UserError(f"`{option}={value!r}` is not valid", expected=f"{least:g} to {most:,}")
    if not config.endpoint_model:
        raise UserError(
            f"`model={config.model[:200]!r}` does not say which model of the server to ask",
            hint="`endpoint_model='NAME'`; most servers list their models at /v1/models",
        )
    prompt = EndpointPrompt(
        config.endpoint_model,
        read_template(config.prompt_template),
        config.per_paragraph,
        config.spacy,
        config.max_output or 128,
        config.sample,
        config.temperature,
        config.top_p,
        config.seed,
        _extra(config.extra_body),
    )
    if not (prompt.names_answers or prompt.sample) and prompt.count > 1:
        raise UserError(
            f"the prompt would be the same for all {prompt.count} questions about a paragraph",
            hint="use `sample=True`, or a template with {answer}",
        )
    if prompt.names_answers and config.spacy:
        load_spacy(config.spacy)
    address = Address.parse(config.model, config.api_key_env)
    return prompt, Client(address, config.timeout, config.retries, config.requests_per_minute)


def _extra(extra: Any) -> Mapping[str, Any]:
    try:
        usable = extra is None or (isinstance(extra, dict) and all(isinstance(key, str) for key in extra))
        json.dumps(extra, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):  # also half a surrogate pair
        usable = False
    if not usable:
        raise UserError(
            f"`extra_body={brief(extra)}` is not valid", expected="a JSON object, such as '{\"top_k\": 20}'"
        )
    if wrong := [key for key in _RESERVED if key in (extra or {})]:
        raise UserError(f"`extra_body` has the field {wrong[0]!r}, which mtkd sets itself")
    return extra or {}


def endpoint_questions(
    config: GenerationConfig,
    prompt: EndpointPrompt,
    client: Client,
    paragraphs: list[Paragraph],
    counts: Counts,
    log: AnswerLog,
) -> EndpointQuestions:
    """The augmenter for some paragraphs."""
    return EndpointQuestions(
        prompt,
        client,
        log,
        config.concurrency,
        {paragraph.uid: prompt.answers(paragraph.text) for paragraph in paragraphs},
        str(config.words or "any"),
        counts.sentence(),
    )
