"""Base classes of loss terms on tokens, on pairs of layers and on rows; and the terms' projections."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mtkd.losses.emd import emd_flow, emd_weights
from mtkd.losses.layer_maps import LayerPairs
from mtkd.losses.loss_term import LossTerm, TermInput
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import Batch, Tokens


class TokenTerm(LossTerm):
    """Base class of terms whose items are real tokens."""

    works_without_layers: ClassVar[bool | dict[str, Any]] = False
    works_with_strides: ClassVar[bool | dict[str, Any]] = False

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the real tokens of the batch."""
        return int(joined_tokens(batch).mask.sum())


class LayeredTerm(TokenTerm, ABC):
    """Base class of terms that compare pairs of layers; `pair_loss` is the mean over the items of one pair.

    The losses of the pairs are summed. With the layer map `emd`, all pairs are weighted by the earth mover's
    flow between the layers (BERT-EMD). Each micro-batch has its own flow, and in training its costs update
    the layer weights, which are saved in checkpoints; so the result depends on the size of micro-batches.
    Slow build does not apply to such a term.

    Args:
        pairs: (student layer, teacher layer) pairs.
        fields: fields of OutputSpec that each pair needs of both models.
        emd: True for the layer map `emd`; `pairs` are then all pairs, ordered by student layer.
    """

    student_weights: Tensor
    teacher_weights: Tensor

    def __init__(self, pairs: LayerPairs, fields: Iterable[str], emd: bool = False):
        super().__init__()
        self.layer_pairs, self._emd = pairs, emd
        self.slow_build_pairs = () if emd else pairs
        layer_sets = [frozenset(layers) for layers in zip(*pairs, strict=True)]
        self.student_need, self.teacher_need = (spec_of(fields, layers) for layers in layer_sets)
        if emd:
            for name, layers in zip(("student_weights", "teacher_weights"), layer_sets, strict=True):
                self.register_buffer(name, torch.full((len(layers),), 1 / len(layers)))

    @abstractmethod
    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """Compute the mean loss between student layer `layer_s` and teacher layer `layer_t`."""

    def forward(self, inputs: TermInput) -> Tensor:
        """Compute the sum of the loss over items and pairs."""
        pairs = self.layer_pairs if self._emd else self.active_pairs(inputs.active_layers)
        losses = torch.stack([self.pair_loss(inputs, *pair) for pair in pairs])
        if not self._emd:
            return losses.sum() * inputs.num_items
        cost = losses.view(len(self.student_weights), len(self.teacher_weights))
        flow = emd_flow(cost.detach(), self.student_weights, self.teacher_weights).to(cost.device)
        if self.training:
            student_weights, teacher_weights = emd_weights(cost.detach(), flow)
            self.student_weights.copy_(student_weights)
            self.teacher_weights.copy_(teacher_weights)
        return (flow * cost).sum() / flow.sum() * inputs.num_items


def spec_of(fields: Iterable[str], layers: frozenset[int]) -> OutputSpec:
    """The OutputSpec that asks for these fields of the given layers."""
    layers_by_field: dict[str, Any] = dict.fromkeys(fields, layers)
    return OutputSpec(**layers_by_field)


class Projections(nn.Module):
    """Linear maps from student to teacher width, owned by a term and never exported.

    Args:
        kind: `shared` = one map for all pairs, `per-layer` = one map for each student layer, or `none`.
        pairs: the (student layer, teacher layer) pairs that are compared.
        student_width, teacher_width: the widths d_S and d_T of the vectors.
    """

    def __init__(self, kind: str, pairs: LayerPairs, student_width: int, teacher_width: int):
        super().__init__()
        if kind not in ("shared", "per-layer", "none"):
            raise UserError(f"`kind={kind!r}` is not valid", expected="'shared', 'per-layer' or 'none'")
        self._kind = kind
        names = {"shared": {"all"}, "per-layer": {str(layer) for layer, _ in pairs}, "none": set()}[kind]
        self.maps = nn.ModuleDict(
            {name: nn.Linear(student_width, teacher_width, bias=False) for name in sorted(names)}
        )

    def forward(self, values: Tensor, layer: int) -> Tensor:
        """Project the vectors (..., d_S) of a student layer to (..., d_T)."""
        if self._kind == "none":
            return values
        projected: Tensor = self.maps["all" if self._kind == "shared" else str(layer)](values)
        return projected


def pair_mask(mask: Tensor) -> Tensor:
    """(B, 1, L, L) bool, True where query and key are real tokens that attend to each other.

    Args:
        mask: (B, L) bool, True = real token; or int, the number of each token's text (0 = padding). Only
            tokens of the same text attend to each other.
    """
    same_text = mask.unsqueeze(1) == mask.unsqueeze(2)
    return (same_text & mask.bool().unsqueeze(1)).unsqueeze(1)


def mask_of(inputs: TermInput) -> Tensor:
    """The mask (B, L) of the batch, which encoders return with every output per token."""
    assert inputs.student_outputs.mask is not None, "terms on tokens need the input format `joined`"
    return inputs.student_outputs.mask


def text_mask_of(inputs: TermInput) -> Tensor:
    """The mask (B, L) for losses on pairs of tokens that attend to each other in both models.

    For cross-encoders, this is `mask_of`. If a model is a bi-encoder, it is int: the number of each token's
    text, 0 = padding.
    """
    student, teacher = inputs.student_outputs.text_numbers, inputs.teacher_outputs.text_numbers
    if student is None or teacher is None:
        numbers = student if teacher is None else teacher
        return mask_of(inputs) if numbers is None else numbers
    # A distinct number for each pair of text numbers, and 0 for padding.
    return student * (teacher.amax() + 1) + teacher


def joined_tokens(batch: Batch) -> Tokens:
    """The tokens of the batch, each row as one sequence."""
    assert batch.inputs.joined is not None, "terms on tokens need the input format `joined`"
    return batch.inputs.joined


RowVector = Literal["cls", "pooled"]


class SampleTerm(LossTerm):
    """Base class of terms on relations between the rows of a batch.

    Only rows that are computed together are related: those of one micro-batch on one process.

    Args:
        vector: `cls` = the first token of a layer, `pooled` = the vector that the task heads read.
        layer_s, layer_t: the student and teacher layers of `cls`.

    Attributes:
        comparison: what the term compares, for the warning about a batch of one row.
    """

    works_without_layers: ClassVar[bool | dict[str, Any]] = {"row_vector": "pooled"}
    works_with_strides: ClassVar[bool | dict[str, Any]] = {"row_vector": "pooled"}
    comparison = "relations between rows"

    def __init__(self, vector: str, layer_s: int, layer_t: int):
        super().__init__()
        if vector not in ("pooled", "cls"):
            raise UserError(f"`vector={vector!r}` is not valid", expected="'pooled' or 'cls'")
        self._vector, self._layers, self._warned = vector, (layer_s, layer_t), False
        if vector == "pooled":
            self.student_need = self.teacher_need = OutputSpec(pooled=True)
        else:
            self.student_need, self.teacher_need = (
                OutputSpec(cls=frozenset({layer})) for layer in self._layers
            )

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the rows; 0 for a batch of one row, which has no relations (a warning says so once)."""
        if len(batch) > 1:
            return len(batch)
        if not self._warned:
            logging.getLogger(__name__).warning(
                "a batch of one row has no %s and is skipped", self.comparison
            )
            self._warned = True
        return 0

    def vectors(self, inputs: TermInput) -> tuple[Tensor, Tensor]:
        """The row vectors of student (B, d_S) and teacher (B, d_T)."""
        student, teacher = inputs.student_outputs, inputs.teacher_outputs
        if self._vector == "pooled":
            assert student.pooled is not None and teacher.pooled is not None, "declared in the needs above"
            return student.pooled, teacher.pooled
        layer_s, layer_t = self._layers
        return student.cls[layer_s], teacher.cls[layer_t]
