"""The module that training steps call. In several processes, each holds it whole (DDP)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn


class ParallelModule:
    """A module that every process holds whole, and its optimiser; `ShardedModule` is for models too large.

    Args:
        module: the module to train; it stays the caller's, for evaluation and checkpoints.
        optimizer: the optimiser of its parameters.

    Attributes:
        module: the module to call in training steps.
        optimizer: the optimiser to use in training steps.
    """

    def __init__(self, accelerator: Accelerator, module: nn.Module, optimizer: torch.optim.Optimizer):
        self._accelerator = accelerator
        self.module: nn.Module = accelerator.prepare_model(module)
        self.optimizer = optimizer

    def micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch; processes average their gradients in the last one of a step."""
        return contextlib.nullcontext() if last else self._accelerator.no_sync(self.module)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the gradient norm to `max_norm`; returns the norm before clipping, a scalar."""
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

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
