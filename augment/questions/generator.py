"""Question generators on disk: a T5 saved by transformers, with a record of the input it was trained on."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from augment.questions.prompt_formats import (
    PROMPT_FORMATS,
    PromptFormat,
    check_prompt_vocabulary,
    published_format,
)
from mtkd.models.encoders.config_checks import refuse_code
from mtkd.models.pretrained_weights import load_pretrained
from mtkd.torch_state import isolated
from tasks.common.digests import check_digests
from tasks.common.errors import MtkdWarning, UserError, brief, shorten, unknown
from tasks.common.hub_loading import find_file, load_named
from tasks.common.records import (
    Count,
    Depth,
    Record,
    Share,
    Size,
    Text,
    Units,
    VocabularySize,
    check_record,
    check_value,
    read_record,
)
from tasks.common.sha256 import digest_bytes

RECORD = "questions.json"
_FAMILIES = ("t5", "mt5")
_EXAMPLE = ("Ada wrote it in 1843.", "1843", 16)
_UNKNOWN = "the prompt format of {} is unknown; its prompts are like {!r}. `format` selects another: {}."


@with_config(ConfigDict(extra="allow"))
class _Sizes(TypedDict):
    """What the configuration of every T5 says; transformers has defaults for what is missing."""

    d_model: Units
    d_kv: Units
    d_ff: Size
    num_layers: Depth
    num_heads: Units
    vocab_size: VocabularySize
    relative_attention_num_buckets: Units
    decoder_start_token_id: Count
    eos_token_id: Count | list[Count]
    pad_token_id: Count


@with_config(ConfigDict(extra="allow"))
class _Trained(_Sizes):
    """What the configuration of a generator that mtkd trained says in addition."""

    num_decoder_layers: Depth
    feed_forward_proj: str
    layer_norm_epsilon: Share
    relative_attention_max_distance: Size
    scale_decoder_outputs: bool
    tie_word_embeddings: bool


@with_config(ConfigDict(extra="allow"))
class _AddedToken(TypedDict):
    content: Text


_Token = Text | _AddedToken | None


@with_config(ConfigDict(extra="allow"))
class _TokeniserConfig(TypedDict):
    """What a tokenizer_config.json may say; transformers has defaults for what is missing."""

    model_max_length: NotRequired[Annotated[float, Field(ge=1)] | None]
    extra_ids: NotRequired[Annotated[int, Field(ge=0, le=10_000)]]
    eos_token: NotRequired[_Token]
    pad_token: NotRequired[_Token]
    unk_token: NotRequired[_Token]


@dataclass(frozen=True)
class Reading(Record):
    """The input format and the length limits of a generator.

    Attributes:
        form: the prompt format, a key of `prompt_formats.PROMPT_FORMATS`.
        max_input, max_output: maximum number of tokens in a prompt and in a question.
    """

    form: str = "context"
    max_input: Annotated[int, Field(ge=8, le=10_000)] = 512
    max_output: Annotated[int, Field(ge=2, le=10_000)] = 48

    @property
    def format(self) -> PromptFormat:
        """The prompt format; UserError if there is none of that name."""
        if self.form not in PROMPT_FORMATS:
            raise unknown("format", self.form, PROMPT_FORMATS)
        return PROMPT_FORMATS[self.form]


@dataclass(frozen=True)
class Generator:
    """A loaded generator: the name it was loaded by, its model and tokeniser, and its input format."""

    name: str
    model: Any
    tokenizer: Any
    reading: Reading


@isolated
def load_generator(name: str, **changes: Any) -> Generator:
    """Load a generator from a directory or the hub and check that it can write questions.

    Args:
        changes: fields of `Reading` that override the model's record (None = keep the recorded value, or, for
            a model without a record, the format of that published generator and otherwise the defaults).

    Raises:
        UserError: the model is missing, damaged or not a T5, or its vocabulary lacks tokens of the format.

    Warns:
        MtkdWarning: the prompt format of the model is unknown. The warning has an example of its prompts.
    """
    from transformers import AutoModelForSeq2SeqLM

    check_digests(Path(name))
    reading = dataclasses.replace(
        recorded_reading(name), **{k: v for k, v in changes.items() if v is not None}
    )
    form = reading.format
    config, tokenizer = load_config_and_tokeniser(name)
    check_prompt_vocabulary(tokenizer, config, form)
    recorded = (Path(name) / RECORD).is_file() or changes.get("form")
    if not recorded and published_format(name) is None:
        warnings.warn(
            _UNKNOWN.format(name, form.prompt(*_EXAMPLE), ", ".join(PROMPT_FORMATS)),
            MtkdWarning,
            stacklevel=2,
        )
    model, lost = load_pretrained(AutoModelForSeq2SeqLM, name, "generator")
    if lost:
        raise UserError(f"the generator {name!r} has no weights for {shorten(sorted(lost))}")
    return Generator(name, model, tokenizer, reading)


def load_config_and_tokeniser(name: str) -> tuple[Any, Any]:
    """Load the configuration and the tokeniser of a T5 without its weights; UserError if it is not a T5."""
    from transformers import AutoConfig, AutoTokenizer

    path = Path(name)
    if path.exists() and not (path / "config.json").is_file():
        raise UserError(
            f"{name} is not a model: it has no config.json",
            expected="a model written by `mtkd.augment.train_questions`, or a T5 saved by transformers",
            hint="run the training command again if it was interrupted; it resumes",
        )
    if file := find_file(name, "config.json"):
        values = read_record(file, dict[str, Any])
        refuse_code(values, str(file))
        if values.get("model_type", "t5") not in _FAMILIES:  # before its keys, which are those of others
            raise _not_a_t5(name, values["model_type"])
        check_value(values, _Trained if (path / RECORD).is_file() else _Sizes, str(file))
    if file := find_file(name, "tokenizer_config.json"):
        read_record(file, _TokeniserConfig)
    config = load_named(partial(AutoConfig.from_pretrained, trust_remote_code=False), name, "generator")
    if config.model_type not in _FAMILIES:
        raise _not_a_t5(name, config.model_type)
    return config, load_named(
        partial(AutoTokenizer.from_pretrained, trust_remote_code=False), name, "tokeniser"
    )


def _not_a_t5(name: str, model_type: Any) -> UserError:
    return UserError(
        f"{name!r} is a model of type {brief(model_type)}, not a T5",
        expected=f"a model of type {' or '.join(_FAMILIES)}",
        hint="train one with `mtkd.augment.train_questions`, or use `model='rules'`, which needs no model",
    )


def recorded_reading(name: str) -> Reading:
    """Read the record next to the model; for one without, the defaults or a published generator's format."""
    path = Path(name) / RECORD
    if not path.is_file():
        return Reading(published_format(name) or "context")
    hint = "train the generator again"
    recorded = read_record(path, dict[str, Any], hint=hint).get("reading")
    return check_record(recorded, Reading, f"{path}, reading", hint=hint)


def digest_generator(generator: Generator) -> str:
    """SHA-256 of the weights, the configuration and the tokeniser, independent of where they were loaded."""
    parts: list[bytes | str] = [generator.tokenizer.backend_tokenizer.to_str()]
    parts.append(json.dumps(generator.model.config.to_diff_dict(), sort_keys=True, default=str))
    for key, value in sorted(generator.model.state_dict().items()):
        parts += [key, value.detach().cpu().contiguous().numpy().tobytes()]
    return digest_bytes(*parts)
