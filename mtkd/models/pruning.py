"""Students cut out of their teacher: layers, heads and feed-forward units by importance, embeddings by SVD.

ROSITA (Liu et al. 2021, AAAI). What remains is a Transformer with fewer heads of the same size, which no
configuration of transformers describes; so these students are read back by mtkd, not by AutoModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtkd.models.capture import find_layers
from tasks.errors import UserError

PARTS = ("query", "key", "value", "output", "up", "down")


@dataclass(frozen=True)
class Importance:
    """How much a teacher's parts matter: sums over batches of |sum of w dL/dw|, the first-order change of the
    loss if a part were gone.

    Attributes:
        layers: (M,).
        heads: (M, heads).
        units: (M, feed-forward width).
    """

    layers: Tensor
    heads: Tensor
    units: Tensor

    def best_layers(self, count: int) -> list[int]:
        """The most important layers, from 1, in order."""
        return sorted((self.layers.topk(count).indices + 1).tolist())


class FactorisedEmbedding(nn.Module):
    """A word embedding table (V, d) as a product of (V, rank) and (rank, d)."""

    def __init__(self, size: int, rank: int, width: int):
        super().__init__()
        self.table = nn.Embedding(size, rank)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(..., d) of (...) ids."""
        found: Tensor = self.up(self.table(ids))
        return found

    @property
    def weight(self) -> Tensor:
        """(V, d) the table as one."""
        return self.table.weight @ self.up.weight.T

    def take(self, weight: Tensor) -> None:
        """The best approximation of a table (V, d) in the least-squares sense: its truncated SVD."""
        wide = weight.detach().double()
        _, vectors = torch.linalg.eigh(wide.T @ wide)  # of the SVD, with the smallest first
        basis = vectors[:, -self.table.embedding_dim :]
        self.up.weight.data.copy_(basis)
        self.table.weight.data.copy_(wide @ basis)


def layer_parts(body: nn.Module, n_layers: int) -> list[dict[str, tuple[str, nn.Linear]]]:
    """For each layer its six linear maps, by part: (name inside the layer, map).

    Raises:
        UserError: layers that are not attention (four maps) and feed-forward (two maps).
    """
    found = find_layers(body, n_layers)
    layers = [] if found is None else list(found[1])
    parts = [[(n, m) for n, m in layer.named_modules() if isinstance(m, nn.Linear)] for layer in layers]
    for maps in parts or [[]]:
        shapes = [tuple(m.weight.shape) for _, m in maps]
        if len(shapes) != len(PARTS) or shapes[4] != shapes[5][::-1] or shapes[3] != shapes[0][::-1]:
            raise UserError(
                f"layers of {type(body).__name__} cannot be pruned: they are not made of queries, keys, "
                f"values, output and a feed-forward pair, but of {shapes}",
                expected="BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT and encoders built like them",
            )
    return [dict(zip(PARTS, maps, strict=True)) for maps in parts]


def resize_heads(body: nn.Module, n_layers: int, heads: int, head_size: int) -> None:
    """Give every layer of a body so many heads of that size; the weights of its attention are fresh."""
    layers = find_layers(body, n_layers)
    for layer, parts in zip(layers[1] if layers else (), layer_parts(body, n_layers), strict=True):
        for part in ("query", "key", "value", "output"):
            name, old = parts[part]
            inner = heads * head_size
            sizes = (inner, old.out_features) if part == "output" else (old.in_features, inner)
            holder, _, last = name.rpartition(".")
            setattr(layer.get_submodule(holder), last, _fresh(nn.Linear(*sizes), body))
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


def _fresh(linear: nn.Linear, body: nn.Module) -> nn.Linear:
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
    """Give a student's body what is most important of its teacher's.

    Args:
        layers: for each layer of the student the teacher's, from 1.
        head_size: width of a head, the same on both models.
    """
    mine, theirs = find_layers(student, n_layers), find_layers(teacher, n_teacher)
    parts_of = layer_parts(student, n_layers)
    teacher_parts = layer_parts(teacher, n_teacher)
    assert mine is not None and theirs is not None, "layer_parts refuses a body without a list of layers"
    weights = teacher.state_dict()
    taken = student.state_dict()
    inside = student.get_input_embeddings()  # type: ignore[operator]
    for name, there in taken.items():
        outside = name in weights and not name.startswith(f"{mine[0]}.")
        taken[name] = weights[name] if outside and weights[name].shape == there.shape else there
    for number, source in enumerate(layers):
        for name, value in theirs[1][source - 1].state_dict().items():
            place = f"{mine[0]}.{number}.{name}"
            if taken[place].shape == value.shape:
                taken[place] = value
        kept = _kept(parts_of[number], importance, source - 1, head_size)
        for part, (name, _) in parts_of[number].items():
            old = teacher_parts[source - 1][part][1]
            along = 1 if part in ("output", "down") else 0
            place = f"{mine[0]}.{number}.{name}"
            taken[f"{place}.weight"] = old.weight.detach().index_select(along, kept[part])
            taken[f"{place}.bias"] = old.bias.detach() if along else old.bias.detach()[kept[part]]
    student.load_state_dict(taken)
    if isinstance(inside, FactorisedEmbedding):
        inside.take(teacher.get_input_embeddings().weight)  # type: ignore[operator]


def _kept(
    parts: dict[str, tuple[str, nn.Linear]], importance: Importance, layer: int, head_size: int
) -> dict[str, Tensor]:
    """For each part the rows (of outputs: columns) of the teacher's weights that are kept."""
    heads = parts["query"][1].out_features // head_size
    best = importance.heads[layer].topk(heads).indices.sort().values
    of_heads = (best[:, None] * head_size + torch.arange(head_size)).flatten()
    units = importance.units[layer].topk(parts["up"][1].out_features).indices.sort().values
    return {part: units if part in ("up", "down") else of_heads for part in PARTS}
