"""Prune a teacher into a student: layers, heads and feed-forward units by importance, embeddings by SVD.

This is ROSITA (Liu et al. 2021, AAAI). The result is a Transformer with fewer heads of unchanged size, which
no transformers configuration can describe; such students can be loaded by mtkd, but not by AutoModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtkd.models.capture import find_layers
from tasks.common.errors import UserError

PARTS = ("query", "key", "value", "output", "up", "down")


@dataclass(frozen=True)
class Importance:
    """The importance of a teacher's parts.

    It is the sum over batches of |sum of w dL/dw|, the first-order change of the loss if a part were removed.

    Attributes:
        layers: (M,) for each layer.
        heads: (M, heads) for each attention head.
        units: (M, feed-forward width) for each unit of the feed-forward layers.
    """

    layers: Tensor
    heads: Tensor
    units: Tensor

    def best_layers(self, count: int) -> list[int]:
        """The numbers of the most important layers, from 1, in ascending order."""
        return sorted((self.layers.topk(count).indices + 1).tolist())


class FactorisedEmbedding(nn.Module):
    """A word embedding table (V, d) that is factorised into (V, rank) and (rank, d)."""

    def __init__(self, size: int, rank: int, width: int):
        super().__init__()
        self.table = nn.Embedding(size, rank)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the embeddings (..., d) of token ids (...)."""
        embedded: Tensor = self.up(self.table(ids))
        return embedded

    @property
    def weight(self) -> Tensor:
        """The whole table (V, d)."""
        return self.table.weight @ self.up.weight.T

    def factorise_from(self, weight: Tensor) -> None:
        """Set the factors to the best least-squares approximation of a table (V, d), its truncated SVD."""
        table = weight.detach().double()
        _, vectors = torch.linalg.eigh(table.T @ table)  # the right singular vectors, smallest values first
        basis = vectors[:, -self.table.embedding_dim :]
        self.up.weight.data.copy_(basis)
        self.table.weight.data.copy_(table @ basis)


def layer_parts(body: nn.Module, n_layers: int) -> list[dict[str, tuple[str, nn.Linear]]]:
    """Find the six linear maps of each layer: part -> (name inside the layer, map).

    Raises:
        UserError: the layers do not consist of attention (four maps) and a feed-forward layer (two maps).
    """
    name_and_layers = find_layers(body, n_layers)
    layers = [] if name_and_layers is None else list(name_and_layers[1])
    parts = [[(n, m) for n, m in layer.named_modules() if isinstance(m, nn.Linear)] for layer in layers]
    for maps in parts or [[]]:
        shapes = [tuple(m.weight.shape) for _, m in maps]
        if len(shapes) != len(PARTS) or shapes[4] != shapes[5][::-1] or shapes[3] != shapes[0][::-1]:
            raise UserError(
                f"the layers of {type(body).__name__} cannot be pruned: they do not consist of query, key, "
                f"value, output and two feed-forward maps, but of maps with the shapes {shapes}",
                expected="BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT and encoders built like them",
            )
    return [dict(zip(PARTS, maps, strict=True)) for maps in parts]


def resize_heads(body: nn.Module, n_layers: int, heads: int, head_size: int) -> None:
    """Change the number and size of the heads in every layer; the attention weights are re-initialised."""
    layers = find_layers(body, n_layers)
    for layer, parts in zip(layers[1] if layers else (), layer_parts(body, n_layers), strict=True):
        for part in ("query", "key", "value", "output"):
            name, old = parts[part]
            inner = heads * head_size
            sizes = (inner, old.out_features) if part == "output" else (old.in_features, inner)
            holder, _, last = name.rpartition(".")
            setattr(layer.get_submodule(holder), last, _initialised(nn.Linear(*sizes), body))
        for module in layer.modules():
            if hasattr(module, "attention_head_size"):
                module.attention_head_size = head_size  # type: ignore[assignment]
                module.scaling = head_size**-0.5  # type: ignore[assignment]
                for name, value in (
                    ("num_attention_heads", heads),
                    ("n_heads", heads),
                    ("all_head_size", heads * head_size),
                ):
                    if hasattr(module, name):
                        setattr(module, name, value)


def _initialised(linear: nn.Linear, body: nn.Module) -> nn.Linear:
    nn.init.normal_(linear.weight, std=getattr(body.config, "initializer_range", 0.02))
    nn.init.zeros_(linear.bias)
    return linear


def prune_into(
    student: nn.Module,
    n_layers: int,
    teacher: nn.Module,
    n_teacher: int,
    layers: Sequence[int],
    importance: Importance,
    head_size: int,
) -> None:
    """Copy the most important parts of a teacher into a smaller student.

    Args:
        layers: for each layer of the student, the number of the teacher layer, from 1.
        head_size: the width of an attention head, the same in both models.
    """
    student_layers, teacher_layers = find_layers(student, n_layers), find_layers(teacher, n_teacher)
    student_parts, teacher_parts = layer_parts(student, n_layers), layer_parts(teacher, n_teacher)
    assert student_layers is not None and teacher_layers is not None, "layer_parts found them"
    prefix = student_layers[0]
    teacher_weights = teacher.state_dict()
    weights = student.state_dict()
    for name, weight in weights.items():
        outside = name in teacher_weights and not name.startswith(f"{prefix}.")
        if outside and teacher_weights[name].shape == weight.shape:
            weights[name] = teacher_weights[name]
    for number, source in enumerate(layers):
        for name, value in teacher_layers[1][source - 1].state_dict().items():
            key = f"{prefix}.{number}.{name}"
            if weights[key].shape == value.shape:
                weights[key] = value
        indices = _kept_indices(student_parts[number], importance, source - 1, head_size)
        for part, (name, _) in student_parts[number].items():
            source_map = teacher_parts[source - 1][part][1]
            axis = 1 if part in ("output", "down") else 0
            key = f"{prefix}.{number}.{name}"
            weights[f"{key}.weight"] = source_map.weight.detach().index_select(axis, indices[part])
            bias = source_map.bias.detach()
            weights[f"{key}.bias"] = bias if axis else bias[indices[part]]
    student.load_state_dict(weights)
    embeddings = student.get_input_embeddings()  # type: ignore[operator]
    if isinstance(embeddings, FactorisedEmbedding):
        embeddings.factorise_from(teacher.get_input_embeddings().weight)  # type: ignore[operator]


def _kept_indices(
    parts: dict[str, tuple[str, nn.Linear]], importance: Importance, layer: int, head_size: int
) -> dict[str, Tensor]:
    """For each part, which rows of the teacher's weights are kept (columns, for `output` and `down`)."""
    heads = parts["query"][1].out_features // head_size
    best = importance.heads[layer].topk(heads).indices.sort().values
    head_units = (best[:, None] * head_size + torch.arange(head_size)).flatten()
    units = importance.units[layer].topk(parts["up"][1].out_features).indices.sort().values
    return {part: units if part in ("up", "down") else head_units for part in PARTS}
