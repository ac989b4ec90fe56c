"""Losses on hidden states: pure functions, then the terms that a recipe names."""

from __future__ import annotations

import torch
from torch import Tensor

from mtkd.losses.base import LossTerm, TermInput, full_precision
from mtkd.losses.layer_maps import Pairs
from mtkd.losses.layered import LayeredTerm, Projections, mask_of
from mtkd.outputs import OutputSpec


@full_precision
def masked_mse(h_s: Tensor, h_t: Tensor, mask: Tensor) -> Tensor:
    """The mean over valid tokens and width of (H_S - H_T)²; 0 if no token is valid.

    Args:
        h_s, h_t: (B, L, d) hidden states of one width; h_t is a constant.
        mask: (B, L) bool, True = real token.
    """
    difference = (h_s - h_t.detach()).masked_fill(~mask.unsqueeze(-1), 0.0)
    return difference.square().mean(-1).sum() / mask.sum().clamp(min=1)


@full_precision
def cosine(h_s: Tensor, h_t: Tensor, mask: Tensor) -> Tensor:
    """The mean over valid tokens of 1 - cos(H_S, H_T) (DistilBERT, Sanh et al. 2019); 0 if no token is valid.

    Args:
        h_s, h_t: (B, L, d) hidden states of one width; h_t is a constant.
        mask: (B, L) bool, True = real token.
    """
    student, teacher = (unit(h.masked_fill(~mask.unsqueeze(-1), 0.0)) for h in (h_s, h_t.detach()))
    apart = 1 - (student * teacher).sum(-1)
    return apart.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


@full_precision
def patient_cls_mse(h_s: Tensor, h_t: Tensor) -> Tensor:
    """The mean over rows and layers of |h_S / |h_S| - h_T / |h_T||² (BERT-PKD Eq. 7, which sums).

    Args:
        h_s, h_t: (B, n, d) [CLS] states of n pairs of layers, of one width; h_t is a constant.
    """
    return (unit(h_s) - unit(h_t.detach())).square().sum(-1).mean()


def unit(x: Tensor) -> Tensor:
    """The vectors x (..., d) at length 1; zero vectors stay as they are, with a finite gradient."""
    squared = x.square().sum(-1, keepdim=True)
    return x * squared.masked_fill(squared == 0, 1.0).rsqrt()


class HiddenMSE(LayeredTerm):
    """`hidden_mse`: MSE(H_S W, H_T), summed over layers; unit: a real token (MLKD-BERT Eq. 11, TinyBERT 8-9).

    Args:
        layers: (student layer, teacher layer).
        of: "hidden" states or "context" vectors.
        projection: W, without bias.
    """

    def __init__(self, layers: Pairs, of: str, projection: Projections, flow: bool = False):
        super().__init__(layers, [of], flow)
        self._of, self.projection = of, projection

    def pair_loss(self, given: TermInput, number: int, mine: int, theirs: int) -> Tensor:
        """The mean over tokens for one pair of layers."""
        projected = self.projection(getattr(given.student, self._of)[mine], mine)
        return masked_mse(projected, getattr(given.teacher_signal, self._of)[theirs], mask_of(given))


class HiddenCosine(LayeredTerm):
    """`hidden_cosine`: 1 - cosine of hidden states, summed over layers (DistilBERT); unit: a real token."""

    def __init__(self, layers: Pairs, projection: Projections, flow: bool = False):
        super().__init__(layers, ["hidden"], flow)
        self.projection = projection

    def pair_loss(self, given: TermInput, number: int, mine: int, theirs: int) -> Tensor:
        """The mean over tokens for one pair of layers."""
        projected = self.projection(given.student.hidden[mine], mine)
        return cosine(projected, given.teacher_signal.hidden[theirs], mask_of(given))


class ClsMSE(LossTerm):
    """`cls_mse`: MSE of normalised [CLS] vectors, the mean over layers (BERT-PKD Eq. 7); unit: a row."""

    def __init__(self, layers: Pairs, projection: Projections):
        super().__init__()
        self.compared, self.projection = layers, projection
        self.student_need = OutputSpec(cls=frozenset(mine for mine, _ in layers))
        self.teacher_need = OutputSpec(cls=frozenset(theirs for _, theirs in layers))

    def forward(self, given: TermInput) -> Tensor:
        pairs = [pair for _, pair in self.pairs_on(given.on)]
        student = torch.stack([self.projection(given.student.cls[mine], mine) for mine, _ in pairs], 1)
        teacher = torch.stack([given.teacher_signal.cls[theirs] for _, theirs in pairs], 1)
        return patient_cls_mse(student, teacher) * len(student)
