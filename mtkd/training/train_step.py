"""A model and the objective that it is trained with, as one module."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import ModelOutput
from tasks.task import Task
from tasks.tokens.batching import Batch


class TrainStep(nn.Module):
    """A model and the objective that it is trained with, so that accelerate wraps all weights together.

    Args:
        model: the model to train: a student, or a teacher that is refined.
        bf16: run both under bfloat16 autocast.
    """

    def __init__(self, model: MultiTaskModel, objective: Objective, bf16: bool = False):
        super().__init__()
        self.model = model
        self.objective = objective
        self._bf16 = bf16

    def forward(
        self,
        task: Task,
        batch: Batch,
        teacher: ModelOutput | None,
        num_items: list[int],
        progress: float,
        batch_items: list[int],
    ) -> tuple[Tensor, Tensor]:
        """The objective for one micro-batch; see `Objective.forward`."""
        with torch.autocast(batch.labels.device.type, torch.bfloat16, enabled=self._bf16):
            positions = self.objective.token_positions(self.model.encoder.spec.layers, teacher)
            inputs = replace(batch.inputs, needed=positions)
            student = self.model(inputs, task.head, self.objective.needs(progress)[0])
            loss, values = self.objective(task, batch, student, teacher, num_items, progress, batch_items)
        return loss.float(), values
