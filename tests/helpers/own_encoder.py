"""An encoder outside of mtkd, which returns what a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

import mtkd


class MeanConfig(mtkd.EncoderConfig):
    kind: Literal["mean-of-embeddings"] = "mean-of-embeddings"
    vocab_size: int
    width: int = 8

    @property
    def spec(self) -> mtkd.EncoderSpec:
        return mtkd.EncoderSpec("mean", pooled_size=self.width, offers=mtkd.OutputSpec(pooled=True))


class Mean(mtkd.Encoder[mtkd.StudentSettings, MeanConfig]):
    """The mean of the word embeddings of a row.

    Args:
        result: makes the result of `forward` from the mean, (B, width).
    """

    Config = MeanConfig

    def __init__(self, config: MeanConfig, result: Callable[[Tensor], Any] | None = None):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.width)
        self._result = result or (lambda mean: mtkd.EncoderOutput(pooled=mean))

    def forward(self, inputs: Any, need: Any = None) -> Any:
        tokens = inputs.joined
        mask = tokens.mask.unsqueeze(-1)
        return self._result((self.embeddings(tokens.ids) * mask).sum(1) / mask.sum(1))


def mean_encoder(result: Callable[[Tensor], Any] | None = None) -> Mean:
    """An encoder for the vocabulary of the default tokeniser."""
    return Mean(MeanConfig(vocab_size=30522), result)
