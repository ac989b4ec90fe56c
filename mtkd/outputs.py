"""The records that models, teachers and losses exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from mtkd.selection import Selection

# What can be asked of single layers, and how it is named in messages.
BY_LAYER = {
    "cls": "first-token vectors",
    "hidden": "hidden states",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "context": "context vectors",
    "scores": "attention scores",
}
NO_LAYERS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OutputSpec:
    """What a loss term needs of a model, or what a model or teacher offers.

    The fields of BY_LAYER are sets of layers: 0 is the embedding layer's output (hidden, cls), layers count
    from 1.

    Attributes:
        logits: the task head's logits.
        pooled: the vector of a row that the heads read.
        sequence: the vector of each token that the heads of `span` tasks read.
        cls: the first token's hidden state.
        hidden: hidden states of every token.
        query, key, value: those of all attention heads, side by side.
        context: what the attention heads give, side by side, before the output projection.
        scores: scaled products of queries and keys, before the softmax.
        selected: layers of which a part of the hidden states is wanted; which part says `selection`. Only
            a teacher is asked for it.
    """

    logits: bool = False
    pooled: bool = False
    sequence: bool = False
    cls: frozenset[int] = NO_LAYERS
    hidden: frozenset[int] = NO_LAYERS
    query: frozenset[int] = NO_LAYERS
    key: frozenset[int] = NO_LAYERS
    value: frozenset[int] = NO_LAYERS
    context: frozenset[int] = NO_LAYERS
    scores: frozenset[int] = NO_LAYERS
    selected: frozenset[int] = NO_LAYERS
    selection: Selection | None = None

    def __or__(self, other: OutputSpec) -> OutputSpec:
        names = [f.name for f in fields(OutputSpec) if f.name != "selection"]
        joined = {name: getattr(self, name) | getattr(other, name) for name in names}
        mine, its = self.selection, other.selection
        return OutputSpec(**joined, selection=mine.joined(its) if mine and its else mine or its)

    @property
    def raw(self) -> OutputSpec:
        """What an encoder has to give for it: of a selection all of what it is taken from."""
        if self.selection is None:
            return self
        ranking = frozenset(of for _, of in self.selection.scored)
        whole = OutputSpec(hidden=self.selected, query=ranking, key=ranking)
        return replace(self, selected=NO_LAYERS, selection=None) | whole

    def within(self, layers: frozenset[int]) -> OutputSpec:
        """The same, and of what is by layer only these layers."""
        kept = {kind: getattr(self, kind) & layers for kind in (*BY_LAYER, "selected")}
        return replace(self, **kept)

    @property
    def tokens(self) -> bool:
        """True if something is wanted of every token: teacher and student must then read alike."""
        return (
            self.sequence
            or bool(self.selected)
            or any(getattr(self, kind) for kind in BY_LAYER if kind != "cls")
        )

    def missing_from(self, offers: OutputSpec) -> list[str]:
        """What of this need `offers` does not cover, in words; empty if all is covered."""
        missing = ["logits"] if self.logits and not offers.logits else []
        missing += ["the row's vector"] if self.pooled and not offers.pooled else []
        missing += ["a vector of each token"] if self.sequence and not offers.sequence else []
        for kind, words in BY_LAYER.items():
            missing += _of_layers(words, getattr(self, kind) - getattr(offers, kind))
        missing += _of_layers("selected hidden states", self.selected - offers.selected)
        if self.selection and offers.selection and not offers.selection.covers(self.selection):
            missing.append(f"{self.selection.describe()} of hidden states (of {offers.selection.describe()})")
        return missing


def _of_layers(words: str, layers: frozenset[int]) -> list[str]:
    numbers = ", ".join(map(str, sorted(layers)))
    return [f"{words} of layer{'s' if len(layers) > 1 else ''} {numbers}"] if layers else []


LOGITS = OutputSpec(logits=True)


@dataclass(frozen=True)
class EncoderOutput:
    """What an encoder was asked for and nothing else; the mappings are by layer.

    Attributes:
        pooled: (B, D) one vector a row, what the task heads read.
        sequence: (B, L, D) one vector a token, what the heads of `span` tasks read.
        cls: (B, d).
        hidden, query, key, value, context: (B, L, d); from layer 1 on ceil(L / `EncoderSpec.stride`) states.
        scores: (B, heads, L, L); as many as there are states.
        mask: (B, L) bool, True = real token; None for a model that reads texts apart.
    """

    pooled: Tensor | None = None
    sequence: Tensor | None = None
    cls: Mapping[int, Tensor] = field(default_factory=dict)
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    query: Mapping[int, Tensor] = field(default_factory=dict)
    key: Mapping[int, Tensor] = field(default_factory=dict)
    value: Mapping[int, Tensor] = field(default_factory=dict)
    context: Mapping[int, Tensor] = field(default_factory=dict)
    scores: Mapping[int, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None


@dataclass(frozen=True)
class Selected:
    """The part of one layer's hidden states that a selection keeps.

    Attributes:
        positions: (B, n) int64, where the kept tokens stand, the most important first.
        valid: (B, n) bool, False where a row has fewer tokens.
        values: (B, n, d); 0 where an activation is not kept.
        units: (B, n, d) bool, True = kept.
    """

    positions: Tensor
    valid: Tensor
    values: Tensor
    units: Tensor

    def to(self, device: torch.device | str) -> Selected:
        """The same on another device."""
        return Selected(*(part.to(device) for part in vars(self).values()))


@dataclass(frozen=True)
class ModelOutput(EncoderOutput):
    """What a teacher or a student says about one batch: its encoder's output, and logits.

    Attributes:
        logits: (B, C) of the batch's task; None if they were not asked for.
        selected: by layer, the part of its hidden states that was asked for.
    """

    logits: Tensor | None = None
    selected: Mapping[int, Selected] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> ModelOutput:
        """The same on another device."""
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Mapping):
                moved[name] = {layer: part.to(device) for layer, part in value.items()}
            else:
                moved[name] = None if value is None else value.to(device)
        return ModelOutput(**moved)


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder's sizes, which are known before any weight is loaded.

    Attributes:
        family: what it is, in words for messages ("bert", "bilstm").
        layers: 0 for an encoder without Transformer layers.
        width: of hidden states.
        attention: of queries, keys, values and context vectors: all heads side by side.
        heads: attention heads a layer.
        pooled: width of the row's vector.
        offers: what can be asked of it.
        stride: tokens that a state of layer 1 and above stands for.
        embedding: width of layer 0 where it is not `width`.
        table: the table of a recipe in which a student's sizes are set: `student.<table>`.
    """

    family: str
    layers: int
    width: int
    attention: int
    heads: int
    pooled: int
    offers: OutputSpec
    stride: int = 1
    embedding: int | None = None
    table: str = "transformer"

    def width_of(self, layer: int) -> int:
        """Width of a layer's hidden states."""
        return self.width if layer or self.embedding is None else self.embedding
