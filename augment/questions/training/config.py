"""The configuration of fine-tuning a question generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from augment.questions.generator import Reading
from augment.questions.training.from_scratch import NewModelShape
from mtkd.training.optimizers import OPTIMIZERS

FROM_SCRATCH = "scratch"


@dataclass(frozen=True)
class GeneratorTrainingConfig:
    """Everything that affects the outcome of fine-tuning a question generator, apart from the data.

    Attributes:
        model: directory or hub name of a T5, or "scratch" for a new one of `shape`.
        reading: the prompt format and the length limits.
        epochs: number of passes over the data; `steps`: number of steps, which overrides `epochs`.
        lr: the peak learning rate; None = 0.03 for a new model, else 3e-4. It rises linearly during the
            fraction `warmup` of the steps and then falls linearly to 0.
        batch_size: approximate number of questions per step.
        seed: for the order of the data, dropout and new weights.
        limit: number of training rows; `eval_limit`: number of held-out rows; None = all.
    """

    model: str
    reading: Reading
    shape: NewModelShape
    epochs: int = 3
    steps: int | None = None
    lr: float | None = None
    batch_size: int = 64
    warmup: float = 0.05
    max_grad_norm: float = 1.0
    seed: int = 0
    precision: str = "fp32"
    limit: int | None = None
    eval_limit: int | None = 1000

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.lr or (0.03 if self.model == FROM_SCRATCH else 3e-4)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """AdamW, or Adafactor for a new model.

        The initial weights of a T5 differ in scale by two orders of magnitude, so no single step size suits
        them all; the steps of Adafactor are proportional to the weights.
        """
        if self.model == FROM_SCRATCH:
            return OPTIMIZERS["adafactor"](model.parameters(), lr=self.rate)
        return OPTIMIZERS["adamw"](model.parameters(), lr=self.rate, weight_decay=0.01)
