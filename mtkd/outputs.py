"""What models, teachers and losses exchange: output specifications, outputs and encoder sizes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from mtkd.selection import Selection
from tasks.common.errors import UserError, brief
from tasks.common.records import Layer, Record, Size, Width
from tasks.tokens.batching import to_device

# The outputs that exist per layer, and their names in messages.
BY_LAYER = {
    "cls": "first-token vectors",
    "mean": "mean vectors",
    "hidden": "hidden states",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "context": "context vectors",
    "scores": "attention scores",
}
PER_ROW = ("cls", "mean")  # those of them with one vector per row
NO_LAYERS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OutputSpec(Record):
    """The outputs that a loss term needs of a model, or that a model or teacher offers.

    The fields named in BY_LAYER are sets of layers, given as any iterable of numbers. Layers count from 1;
    layer 0 is the output of the embedding layer (`hidden`, `cls` and `mean` only).

    Attributes:
        logits: the logits of the task head.
        pooled: one vector per row, which the task heads read.
        sequence: one vector per token, which the heads of `span` tasks read.
        cls: the hidden state of the first token.
        mean: the mean of the hidden states over the real tokens of a row.
        hidden: the hidden states of all tokens.
        query, key, value: queries, keys and values, with the attention heads concatenated.
        context: the outputs of the attention heads, concatenated, before the output projection.
        scores: scaled products of queries and keys, before the softmax.
        selected: layers of which only the part of the hidden states given by `selection` is needed; only
            teachers offer it.
    """

    logits: bool = False
    pooled: bool = False
    sequence: bool = False
    cls: frozenset[Layer] = NO_LAYERS
    hidden: frozenset[Layer] = NO_LAYERS
    query: frozenset[Layer] = NO_LAYERS
    key: frozenset[Layer] = NO_LAYERS
    value: frozenset[Layer] = NO_LAYERS
    context: frozenset[Layer] = NO_LAYERS
    scores: frozenset[Layer] = NO_LAYERS
    selected: frozenset[Layer] = NO_LAYERS
    selection: Selection | None = None
    mean: frozenset[Layer] = NO_LAYERS

    def __post_init__(self) -> None:
        for name in (*BY_LAYER, "selected"):
            object.__setattr__(self, name, _layer_set(name, getattr(self, name)))
        for name in ("logits", "pooled", "sequence"):
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(
                    f"{name}={brief(value)} is not valid in an OutputSpec", expected="True or False"
                )

    def __or__(self, other: OutputSpec) -> OutputSpec:
        names = [f.name for f in fields(OutputSpec) if f.name != "selection"]
        joined = {name: getattr(self, name) | getattr(other, name) for name in names}
        first, second = self.selection, other.selection
        return OutputSpec(**joined, selection=first.joined(second) if first and second else first or second)

    @property
    def before_selection(self) -> OutputSpec:
        """The encoder outputs from which these outputs are computed.

        A selection is taken from full hidden states, and may be ranked by queries and keys.
        """
        if self.selection is None:
            return self
        ranking = frozenset(ranked_by for _, ranked_by in self.selection.scored)
        full_states = OutputSpec(hidden=self.selected, query=ranking, key=ranking)
        return replace(self, selected=NO_LAYERS, selection=None) | full_states

    def within(self, layers: frozenset[int]) -> OutputSpec:
        """A copy with only these layers in all fields that are sets of layers."""
        restricted = {kind: getattr(self, kind) & layers for kind in (*BY_LAYER, "selected")}
        return replace(self, **restricted)

    @property
    def has_token_vectors(self) -> bool:
        """True if any output has one vector per token, which needs the same tokenisation on both sides."""
        return (
            self.sequence
            or bool(self.selected)
            or any(getattr(self, kind) for kind in BY_LAYER if kind not in PER_ROW)
        )

    def missing_from(self, offers: OutputSpec) -> list[str]:
        """Describe the outputs that are missing from `offers`; empty if none is missing."""
        missing = ["logits"] if self.logits and not offers.logits else []
        missing += ["a vector per row"] if self.pooled and not offers.pooled else []
        missing += ["a vector per token"] if self.sequence and not offers.sequence else []
        for kind, description in BY_LAYER.items():
            missing += _of_layers(description, getattr(self, kind) - getattr(offers, kind))
        missing += _of_layers("selected hidden states", self.selected - offers.selected)
        if self.selection and offers.selection and not offers.selection.covers(self.selection):
            offered = offers.selection.describe()
            missing.append(f"{self.selection.describe()} of hidden states (not only {offered})")
        return missing


def _layer_set(name: str, layers: Any) -> frozenset[int]:
    """The layers in a field of OutputSpec, given as any iterable of numbers; raises UserError."""
    try:
        numbers = frozenset(map(operator.index, layers))
    except TypeError:
        numbers = frozenset({-1})
    if any(number < 0 for number in numbers):
        raise UserError(
            f"{name}={brief(layers)} is not valid in an OutputSpec",
            expected=f"layer numbers, such as {name}={{3}} or {name}=range(1, 5)",
        )
    return numbers


def _of_layers(description: str, layers: frozenset[int]) -> list[str]:
    numbers = ", ".join(map(str, sorted(layers)))
    return [f"{description} of layer{'s' if len(layers) > 1 else ''} {numbers}"] if layers else []


LOGITS = OutputSpec(logits=True)
POOLED = OutputSpec(pooled=True)


@dataclass(frozen=True)
class EncoderOutput:
    """The outputs that were requested from an encoder; the mappings are layer -> tensor.

    Attributes:
        pooled: (B, D) one vector per row, which the task heads read.
        sequence: (B, L, D) one vector per token, which the heads of `span` tasks read.
        cls, mean: (B, d).
        hidden, query, key, value, context: (B, L, d); from layer 1 on (B, ceil(L / `EncoderSpec.stride`), d).
        scores: (B, heads, L, L) [row, head, query, key], with L shortened likewise: Q Kᵀ times the
            model's scaling (1 / sqrt(d / heads) unless its family has another), plus its position bias, if it
            has one. No mask is applied: entries of padding, and of two texts that do not see each other,
            carry no information.
        mask: (B, L) bool, True = real token; None for a model that reads the texts of a row separately.
        text_numbers: (B, L) int64, the number of each token's text, from 1, and 0 for padding, if the model
            reads the texts of a row in one sequence and they do not see each other (a bi-encoder); None if
            all tokens of a row see each other.
        positions: (B, n) int64 for each layer whose states in `hidden` are (B, n, d), because those of other
            tokens were not needed: the positions of these tokens.
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
    text_numbers: Tensor | None = None
    mean: Mapping[int, Tensor] = field(default_factory=dict)
    positions: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Selected:
    """The part of one layer's hidden states that a selection keeps.

    Attributes:
        positions: (B, n) int64, the positions of the kept tokens, the most important first.
        valid: (B, n) bool, False for the missing tokens of rows with fewer than n.
        values: (B, n, d) the hidden states; 0 where an activation is not kept.
        activations: (B, n, d) bool, True = kept.
    """

    positions: Tensor
    valid: Tensor
    values: Tensor
    activations: Tensor

    def to(self, device: torch.device | str) -> Selected:
        """A copy on another device."""
        return Selected(*(to_device(tensor, device) for tensor in vars(self).values()))


@dataclass(frozen=True)
class ModelOutput(EncoderOutput):
    """The outputs of a teacher or student for one batch: those of its encoder, and the logits.

    Attributes:
        logits: (B, C) for the task of the batch, (B, 2, L) for `span` tasks; None if not requested.
        selected: layer -> the requested part of its hidden states.
    """

    logits: Tensor | None = None
    selected: Mapping[int, Selected] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> ModelOutput:
        """A copy on another device."""

        def move(part: Any) -> Any:
            if isinstance(part, Tensor):
                return to_device(part, device)
            return None if part is None else part.to(device)

        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            by_layer = isinstance(value, Mapping)
            moved[name] = {layer: move(part) for layer, part in value.items()} if by_layer else move(value)
        return ModelOutput(**moved)


@dataclass(frozen=True)
class EncoderSpec(Record):
    """The sizes of an encoder, known before any weights are loaded. A size is 0 if it does not apply.

    Attributes:
        family: the name of the encoder family in messages ("bert", "bilstm").
        layers: the number of Transformer layers.
        hidden_size: the width of hidden states.
        attention_size: the width of queries, keys, values and context vectors, with the heads concatenated.
        heads: attention heads per layer.
        pooled_size: the width of the vector per row.
        offers: the outputs that can be requested.
        stride: how many tokens each state of layer 1 and above stands for.
        embedding_size: the width of layer 0, if it is not `hidden_size`.
        table: the table `student.<table>` of a recipe, in which a student's sizes are set.
        mean_pooled: True if the vector per row comes from the mean over tokens, False if from first tokens.
    """

    family: str
    layers: Layer = 0
    hidden_size: Width = 0
    attention_size: Width = 0
    heads: Width = 0
    pooled_size: Width = 0
    offers: OutputSpec = OutputSpec()
    stride: Size = 1
    embedding_size: Width | None = None
    table: str = "transformer"
    mean_pooled: bool = False

    def width_of(self, layer: int) -> int:
        """The width of a layer's hidden states."""
        return self.hidden_size if layer or self.embedding_size is None else self.embedding_size
