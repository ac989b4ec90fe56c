"""The module that training steps call. In several processes, each holds it whole (DDP)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from mtkd.training.table_gradients import TableGradients


class ParallelModule:
    """A module that every process holds whole, and its optimiser; `ShardedModule` is for models too large.

    Args:
        module: the module to train; it stays the caller's, for evaluation and checkpoints.
        optimizer: the optimiser of its parameters.

    Attributes:
        module: the module to call in training steps.
        optimizer: the optimiser to use in training steps.
    """

    _tables: TableGradients | None = None  # only in one process on a CPU

    def __init__(self, accelerator: Accelerator, module: nn.Module, optimizer: torch.optim.Optimizer):
        self._accelerator = accelerator
        self.module: nn.Module = accelerator.prepare_model(module)
        self.optimizer = optimizer
        self._params = list(module.parameters())
        if accelerator.num_processes == 1 and accelerator.device.type == "cpu":
            self._tables = TableGradients(module)

    def micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch; processes average their gradients in the last one of a step.

        In one process on a CPU, the gradients of large embedding tables are sparse.
        """
        if self._tables:
            return self._tables.sparse()
        return contextlib.nullcontext() if last else self._accelerator.no_sync(self.module)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the gradient norm to `max_norm` in the next optimiser step; returns the norm before clipping.

        A fused optimiser divides the gradients while it reads them, which saves a pass over all of them.
        """
        fused = self.optimizer.defaults.get("fused")
        if self._tables:
            if fused:
                self._tables.coalesce()
            else:
                self._tables.to_dense()
        if not fused:
            return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)
        gradients = [param.grad for param in self._params if param.grad is not None]
        norm = nn.utils.get_total_norm([each.values() if each.is_sparse else each for each in gradients])
        # As in clip_grad_norm_, 1e-6 keeps the norm of the clipped gradients below max_norm.
        self.optimizer.grad_scale = ((norm + 1e-6) / max_norm).clamp(min=1)  # type: ignore[attr-defined]
        return norm

    def step(self) -> None:
        """Update the weights, and forget the gradients."""
        if self._tables:
            self._tables.to_dense()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._tables:
            self._tables.clear()

    def gather_weights(self) -> None:
        """Copy the current weights to the caller's module; every process must call this."""

    def gathered_optimizer_state(self) -> AbstractContextManager[None]:
        """Inside the block, the caller's optimiser has its whole state, in the main process.

        Every process must enter the block.
        """
        return contextlib.nullcontext()

    def on_device(self) -> AbstractContextManager[None]:
        """Inside the block, the caller's module is on the device."""
        return contextlib.nullcontext()

    def return_to_device(self) -> None:
        """Move the caller's module back to the device, after the last step."""
