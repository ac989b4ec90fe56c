"""Dropout that draws only the dropped positions, and attention with it: faster on a CPU than torch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MIN_PROBABILITY = 1e-12  # below it, dropout has no effect on a tensor of realistic size
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the same distribution: each value is dropped independently with probability p.

    On a CPU it draws how many values lie between one dropped value and the next, which is geometrically
    distributed, so it needs only about p n random numbers for n values. The seed of a call comes
    from torch's generator: `torch.manual_seed` makes it reproducible. On other devices, torch's own dropout
    is used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Drop values during training, and divide those that stay by 1 - p; any shape."""
        return dropout(input, self.p) if self.training else input


def dropout(values: Tensor, p: float) -> Tensor:
    """`torch.nn.functional.dropout` in training, as `Dropout` does it.

    Args:
        values: any shape.
        p: the probability that a value becomes 0, from 0 to 1.
    """
    if p < _MIN_PROBABILITY or values.numel() == 0:
        return values
    if values.device.type != "cpu" or p == 1:
        return nn.functional.dropout(values, p)
    return _Dropped.apply(values, p)  # type: ignore[no-any-return, no-untyped-call]


def use_dropout(module: nn.Module) -> None:
    """Replace every `torch.nn.Dropout` inside a module by `Dropout`."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))


def dropout_attention_is_faster(query: Tensor, p: float) -> bool:
    """True if `attention` is faster than torch's: on a CPU with dropout, or in training under bf16.

    On a CPU, torch's attention takes a slow path with dropout, and the backward pass of its fast path takes
    several times as long in bf16.
    """
    reduced = torch.is_autocast_enabled("cpu") and torch.is_grad_enabled() and query.requires_grad
    return query.device.type == "cpu" and (p > 0 or reduced)


def dropout_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, p: float
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with dropout of the attention probabilities.

    Args:
        query: (B, heads, L, d), as `key` and `value`.
        mask: (B, heads or 1, L or 1, L) bool, True where a query attends to a key; or float,
            added to the scores.
        scaling: the factor of the scores; None = 1 / sqrt(d).
        p: the probability that an attention probability becomes 0.

    Returns:
        (B, heads, L, d).
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query = query.to(dtype)
        key = key.to(dtype)
        value = value.to(dtype)
    with torch.autocast("cpu", enabled=False):
        query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = query @ key.transpose(-1, -2)
        if mask is not None and mask.dtype == torch.bool:
            mask = scores.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(scores.dtype).min)
        if mask is not None:
            scores = scores + mask.to(scores.dtype)
        return dropout(scores.softmax(-1), p) @ value


class _Dropped(torch.autograd.Function):
    """Sets random positions to 0, in the forward pass and in the gradient, and divides the rest by 1 - p."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        ctx.keep_probability, ctx.positions = 1 - p, _positions(values.numel(), p)
        return _with_zeros(values, ctx.positions, ctx.keep_probability)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _with_zeros(gradient, ctx.positions, ctx.keep_probability), None


def _with_zeros(values: Tensor, positions: np.ndarray, keep_probability: float) -> Tensor:
    scaled = values.contiguous() / keep_probability
    # NumPy writes single positions several times faster than torch; as integers, because it has no bfloat16.
    scaled.view(_INTEGERS[scaled.itemsize]).view(-1).numpy()[positions] = 0
    return scaled


def _positions(count: int, p: float) -> np.ndarray:
    """Indices below `count`, each with probability `p`, ascending."""
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    chunks, last = [], -1
    while last < count:
        expected = (count - last) * p
        gaps = random.random(int(expected + 4 * math.sqrt(expected) + 8), dtype=np.float32)
        np.log1p(np.negative(gaps, out=gaps), out=gaps)
        gaps *= 1 / math.log1p(-p)
        chunk = np.cumsum(gaps.astype(np.int64) + 1) + last
        chunks.append(chunk)
        last = int(chunk[-1])
    indices = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return indices[: np.searchsorted(indices, count)]
