"""Losses on hidden states: first the pure functions, then the loss terms that recipes use."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from mtkd.losses.compatibility import hidden_widths, pairs_of, projections_of, widths_of
from mtkd.losses.layer_maps import LayerPairs
from mtkd.losses.layered import LayeredTerm, Projections, RowVector, mask_of, spec_of
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import LayerMap, Projection, TermSettings
from tasks.common.errors import UserError


@full_precision
def masked_mse(h_s: Tensor, h_t: Tensor, mask: Tensor) -> Tensor:
    """Mean of (H_S - H_T)² over valid tokens and the width; 0 if no token is valid.

    Args:
        h_s, h_t: (B, L, d) hidden states of the same width; no gradient flows to h_t.
        mask: (B, L) bool, True = real token.
    """
    difference = (h_s - h_t.detach()).masked_fill(~mask.unsqueeze(-1), 0.0)
    return difference.square().mean(-1).sum() / mask.sum().clamp(min=1)


@full_precision
def cosine_distance(h_s: Tensor, h_t: Tensor, mask: Tensor) -> Tensor:
    """Mean of 1 - cos(H_S, H_T) over valid tokens (DistilBERT, Sanh et al. 2019); 0 if no token is valid.

    Args:
        h_s, h_t: (B, L, d) hidden states of the same width; no gradient flows to h_t.
        mask: (B, L) bool, True = real token.
    """
    student, teacher = (unit_vectors(h.masked_fill(~mask.unsqueeze(-1), 0.0)) for h in (h_s, h_t.detach()))
    distance = 1 - (student * teacher).sum(-1)
    return distance.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


@full_precision
def patient_cls_mse(h_s: Tensor, h_t: Tensor) -> Tensor:
    """Mean of ‖h_S / ‖h_S‖ - h_T / ‖h_T‖‖² over rows and layers (BERT-PKD Eq. 7).

    Eq. 7 is a sum over rows and layers. In an objective that is averaged over rows, the paper's β corresponds
    to a weight of n β on this mean. (The authors' code also averages over the width, so its β corresponds to
    a weight of β / d.)

    Args:
        h_s, h_t: (B, n, d) the row vectors of n layer pairs, of the same width; no gradient flows to h_t.
    """
    return (unit_vectors(h_s) - unit_vectors(h_t.detach())).square().sum(-1).mean()


def unit_vectors(x: Tensor) -> Tensor:
    """Scale the vectors x (..., d) to length 1; zero vectors stay zero and have a finite gradient."""
    squared = x.square().sum(-1, keepdim=True)
    return x * squared.masked_fill(squared == 0, 1.0).rsqrt()


class HiddenMSE(LayeredTerm):
    """`hidden_mse`: MSE(H_S W, H_T), summed over layer pairs (MLKD-BERT Eq. 11, TinyBERT Eq. 8-9).

    Averaged over: real tokens.

    Args:
        layers: (student layer, teacher layer) pairs.
        vectors: "hidden" for hidden states, "context" for context vectors.
        projection: W, without bias.
        emd: True for the layer map `emd`, which weights all pairs by the earth mover's flow.
    """

    class Settings(TermSettings):
        """MSE of hidden states, summed over the layer pairs (TinyBERT, MLKD-BERT, BERT-EMD).

        Attributes:
            vectors: which vectors to compare: `hidden` states, or the attention heads' `context` vectors.
            projection: whether all layers share one matrix (`shared`), each student layer has its own
                (`per-layer`), or there is none (`none`, for equal widths).
        """

        vectors: Literal["hidden", "context"] = "hidden"
        layer_map: LayerMap = "uniform"
        projection: Projection = "shared"

    works_with_strides: ClassVar[bool | dict[str, Any]] = {"layer_map": [[0, 0]]}

    def __init__(self, layers: LayerPairs, vectors: str, projection: Projections, emd: bool = False):
        super().__init__(layers, [vectors], emd)
        self._vectors, self.projection = vectors, projection

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        s, pairs = settings, pairs_of(name, settings.layer_map, models)
        is_context = s.vectors == "context"
        widths = widths_of(models, "attention_size") if is_context else hidden_widths(name, models, pairs)
        return cls(pairs, s.vectors, projections_of(name, s.projection, pairs, widths), s.layer_map == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over tokens for one pair of layers."""
        projected = self.projection(getattr(inputs.student_outputs, self._vectors)[layer_s], layer_s)
        return masked_mse(projected, getattr(inputs.teacher_outputs, self._vectors)[layer_t], mask_of(inputs))


class HiddenCosine(LayeredTerm):
    """`hidden_cosine`: 1 - cosine of H_S W and H_T, summed over layer pairs (DistilBERT).

    Averaged over: real tokens.

    Args:
        layers: (student layer, teacher layer) pairs.
        projection: W, without bias, or none.
        emd: True for the layer map `emd`, which weights all pairs by the earth mover's flow.
    """

    class Settings(TermSettings):
        """1 - cosine similarity of hidden states, summed over the layer pairs (DistilBERT)."""

        layer_map: LayerMap = "last-only"
        projection: Projection = "none"

    works_with_strides: ClassVar[bool | dict[str, Any]] = {"layer_map": [[0, 0]]}

    def __init__(self, layers: LayerPairs, projection: Projections, emd: bool = False):
        super().__init__(layers, ["hidden"], emd)
        self.projection = projection

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs = pairs_of(name, settings.layer_map, models)
        projection = projections_of(name, settings.projection, pairs, hidden_widths(name, models, pairs))
        return cls(pairs, projection, settings.layer_map == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over tokens for one pair of layers."""
        projected = self.projection(inputs.student_outputs.hidden[layer_s], layer_s)
        return cosine_distance(projected, inputs.teacher_outputs.hidden[layer_t], mask_of(inputs))


class ClsMSE(LossTerm):
    """`cls_mse`: MSE of normalised row vectors, averaged over layer pairs (BERT-PKD Eq. 7).

    Averaged over: rows.

    Args:
        layers: (student layer, teacher layer) pairs.
        projection: the map from student to teacher width, without bias, or none.
        vectors: the row vectors of student and teacher, as fields of OutputSpec: `cls` for the first token,
            `mean` for the mean over the real tokens.
    """

    class Settings(TermSettings):
        """MSE of the rows' normalised vectors of each layer, averaged over the layer pairs (BERT-PKD).

        Attributes:
            row_vector: the vector of a row: the layer's first token (`cls`, as in the paper), or the layer's
                states pooled as each model pools its last layer (`pooled`): the mean over real tokens if the
                heads of the model read such a mean (pooling=mean), and otherwise the first token.
            include_last: whether to include the student's last layer; the paper excludes it.
        """

        row_vector: RowVector = "cls"
        layer_map: LayerMap = "skip"
        include_last: bool = False
        projection: Projection = "none"

    works_without_layers: ClassVar[bool | dict[str, Any]] = False
    works_with_strides: ClassVar[bool | dict[str, Any]] = False

    def __init__(
        self, layers: LayerPairs, projection: Projections, vectors: tuple[str, str] = ("cls", "cls")
    ):
        super().__init__()
        self.slow_build_pairs = layers
        self.projection = projection
        self._vectors = vectors
        layer_sets = [frozenset(numbers) for numbers in zip(*layers, strict=True)]
        self.student_need, self.teacher_need = (
            spec_of([field], numbers) for field, numbers in zip(vectors, layer_sets, strict=True)
        )

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        if settings.layer_map == "emd":
            raise UserError(
                f"the term {name!r} (cls_mse) does not support layer_map=emd",
                expected="uniform, skip, last, first, top:L, last-only, minilmv2, or pairs such as [[1, 3]]",
            )
        pairs = pairs_of(name, settings.layer_map, models)
        if not settings.include_last:
            pairs = [pair for pair in pairs if pair[0] != models.student.layers]
        if not pairs:
            raise UserError(
                f"the term {name!r} leaves out the student's last layer, but the student has no other",
                hint=f"use `terms.{name}.include_last=true`, or a deeper student",
            )
        widths = hidden_widths(name, models, pairs)
        projection = projections_of(name, settings.projection, pairs, widths)
        pooled = settings.row_vector == "pooled"
        student, teacher = (
            "mean" if pooled and model.mean_pooled else "cls" for model in (models.student, models.teacher)
        )
        return cls(pairs, projection, (student, teacher))

    def forward(self, inputs: TermInput) -> Tensor:
        pairs = self.active_pairs(inputs.active_layers)
        of_student = getattr(inputs.student_outputs, self._vectors[0])
        of_teacher = getattr(inputs.teacher_outputs, self._vectors[1])
        student = torch.stack([self.projection(of_student[layer], layer) for layer, _ in pairs], 1)
        teacher = torch.stack([of_teacher[layer] for _, layer in pairs], 1)
        return patient_cls_mse(student, teacher) * len(student)
