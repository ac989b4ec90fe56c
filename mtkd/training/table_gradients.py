"""Gradients of large embedding tables, of which a training step reads few rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mtkd.models.fast_embedding import Embedding

_MIN_VALUES = 1 << 20  # smaller tables are left alone


class TableGradients:
    """The gradients of a module's large embedding tables, without a pass over whole tables in each step.

    Inside `sparse`, gradients hold the rows that were read. `to_dense` writes these rows into a table of
    zeros that is kept between steps, since the optimiser needs a dense gradient. `clear` sets these rows to
    zero again.

    Args:
        module: its tables of type `Embedding` are handled, except those that modules of other types use as
            well, whose gradients are dense.
    """

    def __init__(self, module: nn.Module):
        self._tables = _large_tables(module)
        self._dense: dict[Tensor, Tensor] = {}
        self._filled: dict[Tensor, Tensor] = {}  # weights -> the rows that are not zero

    @contextlib.contextmanager
    def sparse(self) -> Iterator[None]:
        """Inside the block, the forward and backward pass compute gradients of the rows that they read."""
        for table in self._tables:
            table.sparse = True
        try:
            yield
        finally:
            for table in self._tables:
                table.sparse = False

    def coalesce(self) -> None:
        """Sum the gradients of tokens that occur several times; a norm of them would be wrong without it."""
        for weight in self._sparse_weights():
            weight.grad = weight.grad.coalesce()  # type: ignore[union-attr]

    @torch.no_grad()
    def to_dense(self) -> None:
        """Make the sparse gradients dense."""
        self.coalesce()
        for weight in self._sparse_weights():
            gradient = weight.grad
            assert gradient is not None
            if weight not in self._dense:
                self._dense[weight] = torch.zeros_like(weight)
            dense = self._dense[weight]
            rows = self._filled[weight] = gradient.indices()[0]
            dense.index_copy_(0, rows, gradient.values())
            weight.grad = None  # a sparse gradient cannot be replaced by a dense one directly
            weight.grad = dense

    @torch.no_grad()
    def clear(self) -> None:
        """Set the rows of the last `to_dense` to zero."""
        for weight, rows in self._filled.items():
            self._dense[weight].index_fill_(0, rows, 0)
        self._filled.clear()

    def _sparse_weights(self) -> list[Tensor]:
        weights = dict.fromkeys(table.weight for table in self._tables)
        return [weight for weight in weights if weight.grad is not None and weight.grad.is_sparse]


def _large_tables(module: nn.Module) -> list[Embedding]:
    """The large embeddings of a module that share their weights with no module of another type."""
    shared = {
        weight
        for child in module.modules()
        if not isinstance(child, Embedding)
        for weight in child.parameters(recurse=False)
    }
    return [
        child
        for child in module.modules()
        if isinstance(child, Embedding) and child.weight.numel() >= _MIN_VALUES and child.weight not in shared
    ]
