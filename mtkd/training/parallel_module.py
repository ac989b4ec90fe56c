"""The module that training steps run. In several processes, each holds it whole (DDP)."""

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
        self.optimizer: torch.optim.Optimizer = accelerator.prepare_optimizer(
            optimizer, device_placement=False
        )

    def micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch; processes average their gradients in the last one of a step."""
        return contextlib.nullcontext() if last else self._accelerator.no_sync(self.module)

    def clip(self, norm: float) -> Tensor:
        """Scale the gradients down to a norm of at most `norm`; returns their norm before, a scalar."""
        return self._accelerator.clip_grad_norm_(self.module.parameters(), norm)  # type: ignore[return-value]

    def gather(self) -> None:
        """Copy the current weights to the caller's module; every process must call this."""

    def whole_optimizer(self) -> AbstractContextManager[None]:
        """Inside the block, the caller's optimiser has its whole state, in the main process.

        Every process must enter the block.
        """
        return contextlib.nullcontext()

    def on_device(self) -> AbstractContextManager[None]:
        """Inside the block, the caller's module is on the device."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """End training; from now on, the caller's module is on the device."""
