"""A new T5 with its own vocabulary (SentencePiece's unigram model) and random weights."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from tasks.common.argument_markers import Range
from tasks.common.arguments import check_fields
from tasks.common.errors import UserError


@dataclass(frozen=True)
class NewModelShape:
    """The sizes of a new T5; encoder and decoder have `layers` layers each.

    Raises:
        UserError: a size is out of range, or the heads do not divide the width.
    """

    vocab_size: Annotated[int, Range(1, 1_000_000)] = 8000
    d_model: Annotated[int, Range(1, 16_384)] = 256
    layers: Annotated[int, Range(1, 200)] = 4
    heads: Annotated[int, Range(1, 1000)] = 4
    d_ff: Annotated[int, Range(1, 65_536)] = 1024

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_model % self.heads:
            raise UserError(
                f"`d_model={self.d_model}` cannot be divided among `heads={self.heads}`",
                expected="`d_model` is a multiple of `heads`",
            )


def train_tokenizer(texts: Iterable[str], shape: NewModelShape, max_input: int) -> Any:
    """Train a (fast) T5 tokeniser on `texts`.

    Raises:
        UserError: there are too few texts for a vocabulary of this size.
    """
    import sentencepiece
    from transformers import T5Tokenizer

    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=written,
            vocab_size=shape.vocab_size,
            model_type="unigram",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            normalization_rule_name="identity",
            character_coverage=0.9998,
            input_sentence_size=200_000,
            num_threads=4,
            max_sentence_length=20_000,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"a vocabulary of {shape.vocab_size} tokens cannot be learned from these texts: "
            f"{str(error).strip().splitlines()[-1]}",
            hint="use a smaller `vocab_size` or more rows",
        ) from error
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [(model.id_to_piece(n), model.get_score(n)) for n in range(model.get_piece_size())]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=max_input)


def new_model(tokenizer: Any, shape: NewModelShape, seed: int) -> Any:
    """Create a T5 of this shape with random weights, which depend only on the seed."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"decoder_start_token_id": tokenizer.pad_token_id}
    config = T5Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        d_model=shape.d_model,
        d_kv=shape.d_model // shape.heads,
        d_ff=shape.d_ff,
        num_layers=shape.layers,
        num_heads=shape.heads,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return T5ForConditionalGeneration(config)
