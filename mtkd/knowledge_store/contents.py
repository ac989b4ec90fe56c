"""What a store keeps for each row, and the layout of a shard.

The tensors of a shard have one entry per row, per real token or per kept token; `tokens` and `kept` give the
number of entries of each row. Vectors have the store's dtype, and `int8` vectors have one scale each. If the
kept activations differ between vectors, they are marked with one bit per activation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mtkd.dtypes import StoreDtype
from mtkd.outputs import BY_LAYER, PER_ROW, EncoderSpec, ModelOutput, OutputSpec
from tasks.common.records import Record, Size
from tasks.task import Task

Per = Literal["row", "token", "kept"]
_TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
# Kinds of outputs that are kept for every token.
OF_TOKENS = ("hidden", "query", "key", "value", "context")


@dataclass(frozen=True)
class Field:
    """One tensor of a shard: what its entries stand for, the shape of an entry, and the dtype."""

    name: str
    per: Per
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def of(self) -> str:
        """The kind of output that the tensor belongs to."""
        return self.name.partition(".")[0]

    @property
    def bytes(self) -> int:
        """Bytes per entry."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class LogitsLayout:
    """The number of logits of a task per row, or per token for span tasks."""

    count: int
    per: Per = "row"

    @staticmethod
    def of(task: Task) -> LogitsLayout:
        """The number of logits of a task, and what they belong to."""
        return LogitsLayout(task.type.n_outputs(task), "token" if task.type.predicts_spans else "row")


@dataclass(frozen=True)
class Contents(Record):
    """What a store keeps.

    Attributes:
        need: the outputs kept; attention scores are kept as the queries and keys that they are computed from.
        dtype: the dtype of all vectors; logits are float32.
        shape: the sizes of the teacher.
        max_length: maximum number of tokens that the teacher read per row.
    """

    need: OutputSpec
    dtype: StoreDtype
    shape: EncoderSpec
    max_length: Size

    def __post_init__(self) -> None:
        shape, need = self.shape, self.need
        if need.query & need.key and shape.attention_size % max(1, shape.heads):
            raise ValueError(f"an attention width that {shape.heads} heads divide")
        if need.scores or (need.selected and need.selection is None):
            raise ValueError("queries and keys in place of scores, and a selection of what is selected")

    @staticmethod
    def of(need: OutputSpec, dtype: StoreDtype, shape: EncoderSpec, max_length: int) -> Contents:
        """The contents that provide the given outputs."""
        stored = replace(need, scores=frozenset(), query=need.query | need.scores, key=need.key | need.scores)
        return Contents(stored, dtype, shape, max_length)

    @property
    def offers(self) -> OutputSpec:
        """The outputs that can be read from the store."""
        need = self.need
        of_rows: dict[str, Any] = {kind: getattr(need, kind) | need.hidden for kind in PER_ROW}
        return replace(need, scores=need.query & need.key, **of_rows)

    def layers(self, kind: str) -> list[int]:
        """The layers for which a kind of output is kept, in order."""
        return sorted(getattr(self.need, kind))

    def fields(self, outputs: LogitsLayout) -> list[Field]:
        """The tensors in the shards of a task."""
        need, shape = self.need, self.shape
        tensors = []
        if need.has_token_vectors or (need.logits and outputs.per == "token"):
            tensors.append(Field("tokens", "row", (), torch.int32))
        if need.logits:
            tensors.append(Field("logits", outputs.per, (outputs.count,), torch.float32))
        if need.pooled:
            tensors += self._vectors("pooled", "row", (shape.pooled_size,))
        for kind in PER_ROW:
            if layers := self.layers(kind):
                tensors += self._vectors(kind, "row", (len(layers), shape.hidden_size))
        for kind in OF_TOKENS:
            if layers := self.layers(kind):
                width = shape.hidden_size if kind == "hidden" else shape.attention_size
                tensors += self._vectors(kind, "token", (len(layers), width))
        if need.selection:
            tensors.append(Field("kept", "row", (), torch.int32))
            depth, n_kept = len(need.selected), need.selection.n_kept_activations(shape.hidden_size)
            position_dtype = torch.uint8 if self.max_length <= 256 else torch.int16
            tensors.append(Field("selected.positions", "kept", (depth,), position_dtype))
            tensors += self._vectors("selected.values", "kept", (depth, n_kept))
            if self.dynamic:
                tensors.append(
                    Field("selected.activations", "kept", (depth, -(-shape.hidden_size // 8)), torch.uint8)
                )
        return tensors

    @property
    def dynamic(self) -> bool:
        """True if the kept activations differ between vectors."""
        selection = self.need.selection
        return selection is not None and selection.activation_selection == "magnitude" and selection.width < 1

    def _vectors(self, name: str, per: Per, shape: tuple[int, ...]) -> list[Field]:
        fields = [Field(name, per, shape, _TORCH[self.dtype])]
        if self.dtype == "int8":
            fields.append(Field(f"{name}.scale", per, shape[:-1], torch.float32))
        return fields

    def describe(self) -> list[str]:
        """Describe what is kept, one line per kind of output."""
        need = self.need
        lines = ["logits, fp32"] if need.logits else []
        lines += [f"pooled row vectors, {self.dtype}"] if need.pooled else []
        for kind, description in BY_LAYER.items():
            if layers := self.layers(kind):
                lines.append(f"{description} of layers {', '.join(map(str, layers))}, {self.dtype}")
        if need.selection:
            layers = self.layers("selected")
            lines.append(
                f"hidden states of layers {', '.join(map(str, layers))}: "
                f"{need.selection.describe()}, {self.dtype}"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        need = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in vars(self.need).items()}
        selection = self.need.selection
        need["selection"] = None if selection is None else vars(selection)
        absent = {f.name: f.default for f in fields(EncoderSpec)}
        sizes = {k: v for k, v in vars(self.shape).items() if k != "offers" and v != absent[k]}
        return {"need": need, "dtype": self.dtype, "shape": sizes, "max_length": self.max_length}


def pack_outputs(outputs: ModelOutput, contents: Contents) -> dict[str, Tensor]:
    """Convert the teacher's outputs for a batch to entries of the fields, without the counts.

    Args:
        outputs: the outputs, including everything in `contents.need`.

    Returns:
        field -> entries, with rows in the order of the batch.
    """
    entries: dict[str, Tensor] = {}
    need = contents.need
    if need.logits and outputs.logits is not None:
        logits = outputs.logits.float()
        if logits.dim() == 3 and outputs.mask is not None:
            logits = logits.transpose(1, 2)[outputs.mask]
        entries["logits"] = logits
    vectors: dict[str, Tensor] = {}
    if need.pooled and outputs.pooled is not None:
        vectors["pooled"] = outputs.pooled
    for kind in PER_ROW:
        if layers := contents.layers(kind):
            vectors[kind] = torch.stack([getattr(outputs, kind)[layer] for layer in layers], 1)
    for kind in OF_TOKENS:
        if layers := contents.layers(kind):
            assert outputs.mask is not None, "token vectors are kept only for rows read as one sequence"
            vectors[kind] = torch.stack([getattr(outputs, kind)[layer][outputs.mask] for layer in layers], 1)
    if need.selection:
        parts = [outputs.selected[layer] for layer in contents.layers("selected")]
        valid = parts[0].valid
        entries["selected.positions"] = torch.stack([part.positions[valid] for part in parts], 1)
        activations = torch.stack([part.activations[valid] for part in parts], 1)  # (K, depth, d)
        values = torch.stack([part.values[valid] for part in parts], 1)
        n_kept = need.selection.n_kept_activations(contents.shape.hidden_size)
        vectors["selected.values"] = values[activations].view(*values.shape[:-1], n_kept)
        if contents.dynamic:
            bits = np.packbits(activations.cpu().numpy(), axis=-1, bitorder="little")
            entries["selected.activations"] = torch.from_numpy(bits)
    for name, values in vectors.items():
        entries |= _encode(name, values.float(), contents.dtype)
    return {name: values.cpu() for name, values in entries.items()}


def _encode(name: str, values: Tensor, dtype: StoreDtype) -> dict[str, Tensor]:
    """Convert (..., d) float32 vectors to the store's dtype; for `int8`, add their scales."""
    if dtype != "int8":
        return {name: values.to(_TORCH[dtype])}
    scale = values.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return {name: (values / scale.unsqueeze(-1)).round().to(torch.int8), f"{name}.scale": scale}


def activation_bits(bits: Tensor, width: int) -> Tensor:
    """Unpack one bit per activation to (..., width) bool, True = the activation is kept."""
    unpacked = np.unpackbits(bits.numpy(), axis=-1, count=width, bitorder="little")
    return torch.from_numpy(unpacked.view(np.bool_))
