"""Losses for students whose states each cover several tokens: pure functions, then the loss terms."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from mtkd.losses.compatibility import hidden_widths, pairs_of, projections_of, require_same_heads
from mtkd.losses.hidden import masked_mse
from mtkd.losses.layer_maps import LayerPairs
from mtkd.losses.layered import LayeredTerm, Projections, joined_tokens, mask_of, pair_mask, text_mask_of
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import LayerMap, Projection, TermSettings
from tasks.task import Task
from tasks.tokens.batching import Batch


def pool_mask(mask: Tensor, stride: int) -> Tensor:
    """(B, ceil(L / stride)) bool: True for windows with at least one real token.

    Args:
        mask: (B, L) bool, True = real token.
    """
    return functional.pad(mask, (0, -mask.shape[1] % stride)).unflatten(1, (-1, stride)).any(2)


def pool_average(hidden: Tensor, mask: Tensor, stride: int) -> Tensor:
    """(B, ceil(L / stride), d) the mean over the real tokens of each window; 0 for windows without one.

    Args:
        hidden: (B, L, d).
        mask: (B, L) bool, True = real token.
    """
    padding = -mask.shape[1] % stride
    real = functional.pad(hidden.masked_fill(~mask.unsqueeze(-1), 0.0), (0, 0, 0, padding))
    count = functional.pad(mask, (0, padding)).unflatten(1, (-1, stride)).sum(2).clamp(min=1)
    return real.unflatten(1, (-1, stride)).sum(2) / count.unsqueeze(-1)


def pool_maximum(scores: Tensor, mask: Tensor, stride: int) -> Tensor:
    """(B, H, K, K) with K = ceil(L / stride): the largest score of real queries and keys in each window.

    The value is the lowest finite number for windows without queries and keys that attend to each other.

    Args:
        scores: (B, H, L, L) [row, head, query, key].
        mask: (B, L) bool, True = real token; or int, the number of each token's text (see `pair_mask`).
    """
    valid = pair_mask(mask)
    low, padding = torch.finfo(scores.dtype).min, -mask.shape[1] % stride
    real = functional.pad(scores.masked_fill(~valid, low), (0, padding, 0, padding), value=low)
    return functional.max_pool2d(real, stride)


@full_precision
def pooled_hidden_mse(h_s: Tensor, h_t: Tensor, mask: Tensor, stride: int) -> Tensor:
    """MSE(H_S, AvgPool(H_T)), averaged over real windows and the width (WaLDORf Eq. 2).

    Each window is averaged over its real tokens only. Returns 0 if no token is real.

    Args:
        h_s: (B, ceil(L / stride), d) the student's states, projected to the teacher's width.
        h_t: (B, L, d) the teacher's states; no gradient flows to them.
        mask: (B, L) bool, True = real token.
        stride: tokens per window.
    """
    return masked_mse(h_s, pool_average(h_t.detach(), mask, stride), pool_mask(mask, stride))


@full_precision
def pooled_attention_score_mse(scores_s: Tensor, scores_t: Tensor, mask: Tensor, stride: int) -> Tensor:
    """MSE(A_S, MaxPool(A_T)) of attention scores before the softmax (WaLDORf Eq. 3).

    It is averaged over heads, real query windows and their real key windows; the pooling ignores padding.
    Returns 0 if no token is real.

    Args:
        scores_s: (B, H, K, K) with K = ceil(L / stride), the student's scores [row, head, query, key].
        scores_t: (B, H, L, L) the teacher's scores; no gradient flows to them.
        mask: (B, L) bool, True = real token; or int, the number of each token's text (see `pair_mask`).
        stride: tokens per window, for queries and keys alike.
    """
    windows = pool_mask(mask.bool(), stride)
    valid = _pool_pairs(pair_mask(mask), stride)
    difference = (scores_s - pool_maximum(scores_t.detach(), mask, stride)).masked_fill(~valid, 0.0)
    per_query = difference.square().sum(-1) / valid.sum(-1).clamp(min=1)
    return per_query.sum() / (windows.sum().clamp(min=1) * scores_s.shape[1])


def _pool_pairs(visible: Tensor, stride: int) -> Tensor:
    """Reduce a mask (B, 1, L, L) to (B, 1, K, K): True if any query and key in them are visible."""
    padding = -visible.shape[-1] % stride
    padded = functional.pad(visible, (0, padding, 0, padding))
    return padded.unflatten(3, (-1, stride)).unflatten(2, (-1, stride)).any(5).any(3)


class PooledTerm(LayeredTerm):
    """Base class of terms on windows of `stride` tokens.

    Args:
        layers: (student layer, teacher layer) pairs.
        kind: the field of OutputSpec that is compared.
        stride: tokens per window.
        emd: True for the layer map `emd`, which weights all pairs by the earth mover's flow.
    """

    works_with_strides: ClassVar[bool | dict[str, Any]] = True

    def __init__(self, layers: LayerPairs, kind: str, stride: int, emd: bool = False):
        super().__init__(layers, [kind], emd)
        self._stride = stride

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the windows of the batch that have a real token."""
        return int(pool_mask(joined_tokens(batch).mask, self._stride).sum())


class PooledHiddenMSE(PooledTerm):
    """`pooled_hidden_mse`: MSE of H_S W and the teacher's averaged states, summed over layer pairs.

    WaLDORf Eq. 2. Averaged over: windows with a real token.

    Args:
        layers, stride, emd: see PooledTerm.
        projection: W, without bias.
    """

    class Settings(TermSettings):
        """MSE with the teacher's hidden states averaged over the tokens of each window (WaLDORf)."""

        layer_map: LayerMap = "uniform"
        projection: Projection = "shared"

    def __init__(self, layers: LayerPairs, stride: int, projection: Projections, emd: bool = False):
        super().__init__(layers, "hidden", stride, emd)
        self.projection = projection

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs = pairs_of(name, settings.layer_map, models, pooled=True)
        projection = projections_of(name, settings.projection, pairs, hidden_widths(name, models, pairs))
        return cls(pairs, models.student.stride, projection, settings.layer_map == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over windows for one pair of layers."""
        projected = self.projection(inputs.student_outputs.hidden[layer_s], layer_s)
        hidden = inputs.teacher_outputs.hidden[layer_t]
        return pooled_hidden_mse(projected, hidden, mask_of(inputs), self._stride)


class PooledAttentionScoreMSE(PooledTerm):
    """`pooled_attention_score_mse`: MSE with the teacher's largest score per window, summed over layer pairs.

    WaLDORf Eq. 3. Averaged over: windows with a real token.

    Args:
        layers, stride, emd: see PooledTerm.
    """

    class Settings(TermSettings):
        """MSE with the teacher's largest attention score per window (WaLDORf), for equal numbers of heads."""

        layer_map: LayerMap = "uniform"

    def __init__(self, layers: LayerPairs, stride: int, emd: bool = False):
        super().__init__(layers, "scores", stride, emd)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs = pairs_of(name, settings.layer_map, models, pooled=True)
        require_same_heads(name, models)
        return cls(pairs, models.student.stride, settings.layer_map == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over windows for one pair of layers."""
        scores = inputs.teacher_outputs.scores[layer_t]
        return pooled_attention_score_mse(
            inputs.student_outputs.scores[layer_s], scores, text_mask_of(inputs), self._stride
        )
