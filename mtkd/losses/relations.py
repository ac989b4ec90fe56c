"""Losses on self-attention relations and other similarities, which are rows of softmax(A Bᵀ)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from mtkd.losses.compatibility import pairs_of, vector_layers
from mtkd.losses.layer_maps import LayerPairs
from mtkd.losses.layered import LayeredTerm, RowVector, SampleTerm, TokenTerm, mask_of, text_mask_of
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.relation_gradient import RelationKL
from mtkd.losses.term_settings import LayerMap, TermSettings
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError

VECTORS = {"q": "query", "k": "key", "v": "value", "o": "context", "h": "hidden"}


@full_precision
def relation_kl(a_s: Tensor, b_s: Tensor, a_t: Tensor, b_t: Tensor, mask: Tensor, n_heads: int) -> Tensor:
    """KL between the relations of teacher and student (MiniLMv2 Eq. 5-8; MLKD-BERT Eq. 8-10 with A = B).

    R = softmax(A Bᵀ / sqrt(d/n_heads)) over valid keys, for each of `n_heads` contiguous parts of the width.
    The result is the mean of KL(R_T || R_S) over heads and valid queries, or 0 if no token is valid. The
    gradient is computed together with the value and cannot be differentiated again.

    Args:
        a_s, b_s: (B, L, d_s) the student's vectors in the roles of queries and keys; pass one tensor twice
            for a self-relation.
        a_t, b_t: (B, L, d_t) the teacher's vectors; no gradient flows to them.
        mask: (B, L) bool, True = real token; or int, the number of each token's text (0 = padding), where the
            valid keys of a query are the tokens of the same text.
        n_heads: the number of relation heads.

    Raises:
        ValueError: `n_heads` does not divide a width.
    """
    for width in (a_s.shape[-1], a_t.shape[-1]):
        if width % n_heads:
            raise ValueError(f"a width of {width} does not divide into {n_heads} relation heads")
    operands = (a_s, b_s, a_t.detach(), b_t.detach())
    differentiable = torch.is_grad_enabled() and (a_s.requires_grad or b_s.requires_grad)
    total: Tensor = RelationKL.apply(mask, n_heads, differentiable, *operands)
    return total / (mask.bool().sum().clamp(min=1) * n_heads)


def token_similarity_kl(e_s: Tensor, e_t: Tensor, mask: Tensor) -> Tensor:
    """KL between rows of softmax(E Eᵀ / sqrt(d)), averaged over valid tokens (MLKD-BERT Eq. 1-3).

    Args:
        e_s, e_t: (B, L, d_s), (B, L, d_t) outputs of the embedding layers; no gradient flows to e_t.
        mask: (B, L) bool or int; see `relation_kl`.
    """
    return relation_kl(e_s, e_s, e_t, e_t, mask, 1)


def sample_similarity_kl(g_s: Tensor, g_t: Tensor) -> Tensor:
    """KL between rows of softmax(G Gᵀ / sqrt(d)) over the batch, averaged over rows (MLKD-BERT Eq. 13-15).

    Args:
        g_s, g_t: (B, d_s), (B, d_t) one vector per row, such as the last [CLS]; no gradient flows to g_t.
    """
    mask = torch.ones(1, len(g_s), dtype=torch.bool, device=g_s.device)
    return token_similarity_kl(g_s.unsqueeze(0), g_t.unsqueeze(0), mask)


class Relation(LayeredTerm):
    """`relation`: `relation_kl`, summed over pairs of vectors and pairs of layers.

    Averaged over: real tokens.

    Args:
        layers: (student layer, teacher layer) pairs.
        relations: pairs of vectors such as "q-q", named by the letters of VECTORS.
        relation_heads: the number of relation heads.
        regrouping: how the teacher's attention heads are turned into relation heads (`regroup_heads`).
        teacher_heads: the number of the teacher's attention heads.
        emd: True for the layer map `emd`, which weights all pairs by the earth mover's flow.

    With regrouping = "random", the heads are drawn when the term is built; the caller seeds torch.
    """

    picks: Tensor | None

    class Settings(TermSettings):
        """KL divergence of scaled dot-product relations between pairs of vectors (MiniLMv2, MLKD-BERT).

        Attributes:
            relations: the pairs of vectors to relate, made of q(uery), k(ey), v(alue), o (context vectors)
                and h(idden states).
            relation_heads: the number of relation heads; None = as many as the student has attention heads;
                "auto" = 64 for teachers of a width of 1024 or more, and 48 for others (MiniLMv2).
            regrouping: how the teacher's attention heads are turned into relation heads: concatenated and
                split (`concat-split`), by their `average`, or by choosing one at `random`, which follows the
                seed (MLKD-BERT table 5).
        """

        relations: list[Annotated[str, Field(pattern=r"^[qkvoh]-[qkvoh]$")]] = Field(
            ["q-q", "k-k", "v-v"], min_length=1
        )
        relation_heads: PositiveInt | Literal["auto"] | None = None
        layer_map: LayerMap = "minilmv2"
        regrouping: Literal["concat-split", "average", "random"] = "concat-split"

    def __init__(
        self,
        layers: LayerPairs,
        relations: Sequence[str],
        relation_heads: int,
        regrouping: str,
        teacher_heads: int,
        emd: bool = False,
    ):
        letters = sorted(set("".join(relations)) - {"-"})
        super().__init__(layers, [VECTORS[letter] for letter in letters], emd)
        self._relations = [tuple(VECTORS[letter] for letter in pair.split("-")) for pair in relations]
        self._relation_heads = relation_heads
        self._regrouping = regrouping
        self._teacher_heads = teacher_heads
        picks = (
            torch.randint(teacher_heads // relation_heads, (relation_heads,))
            if regrouping == "random"
            else None
        )
        self.register_buffer("picks", picks)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        s, pairs = settings, pairs_of(name, settings.layer_map, models)
        relation_heads = s.relation_heads or models.student.heads
        if relation_heads == "auto":
            relation_heads = 64 if models.teacher.attention_size >= 1024 else 48
        _require_divisible(
            name, set("".join(s.relations)) - {"-"}, relation_heads, s.regrouping != "concat-split", models
        )
        return cls(
            pairs, s.relations, relation_heads, s.regrouping, models.teacher.heads, s.layer_map == "emd"
        )

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The sum over pairs of vectors."""
        fields = {field for pair in self._relations for field in pair}
        student = {field: getattr(inputs.student_outputs, field)[layer_s] for field in fields}
        teacher = {field: self._regroup(getattr(inputs.teacher_outputs, field)[layer_t]) for field in fields}
        return torch.stack(
            [
                relation_kl(
                    student[a], student[b], teacher[a], teacher[b], text_mask_of(inputs), self._relation_heads
                )
                for a, b in self._relations
            ]
        ).sum()

    def _regroup(self, vectors: Tensor) -> Tensor:
        return regroup_heads(vectors, self._teacher_heads, self._relation_heads, self._regrouping, self.picks)


def _require_divisible(
    name: str, letters: set[str], relation_heads: int, regrouped: bool, models: ModelPair
) -> None:
    """Refuse a number of relation heads that does not divide a width (or the heads, if regrouped)."""
    for who, model in (("student", models.student), ("teacher", models.teacher)):
        by_head = regrouped and model is models.teacher
        for letter in letters:
            width = model.hidden_size if letter == "h" else model.attention_size
            if by_head:
                width = model.heads if letter != "h" else 0
            if not width or width % relation_heads:
                divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
                raise UserError(
                    f"the term {name!r} has {relation_heads} relation heads, which does not divide "
                    + (
                        f"the {who}'s {width} attention heads" if by_head else f"the {who}'s width of {width}"
                    ),
                    expected=f"a divisor: {', '.join(divisors) or 'there is none'}",
                    hint=f"use `terms.{name}.relation_heads=N`",
                )


def regroup_heads(
    vectors: Tensor, attention_heads: int, relation_heads: int, regrouping: str, picks: Tensor | None = None
) -> Tensor:
    """Turn attention heads into relation heads (MLKD-BERT section 4.5).

    Args:
        vectors: (B, L, d) vectors with the heads concatenated.
        attention_heads: their number; `relation_heads` must divide it, except for `concat-split`.
        regrouping: `concat-split` returns the vectors unchanged; `average` takes the mean of the heads in
            each group; `random` takes the head of each group that `picks` names.
        picks: (relation_heads,) the number of a head within each group, from 0.

    Returns:
        (B, L, d') vectors whose width `relation_heads` divides.
    """
    if regrouping == "concat-split":
        return vectors
    grouped = vectors.unflatten(-1, (relation_heads, attention_heads // relation_heads, -1))
    if regrouping == "average":
        return grouped.mean(-2).flatten(-2)
    assert picks is not None, "`random` needs them"
    return grouped[..., torch.arange(relation_heads, device=picks.device), picks, :].flatten(-2)


class TokenSimilarity(TokenTerm):
    """`token_similarity`: KL of token similarities in the embedding layer (MLKD-BERT).

    Averaged over: real tokens.
    """

    class Settings(TermSettings):
        """KL divergence of the similarities between tokens in the embedding layer (MLKD-BERT)."""

    works_with_strides: ClassVar[bool | dict[str, Any]] = True
    student_need = teacher_need = OutputSpec(hidden=frozenset({0}))
    slow_build_pairs = ((0, 0),)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs_of(name, [(0, 0)], models)
        return cls()

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = inputs.student_outputs.hidden[0], inputs.teacher_outputs.hidden[0]
        return token_similarity_kl(student, teacher, text_mask_of(inputs)) * mask_of(inputs).sum()


class SampleSimilarity(SampleTerm):
    """`sample_similarity`: KL of the similarities between the rows of a batch (MLKD-BERT).

    Averaged over: rows.
    """

    class Settings(TermSettings):
        """KL divergence of the similarities between the rows of a batch (MLKD-BERT).

        Attributes:
            row_vector: the vector of a row: the last layer's first token (`cls`), or the vector that the task
                heads read (`pooled`).
        """

        row_vector: RowVector = "cls"

    comparison = "similarities between rows"

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        return cls(settings.row_vector, *vector_layers(name, settings.row_vector, models))

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = self.vectors(inputs)
        return sample_similarity_kl(student, teacher) * len(student)
