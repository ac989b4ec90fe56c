"""The KL divergence of relations, computed together with its gradient (docs/decisions/0006)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The number of elements of a (heads, n, n) matrix to compute at a time. Four such matrices are in memory: in
# float32, 4 MiB on a CPU, which fits its cache, and 512 MiB on other devices; more only if one head of a text
# (on other devices, all heads of a row) has more elements.
CPU_CHUNK, GPU_CHUNK = 1 << 18, 1 << 25


class RelationKL(torch.autograd.Function):
    """The KL summed over relation heads and valid queries; the forward pass also computes the gradient.

    The mask (B, L) is that of `relation_kl`: bool, or the number of each token's text.
    """

    @staticmethod
    def forward(ctx: Any, mask: Tensor, n_heads: int, differentiable: bool, *operands: Tensor) -> Tensor:
        a_s, b_s, _, _ = operands
        distinct = [a_s] if a_s is b_s else [a_s, b_s]
        grads = [torch.zeros_like(x) for x in distinct] if differentiable else []
        compute = _by_example if a_s.device.type == "cpu" else _by_chunk
        total = compute(operands, mask, n_heads, grads)
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_a, d_b = [*(grad * d for d in ctx.saved_tensors), None][:2]
        return None, None, None, d_a, d_b, None, None


def _by_example(operands: tuple[Tensor, ...], mask: Tensor, n_heads: int, grads: list[Tensor]) -> Tensor:
    """Compute the sum one text at a time, with as many heads as fit the cache; fills `grads`."""
    total, texts = operands[0].new_zeros(()), list(_texts(mask))
    scratch = total.new_empty(4, max(CPU_CHUNK, max((n for _, n, _ in texts), default=0) ** 2))
    for row, n, real in texts:
        views = [_heads(x[row, real], n_heads) for x in operands]
        for start in range(0, n_heads, step := max(1, CPU_CHUNK // n**2)):
            heads = slice(start, start + step)
            value, head_grads = _kl_of_heads([view[heads] for view in views], None, scratch, len(grads))
            total += value
            for grad, head_grad in zip(grads, head_grads, strict=True):
                grad[row].unflatten(-1, (n_heads, -1))[real, heads] = head_grad.permute(2, 0, 1)
    return total


def _texts(mask: Tensor) -> Iterator[tuple[int, int, slice | Tensor]]:
    """Yield the row, the number of tokens and the positions of each text: a slice, or a mask if scattered."""
    for number in range(1, int(mask.max()) + 1) if mask.numel() else ():
        of_text = mask == number
        counts, firsts = of_text.sum(1).tolist(), of_text.int().argmax(1).tolist()
        for row, (n, first) in enumerate(zip(counts, firsts, strict=True)):
            positions = slice(first, first + n)
            if n:
                yield row, n, positions if bool(of_text[row, positions].all()) else of_text[row]


def _by_chunk(operands: tuple[Tensor, ...], mask: Tensor, n_heads: int, grads: list[Tensor]) -> Tensor:
    """Compute the sum over padded rows, as many at a time as GPU_CHUNK allows; fills `grads`."""
    total, (batch, length) = operands[0].new_zeros(()), mask.shape
    step = max(1, min(batch, GPU_CHUNK // max(1, n_heads * length**2)))
    scratch = total.new_empty(4, step * n_heads * length**2)
    for start in range(0, batch, step):
        rows = slice(start, start + step)
        real, valid = mask[rows].bool(), mask[rows].repeat_interleave(n_heads, 0)
        clean = [x[rows].masked_fill(~real.unsqueeze(-1), 0.0) for x in operands]
        views = [_heads(x, n_heads).flatten(0, 1) for x in clean]
        value, head_grads = _kl_of_heads(views, valid, scratch, len(grads))
        total += value
        for grad, head_grad in zip(grads, head_grads, strict=True):
            grad[rows] = head_grad.unflatten(0, (-1, n_heads)).movedim(-1, 1).flatten(2)
    return total


def _heads(x: Tensor, n_heads: int) -> Tensor:
    """Reshape (..., n, d) to (..., n_heads, d / n_heads, n)."""
    return x.unflatten(-1, (n_heads, -1)).movedim(-3, -1)


def _kl_of_heads(
    operands: list[Tensor], valid: Tensor | None, scratch: Tensor, n_grads: int
) -> tuple[Tensor, list[Tensor]]:
    """Compute the KL summed over k relation heads, and its gradients.

    For rows of logits T and S with P = softmax(T) and Q = softmax(S), KL = sum_j P (T - S) - lse(T) + lse(S),
    and its gradient with respect to S is Q - P. Gradients are computed as (d, n) x (n, n) products, which are
    several times faster than (n, n) x (n, d).

    Args:
        operands: a_s, b_s, a_t, b_t, each (k, d, n), with the tokens of a head in columns.
        valid: (k, n) the mask, bool or the number of each token's text; None = real tokens of one text.
        scratch: (4, at least k * n * n) a buffer for intermediate results.
        n_grads: 0 = none, 1 = with respect to a_s as both operands, 2 = with respect to a_s and b_s.
    """
    a_s, b_s, a_t, b_t = operands
    k, _, n = a_s.shape
    t, p, s, q = scratch[:, : k * n * n].view(4, k, n, n)
    lse_t, lse_s = _softmax(a_t, b_t, valid, t, p), _softmax(a_s, b_s, valid, s, q)
    excess = lse_s - lse_t
    if valid is not None:
        padding = ~valid.bool()
        excess.masked_fill_(padding, 0.0)
        p.masked_fill_(padding.unsqueeze(-1), 0.0)
        q.masked_fill_(padding.unsqueeze(-1), 0.0)
    value = torch.dot(p.view(-1), t.sub_(s).view(-1)) + excess.sum()
    if n_grads == 0:
        return value, []
    grad_logits, scale = q.sub_(p), a_s.shape[1] ** -0.5
    d_b = torch.baddbmm(a_s, a_s, grad_logits, beta=0, alpha=scale)
    if n_grads == 1:  # a_s and b_s are the same tensor, so its gradient is the sum of both
        return value, [torch.baddbmm(d_b, b_s, grad_logits.mT, alpha=scale)]
    d_a = torch.baddbmm(b_s, b_s, grad_logits.mT, beta=0, alpha=scale)
    return value, [d_a, d_b]


def _softmax(a: Tensor, b: Tensor, valid: Tensor | None, logits: Tensor, out: Tensor) -> Tensor:
    """Write the logits (k, n, n) and their softmax over valid keys; return their log-sum-exp (k, n)."""
    torch.baddbmm(logits, a.mT, b, beta=0, alpha=a.shape[1] ** -0.5, out=logits)
    if valid is not None:
        one_text = valid.dtype == torch.bool
        unseen = ~valid.unsqueeze(1) if one_text else valid.unsqueeze(1) != valid.unsqueeze(2)
        logits.masked_fill_(unseen, torch.finfo(logits.dtype).min)
    torch.softmax(logits, -1, out=out)
    return logits.amax(-1) - out.amax(-1).log_()
