"""Base classes of loss terms: on tokens, on pairs of layers, on rows; projections."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mtkd.losses.base import LossTerm, TermInput
from mtkd.losses.emd import emd, emd_weights
from mtkd.losses.layer_maps import Pairs
from mtkd.outputs import OutputSpec
from tasks.batching import Batch
from tasks.task import Task


class TokenTerm(LossTerm):
    """A term whose items are real tokens."""

    without_layers: ClassVar[bool | dict[str, Any]] = False
    with_strides: ClassVar[bool | dict[str, Any]] = False

    def num_items(self, task: Task, batch: Batch) -> int:
        """Real tokens of the batch."""
        assert batch.inputs.joined is not None, "token-aligned students read jointly"
        return int(batch.inputs.joined.mask.sum())


class LayeredTerm(TokenTerm, ABC):
    """A term that compares pairs of layers: `pair_loss` is the mean over tokens (or rows) of one pair.

    The pairs are summed; with the map `emd` all pairs are weighed by the earth mover's flow between the
    layers, whose weights follow the cost of the batches (BERT-EMD); the weights are part of a checkpoint.
    Such a term is of all layers at once, and is not built slowly.

    Args:
        pairs: (student layer, teacher layer).
        kinds: fields of OutputSpec that each pair needs of both models.
        flow: True for the map `emd`; then `pairs` are all pairs, the student's layers outermost.
    """

    student_weights: Tensor
    teacher_weights: Tensor

    def __init__(self, pairs: Pairs, kinds: Iterable[str], flow: bool = False):
        super().__init__()
        self.pairs, self._flow = pairs, flow
        self.compared = () if flow else pairs
        sides = [frozenset(layers) for layers in zip(*pairs, strict=True)]
        self.student_need, self.teacher_need = (spec_of(kinds, layers) for layers in sides)
        if flow:
            for name, layers in zip(("student_weights", "teacher_weights"), sides, strict=True):
                self.register_buffer(name, torch.full((len(layers),), 1 / len(layers)))

    @abstractmethod
    def pair_loss(self, given: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The loss of student layer `layer_s` against teacher layer `layer_t`."""

    def forward(self, given: TermInput) -> Tensor:
        """The sum over items and pairs."""
        pairs = self.pairs if self._flow else self.pairs_on(given.on)
        losses = torch.stack([self.pair_loss(given, *pair) for pair in pairs])
        if not self._flow:
            return losses.sum() * given.num_items
        cost = losses.view(len(self.student_weights), len(self.teacher_weights))
        flow = emd(cost.detach(), self.student_weights, self.teacher_weights).to(cost.device)
        if self.training:
            student_weights, teacher_weights = emd_weights(cost.detach(), flow)
            self.student_weights.copy_(student_weights)
            self.teacher_weights.copy_(teacher_weights)
        return (flow * cost).sum() / flow.sum() * given.num_items


def spec_of(kinds: Iterable[str], layers: frozenset[int]) -> OutputSpec:
    """The need of some kinds of knowledge (fields of OutputSpec) of some layers."""
    wanted: dict[str, Any] = dict.fromkeys(kinds, layers)
    return OutputSpec(**wanted)


class Projections(nn.Module):
    """Linear maps from student to teacher width, owned by a term and never exported.

    Args:
        kind: `shared` by all pairs, `per-layer`: one for each student layer, or `none`.
    """

    def __init__(self, kind: str, pairs: Pairs, student: int, teacher: int):
        super().__init__()
        self._kind = kind
        names = {"shared": {"all"}, "per-layer": {str(layer) for layer, _ in pairs}, "none": set()}[kind]
        self.maps = nn.ModuleDict({n: nn.Linear(student, teacher, bias=False) for n in sorted(names)})

    def forward(self, values: Tensor, layer: int) -> Tensor:
        """(..., d_T) of a student layer's (..., d_S)."""
        if self._kind == "none":
            return values
        projected: Tensor = self.maps["all" if self._kind == "shared" else str(layer)](values)
        return projected


def mask_of(given: TermInput) -> Tensor:
    """(B, L) the batch's mask, which comes with whatever is compared token by token."""
    assert given.student.mask is not None, "token-aligned students read jointly"
    return given.student.mask


RowVector = Literal["cls", "pooled"]


class SampleTerm(LossTerm):
    """A term on relations between the rows of a batch (of a micro-batch or a process's share, if there are).

    Args:
        vector: `cls`: the first token of a layer; `pooled`: what the heads read.
        layer_s, layer_t: the layers of `cls`, of student and teacher.
    """

    without_layers: ClassVar[bool | dict[str, Any]] = {"vector": "pooled"}
    with_strides: ClassVar[bool | dict[str, Any]] = {"vector": "pooled"}
    what = "relations between rows"

    def __init__(self, vector: str, layer_s: int, layer_t: int):
        super().__init__()
        self._vector, self._layers, self._said = vector, (layer_s, layer_t), False
        if vector == "pooled":
            self.student_need = self.teacher_need = OutputSpec(pooled=True)
        else:
            self.student_need, self.teacher_need = (
                OutputSpec(cls=frozenset({layer})) for layer in self._layers
            )

    def num_items(self, task: Task, batch: Batch) -> int:
        """Rows; none in a batch of one, which has no relations: said once."""
        if len(batch) > 1:
            return len(batch)
        if not self._said:
            logging.getLogger(__name__).warning("a batch of one row has no %s: it is left out", self.what)
            self._said = True
        return 0

    def vectors(self, given: TermInput) -> tuple[Tensor, Tensor]:
        """(B, d_S), (B, d_T) of student and teacher."""
        student, teacher = given.student, given.teacher_signal
        if self._vector == "pooled":
            assert student.pooled is not None and teacher.pooled is not None, (
                "stated as needed, so always there"
            )
            return student.pooled, teacher.pooled
        layer_s, layer_t = self._layers
        return student.cls[layer_s], teacher.cls[layer_t]
