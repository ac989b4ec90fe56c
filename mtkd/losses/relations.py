"""Losses on self-attention relations and other similarities, which are rows of softmax(A Bᵀ)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.autograd.function import once_differentiable

from mtkd.losses.compatibility import pairs_of, vector_layers
from mtkd.losses.layer_maps import Pairs
from mtkd.losses.layered import LayeredTerm, RowVector, SampleTerm, TokenTerm, mask_of
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import LayerMap, TermSettings
from mtkd.outputs import OutputSpec
from tasks.errors import UserError

# The number of elements of a (heads, n, n) matrix to compute at a time: CACHED fits a CPU's cache, PIECE
# bounds the memory on other devices.
CACHED, PIECE = 1 << 18, 1 << 25


@full_precision
def relation_kl(a_s: Tensor, b_s: Tensor, a_t: Tensor, b_t: Tensor, mask: Tensor, splits: int) -> Tensor:
    """KL between the relations of teacher and student (MiniLMv2 Eq. 5-8; MLKD-BERT Eq. 8-10 with A = B).

    R = softmax(A Bᵀ / sqrt(d/splits)) over valid keys, for each of `splits` contiguous parts of the width.
    The result is the mean of KL(R_T || R_S) over splits and valid queries, or 0 if no token is valid. The
    gradient is computed together with the value and cannot be differentiated again.

    Args:
        a_s, b_s: (B, L, d_s) the student's vectors in the roles of queries and keys; pass one tensor twice
            for a self-relation.
        a_t, b_t: (B, L, d_t) the teacher's vectors; no gradient flows to them.
        mask: (B, L) bool, True = real token.
        splits: the number of relation heads.

    Raises:
        ValueError: `splits` does not divide a width.
    """
    for width in (a_s.shape[-1], a_t.shape[-1]):
        if width % splits:
            raise ValueError(f"a width of {width} does not divide into {splits} relation heads")
    operands = (a_s, b_s, a_t.detach(), b_t.detach())
    differentiable = torch.is_grad_enabled() and (a_s.requires_grad or b_s.requires_grad)
    total: Tensor = _RelationKL.apply(mask, splits, differentiable, *operands)
    return total / (mask.sum().clamp(min=1) * splits)


def token_similarity_kl(e_s: Tensor, e_t: Tensor, mask: Tensor) -> Tensor:
    """KL between rows of softmax(E Eᵀ / sqrt(d)), averaged over valid tokens (MLKD-BERT Eq. 1-3).

    Args:
        e_s, e_t: (B, L, d_s), (B, L, d_t) outputs of the embedding layers; no gradient flows to e_t.
        mask: (B, L) bool, True = real token.
    """
    return relation_kl(e_s, e_s, e_t, e_t, mask, 1)


def sample_similarity_kl(g_s: Tensor, g_t: Tensor) -> Tensor:
    """KL between rows of softmax(G Gᵀ / sqrt(d)) over the batch, averaged over rows (MLKD-BERT Eq. 13-15).

    Args:
        g_s, g_t: (B, d_s), (B, d_t) one vector per row, such as the last [CLS]; no gradient flows to g_t.
    """
    mask = torch.ones(1, len(g_s), dtype=torch.bool, device=g_s.device)
    return token_similarity_kl(g_s.unsqueeze(0), g_t.unsqueeze(0), mask)


class _RelationKL(torch.autograd.Function):
    """The KL summed over splits and valid queries; the forward pass also computes the gradient."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, splits: int, differentiable: bool, *operands: Tensor) -> Tensor:
        a_s, b_s, _, _ = operands
        distinct = [a_s] if a_s is b_s else [a_s, b_s]
        grads = [torch.zeros_like(x) for x in distinct] if differentiable else []
        work = _by_example if a_s.device.type == "cpu" else _by_piece
        total = work(operands, mask, splits, grads)
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_a, d_b = [*(grad * d for d in ctx.saved_tensors), None][:2]
        return None, None, None, d_a, d_b, None, None


def _by_example(operands: tuple[Tensor, ...], mask: Tensor, splits: int, grads: list[Tensor]) -> Tensor:
    """Compute the sum one example at a time, with as many heads as fit the cache; fills `grads`."""
    total, counts = operands[0].new_zeros(()), mask.sum(1).tolist()
    scratch = total.new_empty(4, max(CACHED, max(counts, default=0) ** 2))
    for row, n in enumerate(counts):
        if n == 0:
            continue
        keep = slice(n) if bool(mask[row, :n].all()) else mask[row]
        views = [_heads(x[row, keep], splits) for x in operands]
        for start in range(0, splits, step := max(1, CACHED // n**2)):
            heads = slice(start, start + step)
            value, found = _piece([view[heads] for view in views], None, scratch, len(grads))
            total += value
            for grad, part in zip(grads, found, strict=True):
                grad[row].unflatten(-1, (splits, -1))[keep, heads] = part.permute(2, 0, 1)
    return total


def _by_piece(operands: tuple[Tensor, ...], mask: Tensor, splits: int, grads: list[Tensor]) -> Tensor:
    """Compute the sum over padded examples, as many at a time as PIECE allows; fills `grads`."""
    total, (batch, length) = operands[0].new_zeros(()), mask.shape
    step = max(1, min(batch, PIECE // max(1, splits * length**2)))
    scratch = total.new_empty(4, step * splits * length**2)
    for start in range(0, batch, step):
        rows = slice(start, start + step)
        real, valid = mask[rows], mask[rows].repeat_interleave(splits, 0)
        clean = [x[rows].masked_fill(~real.unsqueeze(-1), 0.0) for x in operands]
        views = [_heads(x, splits).flatten(0, 1) for x in clean]
        value, found = _piece(views, valid, scratch, len(grads))
        total += value
        for grad, part in zip(grads, found, strict=True):
            grad[rows] = part.unflatten(0, (-1, splits)).movedim(-1, 1).flatten(2)
    return total


def _heads(x: Tensor, splits: int) -> Tensor:
    """Reshape (..., n, d) to (..., splits, d / splits, n)."""
    return x.unflatten(-1, (splits, -1)).movedim(-3, -1)


def _piece(
    operands: list[Tensor], valid: Tensor | None, scratch: Tensor, n_grads: int
) -> tuple[Tensor, list[Tensor]]:
    """Compute the KL summed over k relation heads, and its gradients.

    For rows of logits T and S with P = softmax(T) and Q = softmax(S), KL = sum_j P (T - S) - lse(T) + lse(S),
    and its gradient with respect to S is Q - P. Gradients are computed as (d, n) x (n, n) products, which are
    several times faster than (n, n) x (n, d).

    Args:
        operands: a_s, b_s, a_t, b_t, each (k, d, n), with the tokens of a head in columns.
        valid: (k, n) bool, True = real token; None = all tokens are real.
        scratch: (4, at least k * n * n) a buffer for intermediate results.
        n_grads: 0 = none, 1 = with respect to a_s as both operands, 2 = with respect to a_s and b_s.
    """
    a_s, b_s, a_t, b_t = operands
    k, _, n = a_s.shape
    t, p, s, q = scratch[:, : k * n * n].view(4, k, n, n)
    lse_t, lse_s = _softmax(a_t, b_t, valid, t, p), _softmax(a_s, b_s, valid, s, q)
    excess = lse_s - lse_t
    if valid is not None:
        excess.masked_fill_(~valid, 0.0)
        p.masked_fill_(~valid.unsqueeze(-1), 0.0)
        q.masked_fill_(~valid.unsqueeze(-1), 0.0)
    value = torch.dot(p.view(-1), t.sub_(s).view(-1)) + excess.sum()
    if n_grads == 0:
        return value, []
    by_logits, scale = q.sub_(p), a_s.shape[1] ** -0.5
    d_b = torch.baddbmm(a_s, a_s, by_logits, beta=0, alpha=scale)
    to, kept = (d_b, 1.0) if n_grads == 1 else (b_s, 0.0)
    d_a = torch.baddbmm(to, b_s, by_logits.mT, beta=kept, alpha=scale)
    return value, [d_a, d_b][:n_grads]


def _softmax(a: Tensor, b: Tensor, valid: Tensor | None, logits: Tensor, out: Tensor) -> Tensor:
    """Write the logits (k, n, n) and their softmax over valid keys; return their log-sum-exp (k, n)."""
    torch.baddbmm(logits, a.mT, b, beta=0, alpha=a.shape[1] ** -0.5, out=logits)
    if valid is not None:
        logits.masked_fill_(~valid.unsqueeze(1), torch.finfo(logits.dtype).min)
    torch.softmax(logits, -1, out=out)
    return logits.amax(-1) - out.amax(-1).log_()


VECTORS = {"q": "query", "k": "key", "v": "value", "o": "context", "h": "hidden"}


class Relation(LayeredTerm):
    """`relation`: `relation_kl`, summed over pairs of vectors and pairs of layers.

    Averaged over: real tokens.

    Args:
        layers: (student layer, teacher layer) pairs.
        of: pairs of vectors such as "q-q", named by the letters of VECTORS.
        splits: the number of relation heads.
        heads: how the teacher's attention heads are turned into relation heads (`regroup_heads`).
        teacher_heads: the number of the teacher's attention heads.
    """

    class Settings(TermSettings):
        """KL divergence of scaled dot-product relations between pairs of vectors (MiniLMv2, MLKD-BERT).

        Attributes:
            pairs: the pairs of vectors to relate, made of q(uery), k(ey), v(alue), o (context vectors) and
                h(idden states).
            splits: the number of relation heads; None = as many as the student has attention heads; "auto" =
                64 for teachers of a width of 1024 or more, and 48 for others (MiniLMv2).
            heads: how the teacher's attention heads are turned into relation heads: concatenated and split
                (`concat-split`), by their `average`, or by choosing one at `random` (MLKD-BERT table 5).
        """

        pairs: list[Annotated[str, Field(pattern=r"^[qkvoh]-[qkvoh]$")]] = Field(
            ["q-q", "k-k", "v-v"], min_length=1
        )
        splits: PositiveInt | Literal["auto"] | None = None
        layers: LayerMap = "auto"
        heads: Literal["concat-split", "average", "random"] = "concat-split"

    def __init__(
        self,
        layers: Pairs,
        of: Sequence[str],
        splits: int,
        heads: str,
        teacher_heads: int,
        flow: bool = False,
    ):
        letters = sorted(set("".join(of)) - {"-"})
        super().__init__(layers, [VECTORS[letter] for letter in letters], flow)
        self._of = [tuple(VECTORS[letter] for letter in pair.split("-")) for pair in of]
        self._splits, self._heads, self._teacher_heads = splits, heads, teacher_heads

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        s, pairs = settings, pairs_of(name, settings.layers, models)
        splits = s.splits or models.student.heads
        if splits == "auto":
            splits = 64 if models.teacher.attention >= 1024 else 48
        _require_divisible(name, set("".join(s.pairs)) - {"-"}, splits, s.heads != "concat-split", models)
        return cls(pairs, s.pairs, splits, s.heads, models.teacher.heads, s.layers == "emd")

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The sum over pairs of vectors."""
        kinds = {kind for pair in self._of for kind in pair}
        student = {kind: getattr(inputs.student, kind)[layer_s] for kind in kinds}
        teacher = {kind: self._regroup(getattr(inputs.teacher_signal, kind)[layer_t]) for kind in kinds}
        return torch.stack(
            [
                relation_kl(student[a], student[b], teacher[a], teacher[b], mask_of(inputs), self._splits)
                for a, b in self._of
            ]
        ).sum()

    def _regroup(self, vectors: Tensor) -> Tensor:
        return regroup_heads(vectors, self._teacher_heads, self._splits, self._heads)


def _require_divisible(name: str, letters: set[str], splits: int, regrouped: bool, models: ModelPair) -> None:
    """Refuse a number of relation heads that does not divide a width (or the heads, if regrouped)."""
    for who, model in (("student", models.student), ("teacher", models.teacher)):
        by_head = regrouped and model is models.teacher
        for letter in letters:
            width = model.width if letter == "h" else model.attention
            if by_head:
                width = model.heads if letter != "h" else 0
            if not width or width % splits:
                divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
                raise UserError(
                    f"the term {name!r} splits vectors into {splits} relation heads, "
                    f"but the {who} has {f'{width} attention heads' if by_head else f'a width of {width}'}",
                    expected=f"a divisor: {', '.join(divisors) or 'there is none'}",
                    hint=f"use `terms.{name}.splits=N`",
                )


def regroup_heads(vectors: Tensor, heads: int, splits: int, how: str) -> Tensor:
    """Turn attention heads into relation heads (MLKD-BERT section 4.5).

    Args:
        vectors: (B, L, d) vectors with the heads concatenated.
        heads: the number of attention heads; `splits` must divide it, except for `concat-split`.
        how: `concat-split` returns the vectors unchanged; `average` takes the mean of the heads in each
            group; `random` takes one head of each group, the same at every call.

    Returns:
        (B, L, d') vectors whose width `splits` divides.
    """
    if how == "concat-split":
        return vectors
    grouped = vectors.unflatten(-1, (splits, heads // splits, -1))
    if how == "average":
        return grouped.mean(-2).flatten(-2)
    picks = np.random.default_rng(0).integers(heads // splits, size=splits)
    return torch.stack([grouped[..., split, pick, :] for split, pick in enumerate(picks)], -2).flatten(-2)


class TokenSimilarity(TokenTerm):
    """`token_similarity`: KL of token similarities in the embedding layer (MLKD-BERT).

    Averaged over: real tokens.
    """

    class Settings(TermSettings):
        """KL divergence of the similarities between tokens in the embedding layer (MLKD-BERT)."""

    with_strides: ClassVar[bool | dict[str, Any]] = True
    student_need = teacher_need = OutputSpec(hidden=frozenset({0}))
    compared = ((0, 0),)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs_of(name, [(0, 0)], models)
        return cls()

    def forward(self, inputs: TermInput) -> Tensor:
        mask = mask_of(inputs)
        student, teacher = inputs.student.hidden[0], inputs.teacher_signal.hidden[0]
        return token_similarity_kl(student, teacher, mask) * mask.sum()


class SampleSimilarity(SampleTerm):
    """`sample_similarity`: KL of the similarities between the rows of a batch (MLKD-BERT).

    Averaged over: rows.
    """

    class Settings(TermSettings):
        """KL divergence of the similarities between the rows of a batch (MLKD-BERT).

        Attributes:
            vector: the vector of a row: the last layer's first token (`cls`), or the vector that the task
                heads read (`pooled`).
        """

        vector: RowVector = "cls"

    what = "similarities between rows"

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        return cls(settings.vector, *vector_layers(name, settings.vector, models))

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = self.vectors(inputs)
        return sample_similarity_kl(student, teacher) * len(student)
