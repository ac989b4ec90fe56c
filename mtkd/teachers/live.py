"""Where a teacher's signals come from while a student trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import LOGITS, ModelOutput, OutputSpec
from mtkd.teachers.hidden_selection import select
from tasks.batching import Batch
from tasks.task import Task


class TeacherSource(Protocol):
    """Gives the teacher's signal for a batch; `offers` says what it can give."""

    offers: OutputSpec

    def signal(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """The teacher's signal for one batch.

        Args:
            need: where less is wanted than it was made for; what is there anyhow may be given all the same.
        """
        ...


class OnlineTeacher:
    """The teacher itself, run on every batch."""

    def __init__(self, model: MultiTaskModel, need: OutputSpec, precision: str = "fp32"):
        self.model = model.eval().requires_grad_(False)
        self.offers = model.offers
        self._need, self._bf16 = need, precision == "bf16"

    def signal(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """What was needed of the teacher, without gradients; layers above that are not run."""
        need = self._need if need is None else need
        inputs = batch.teacher or batch.inputs
        device = batch.labels.device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            found = self.model(inputs, task.head, need.raw)
        if need.selection is None:
            return found
        assert inputs.joined is not None, "hidden states are selected from rows that are read in one sequence"
        selected = select(found, need, inputs.joined, self.model.encoder.shape.heads)
        # What they were taken from goes.
        kept = {
            kind: {layer: found_of[layer] for layer in sorted(getattr(need, kind))}
            for kind in ("hidden", "query", "key")
            if (found_of := getattr(found, kind))
        }
        return replace(found, selected=selected, **kept)


class CachedLogits:
    """Logits computed beforehand, task -> (n, C) or (n, 2, L): the teacher is not run again."""

    offers = LOGITS

    def __init__(self, logits: Mapping[str, np.ndarray]):
        self._logits = {name: torch.from_numpy(values) for name, values in logits.items()}

    def signal(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """The stored logits of the batch's rows."""
        rows = self._logits[task.name][torch.from_numpy(batch.indices)]
        if task.type.predicts_spans and batch.inputs.joined is not None:
            rows = rows[..., : batch.inputs.joined.ids.shape[1]]
        return ModelOutput(logits=rows.to(batch.labels.device))
