"""Losses on self-attention scores and values: pure functions, then the loss terms that recipes use."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mtkd.losses.compatibility import pairs_of, require_same_heads
from mtkd.losses.layer_maps import LayerPairs
from mtkd.losses.layered import LayeredTerm, pair_mask, text_mask_of
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import LayerMap, TermSettings


@full_precision
def attention_score_mse(scores_s: Tensor, scores_t: Tensor, mask: Tensor) -> Tensor:
    """Mean of (A_S - A_T)² over heads, valid queries and their valid keys (TinyBERT Eq. 7).

    A is the attention score before the softmax. Every query has the same weight, however many keys it has.
    Padding is excluded; the reference implementation sets padded scores to 0 and includes them in the mean.
    Returns 0 if no token is valid.

    Args:
        scores_s, scores_t: (B, H, L, L) scores [row, head, query, key], no gradient to the teacher's.
        mask: (B, L) bool, True = real token; or int, the number of each token's text (0 = padding), where the
            valid keys of a query are the tokens of the same text.
    """
    valid = pair_mask(mask)
    difference = (scores_s - scores_t.detach()).masked_fill(~valid, 0.0)
    per_query = difference.square().sum(-1) / valid.sum(-1).clamp(min=1)
    return per_query.sum() / (mask.bool().sum().clamp(min=1) * scores_s.shape[1])


@full_precision
def attention_kl(scores_s: Tensor, scores_t: Tensor, mask: Tensor) -> Tensor:
    """KL(softmax(A_T) || softmax(A_S)) over valid keys, averaged over valid queries and heads (MiniLM Eq. 2).

    Returns 0 if no token is valid.

    Args:
        scores_s, scores_t: (B, H, L, L) scores before the softmax; no gradient flows to the teacher's.
        mask: (B, L) bool or int; see `attention_score_mse`.
    """
    valid = pair_mask(mask)
    # The lowest finite number, unlike -inf, gives no NaN in the rows of padded queries (zeroed below).
    student, teacher = (
        scores.masked_fill(~valid, torch.finfo(scores.dtype).min).log_softmax(-1)
        for scores in (scores_s, scores_t.detach())
    )
    divergences = (teacher.exp() * (teacher - student)).masked_fill(~valid, 0.0)
    return divergences.sum() / (mask.bool().sum().clamp(min=1) * scores_s.shape[1])


class ScoreTerm(LayeredTerm):
    """Base class of terms on attention scores, for models with the same number of heads.

    Args:
        layers: (student layer, teacher layer) pairs.
        emd: True for the layer map `emd`, which weights all pairs by the earth mover's flow.

    Attributes:
        score_loss: (scores of the student, of the teacher, mask) -> the mean over tokens.
    """

    score_loss: ClassVar[staticmethod[[Tensor, Tensor, Tensor], Tensor]]

    def __init__(self, layers: LayerPairs, emd: bool = False):
        super().__init__(layers, ["scores"], emd)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs = pairs_of(name, settings.layer_map, models)
        require_same_heads(name, models)
        return cls(pairs, settings.layer_map == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over tokens for one pair of layers."""
        return self.score_loss(
            inputs.student_outputs.scores[layer_s],
            inputs.teacher_outputs.scores[layer_t],
            text_mask_of(inputs),
        )


class AttentionScoreMSE(ScoreTerm):
    """`attention_score_mse`: the MSE of attention scores, summed over layer pairs (TinyBERT Eq. 7).

    Averaged over: real tokens.
    """

    class Settings(TermSettings):
        """MSE of attention scores before the softmax (TinyBERT); both models need equal numbers of heads."""

        layer_map: LayerMap = "uniform"

    score_loss = staticmethod(attention_score_mse)


class AttentionKL(ScoreTerm):
    """`attention_kl`: the KL divergence of attention distributions, summed over layer pairs (MiniLM Eq. 2).

    Averaged over: real tokens.
    """

    class Settings(TermSettings):
        """KL divergence of attention distributions (MiniLM); both models need equal numbers of heads."""

        layer_map: LayerMap = "last-only"

    score_loss = staticmethod(attention_kl)
