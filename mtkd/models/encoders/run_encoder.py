"""Calling an encoder, with errors that name the class of one that is not part of mtkd."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.user_class_errors import Hints, class_of, is_user_class, user_class_errors
from mtkd.outputs import BY_LAYER, PER_ROW, EncoderOutput, OutputSpec
from tasks.common.errors import UserError, a_type
from tasks.tokens.batching import ModelInputs

_HINTS: Hints = {
    (
        AttributeError,
        TypeError,
    ): "write `forward(self, inputs, need=None)`; `inputs` has `joined`, or "
    '`texts` if its `input_format` is "separate"'
}


def run_encoder(encoder: AnyEncoder, inputs: ModelInputs, need: OutputSpec) -> EncoderOutput:
    """Call an encoder.

    Raises:
        UserError: an encoder that is not part of mtkd fails, or returns something of the wrong kind or shape.
    """
    kind = class_of(encoder)
    if not is_user_class(kind):
        result: EncoderOutput = encoder(inputs, need)
        return result
    with user_class_errors("the encoder", kind, _HINTS):
        output: Any = encoder(inputs, need)
    if not isinstance(output, EncoderOutput):
        raise UserError(
            f"the encoder {kind.__name__} returned {'None' if output is None else a_type(output)}",
            expected="mtkd.EncoderOutput, such as `mtkd.EncoderOutput(pooled=vectors)`",
        )
    tokens = inputs.joined or (inputs.texts or ())[0]
    _check_shapes(kind.__name__, output, len(tokens.ids))
    return output


def check_embedding_count(encoder: AnyEncoder, tokens: int) -> None:
    """Check that an encoder has an embedding for each token of a tokeniser.

    Raises:
        UserError: it has fewer; for one that is not part of mtkd, the hint names the setting.
    """
    kind = class_of(encoder)
    if not isinstance(getattr(getattr(encoder, "embeddings", None), "weight", None), Tensor):
        raise UserError(
            f"the encoder {kind.__name__} has no word embeddings called `embeddings`",
            hint="write `self.embeddings = nn.Embedding(config.vocab_size, width)` in its `__init__`",
        )
    size = len(encoder.embeddings.weight)
    if tokens <= size:
        return
    if not is_user_class(kind):
        raise UserError(
            f"the tokeniser has {tokens:,} tokens, the encoder {size:,} embeddings",
            hint="use the tokeniser that the encoder was trained with",
        )
    config = type(encoder.config)
    has_setting = "vocab_size" in config.model_fields
    maker = f"{config.__name__}(vocab_size={tokens}, ...)" if has_setting else f"nn.Embedding({tokens}, ...)"
    raise UserError(
        f"the encoder {kind.__name__} has {size:,} embeddings, but the tokeniser has {tokens:,} tokens",
        expected="an embedding for each token",
        hint=f"make it with `{maker}`" if has_setting else f"make its `embeddings` with `{maker}`",
    )


def _check_shapes(encoder: str, output: EncoderOutput, rows: int) -> None:
    """Raise UserError if an output is not a tensor with one entry per row, or its axes are wrong."""
    outputs: dict[str, tuple[Any, str]] = {
        "pooled": (output.pooled, "width"),
        "sequence": (output.sequence, "tokens, width"),
    }
    for field in BY_LAYER:
        axes = (
            "width" if field in PER_ROW else "heads, tokens, tokens" if field == "scores" else "tokens, width"
        )
        outputs |= {f"{field}[{layer}]": (value, axes) for layer, value in getattr(output, field).items()}
    for name, (value, axes) in outputs.items():
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.ndim != axes.count(",") + 2 or len(value) != rows:
            given = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else a_type(value)
            raise UserError(
                f"the encoder {encoder} returned `{name}` {given} for {rows} rows",
                expected=f"a tensor of shape ({rows}, {axes})",
            )
