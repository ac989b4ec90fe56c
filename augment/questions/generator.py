"""A question generator on disk: a T5 as transformers writes it, and beside it what it was trained to read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.questions.prompt_formats import FORMATS, Format, check_vocabulary
from tasks.errors import UserError, unknown
from tasks.files import digest_bytes, read_json
from tasks.hub_loading import load_named

RECORD = "questions.json"
_FAMILIES = ("t5", "mt5")


@dataclass(frozen=True)
class Reading:
    """What a generator reads and writes.

    Attributes:
        form: the format of its prompts, a name in `formats.FORMATS`.
        max_input, max_output: most tokens of a prompt and of a question.
    """

    form: str = "context"
    max_input: int = 512
    max_output: int = 48

    @property
    def format(self) -> Format:
        """The format itself; UserError if there is none of that name."""
        if self.form not in FORMATS:
            raise unknown("format", self.form, FORMATS)
        return FORMATS[self.form]


@dataclass(frozen=True)
class Generator:
    """A generator in memory: the name it was loaded by, its model and tokeniser, and what it reads."""

    name: str
    model: Any
    tokenizer: Any
    reading: Reading


def load_generator(name: str, **changes: Any) -> Generator:
    """Load a generator from a directory or the hub and see that it can write questions.

    Args:
        changes: fields of `Reading` that are not to be what the record beside the model says (None = as it
            says; a model without a record has the defaults).

    Raises:
        UserError: nothing of that name, no T5, damaged, or a vocabulary that lacks what the format needs.
    """
    from transformers import AutoModelForSeq2SeqLM

    reading = dataclasses.replace(read_reading(name), **{k: v for k, v in changes.items() if v is not None})
    form = reading.format
    config, tokenizer = load_shell(name)
    check_vocabulary(tokenizer, config, form)
    load = _loader(AutoModelForSeq2SeqLM.from_pretrained, use_safetensors=True, dtype="float32")
    return Generator(name, load_named(load, name, "generator"), tokenizer, reading)


def load_shell(name: str) -> tuple[Any, Any]:
    """The configuration and the tokeniser of a T5, without its weights; UserError if it is none."""
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = Path(name)
    if place.exists() and not (place / "config.json").is_file():
        raise UserError(
            f"{name} is not a model: it has no config.json",
            expected="what `mtkd augment questions train` wrote, or a T5 as transformers writes it",
            hint="run the training command again if it was interrupted; it resumes",
        )
    config = load_named(_loader(AutoConfig.from_pretrained), name, "generator")
    if config.model_type not in _FAMILIES:
        raise UserError(f"{name!r} is a {config.model_type} model, no T5", expected=", ".join(_FAMILIES))
    return config, load_named(_loader(AutoTokenizer.from_pretrained), name, "tokeniser")


def read_reading(name: str) -> Reading:
    """What the record beside the model says it reads; the defaults where there is no record."""
    path = Path(name) / RECORD
    if not path.is_file():
        return Reading()
    try:
        return Reading(**read_json(path)["reading"])
    except (TypeError, KeyError) as error:
        raise UserError(f"{path} is not a generator's record: {error}", hint="train it again") from error


def digest_generator(generator: Generator) -> str:
    """SHA-256 over weights, configuration and tokeniser, wherever they came from."""
    parts: list[bytes | str] = [generator.tokenizer.backend_tokenizer.to_str()]
    parts.append(json.dumps(generator.model.config.to_diff_dict(), sort_keys=True, default=str))
    for key, value in sorted(generator.model.state_dict().items()):
        parts += [key, value.detach().cpu().contiguous().numpy().tobytes()]
    return digest_bytes(*parts)


def _loader(load: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def call(name: str, **given: Any) -> Any:
        return load(name, trust_remote_code=False, **options, **given)

    return call
