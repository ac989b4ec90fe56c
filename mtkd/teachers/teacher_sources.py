"""Sources of teacher outputs during training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import LOGITS, ModelOutput, OutputSpec
from mtkd.teachers.hidden_selection import select_hidden_states
from tasks.task import Task
from tasks.tokens.batching import Batch, to_device


class TeacherSource(Protocol):
    """Provides the teacher's outputs for a batch; `offers` lists the outputs available."""

    offers: OutputSpec

    def outputs(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """Return the teacher's outputs for one batch.

        Args:
            need: the outputs needed, if fewer than the source was created for; it may return more.
        """
        ...


class OnlineTeacher:
    """Runs the teacher model on every batch."""

    def __init__(self, model: MultiTaskModel, need: OutputSpec, precision: str = "fp32"):
        self.model = model.eval().requires_grad_(False)
        self.offers = model.offers
        self._need, self._bf16 = need, precision == "bf16"

    def outputs(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """Run the teacher without gradients, up to the last layer needed."""
        need = self._need if need is None else need
        inputs = batch.teacher or batch.inputs
        device = batch.labels.device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            output = self.model(inputs, task.head, need.before_selection)
        if need.selection is None:
            return output
        assert inputs.joined is not None, "selecting hidden states needs rows read as one sequence"
        selected = select_hidden_states(output, need, inputs.joined, self.model.encoder.spec.heads)
        # Drop the layers that were needed only for the selection.
        layer_outputs = {
            kind: {layer: by_layer[layer] for layer in sorted(getattr(need, kind))}
            for kind in ("hidden", "query", "key")
            if (by_layer := getattr(output, kind))
        }
        return replace(output, selected=selected, **layer_outputs)


class IndexedLogits(Protocol):
    """Logits of many rows: an array, or something that reads or computes those of some rows."""

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def __getitem__(self, indices: np.ndarray, /) -> np.ndarray:
        """The logits of some rows."""
        ...


class CachedLogits:
    """Returns precomputed logits, task -> (n, C) or (n, 2, L), without running the teacher.

    Args:
        logits: task -> what is indexed by (b,) row numbers.
    """

    offers = LOGITS

    def __init__(self, logits: Mapping[str, IndexedLogits]):
        self.logits = logits

    def outputs(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """Return the precomputed logits for the rows of a batch."""
        rows = torch.from_numpy(self.logits[task.name][batch.indices])
        if task.type.predicts_spans and batch.inputs.joined is not None:
            rows = rows[..., : batch.inputs.joined.ids.shape[1]]
        return ModelOutput(logits=to_device(rows, batch.labels.device))
