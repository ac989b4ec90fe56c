"""Contrastive loss between rows: first the pure function, then the loss term that recipes use."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mtkd.losses.compatibility import projections_of, vector_layers, widths_of
from mtkd.losses.hidden import unit_vectors
from mtkd.losses.layered import Projections, RowVector, SampleTerm
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import SharedProjection, TermSettings, applies_to
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import Batch


@full_precision
def sample_contrastive(
    g_s: Tensor, g_t: Tensor, labels: Tensor, temperature: float = 0.07, normalize: bool = True
) -> Tensor:
    """Supervised contrastive loss on student and teacher rows (MLKD-BERT Eq. 16-17, Khosla et al. 2020).

    With H = [G_S; G_T], this is the mean over anchors i, and over the other rows p with the label of i, of
    -log(exp(h_i·h_p / ρ) / sum_a exp(h_i·h_a / ρ)), where a runs over all rows but i. (The paper prints the
    division by ρ outside exp, where it would cancel.) Anchors without a positive are skipped. Returns 0 if
    none is left.

    Args:
        g_s, g_t: (B, d) one vector per row, of the same width; no gradient flows to g_t.
        labels: (B,) classes; rows with NaN have no label and are skipped.
        temperature: ρ > 0.
        normalize: True scales the vectors h to length 1.
    """
    labelled = ~labels.isnan()
    h = torch.cat([g_s[labelled], g_t[labelled].detach()])
    h = unit_vectors(h) if normalize else h
    label = labels[labelled].repeat(2)
    is_self = torch.eye(len(h), dtype=torch.bool, device=h.device)
    positive = (label.unsqueeze(0) == label.unsqueeze(1)) & ~is_self
    logits = h @ h.mT / temperature
    log_denominator = logits.masked_fill(is_self, -torch.inf).logsumexp(-1, keepdim=True)
    count = positive.sum(-1)
    by_anchor = (log_denominator - logits).masked_fill(~positive, 0.0).sum(-1) / count.clamp(min=1)
    return by_anchor.sum() / (count > 0).sum().clamp(min=1)


class SampleContrastive(SampleTerm):
    """`sample_contrastive`: draw rows of one class together and push others apart (MLKD-BERT Eq. 16-17).

    Averaged over: labelled rows. A micro-batch with two or more of them gives the mean of the loss over its
    anchors, which are the vectors of its labelled rows from both models, weighted by the number of these
    rows. A micro-batch with fewer is skipped.

    Args:
        vector, layer_s, layer_t: see SampleTerm.
        projection: the map from student to teacher width (W_g), without bias, or none.
        bins: the number of classes that scores are sorted into; None for tasks with classes.
    """

    class Settings(TermSettings):
        """Supervised contrastive loss between rows of student and teacher (MLKD-BERT).

        Attributes:
            row_vector: the vector of a row: the last layer's first token (`cls`), or the vector that the task
                heads read (`pooled`).
            temperature: the number that dot products are divided by before the softmax.
            normalize: whether to scale the vectors to length 1.
            bins: the number of classes of equal width that the scores of a `regress` task are sorted into,
                over the `range` that the task must declare; None = such tasks are refused.
            projection: whether one matrix W_g maps the student's vectors to the teacher's width (`shared`),
                or there is none (`none`, for equal widths).
        """

        row_vector: RowVector = "cls"
        temperature: float = Field(0.07, gt=0)
        normalize: bool = True
        bins: int | None = Field(None, gt=1)
        projection: SharedProjection = "shared"

    needs_labels: ClassVar[bool] = True
    comparison = "a contrast between rows"

    def __init__(
        self,
        vector: str,
        layer_s: int,
        layer_t: int,
        projection: Projections,
        temperature: float,
        normalize: bool,
        bins: int | None,
    ):
        super().__init__(vector, layer_s, layer_t)
        self.projection = projection
        self._temperature = temperature
        self._normalize = normalize
        self._bins = bins

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        for task in models.tasks:
            if applies_to(settings.task_types, task):
                _require_classes(name, task, settings.bins)
        widths = widths_of(models, "pooled_size" if settings.row_vector == "pooled" else "hidden_size")
        layers = vector_layers(name, settings.row_vector, models)
        projection = projections_of(name, settings.projection, [layers], widths)
        s = settings
        return cls(s.row_vector, *layers, projection, s.temperature, s.normalize, s.bins)

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the labelled rows; 0 if there are fewer than two."""
        labelled = int((~batch.labels.isnan()).sum())
        return labelled if super().num_items(task, batch) and labelled > 1 else 0

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = self.vectors(inputs)
        labels = inputs.task.type.row_classes(inputs.task, inputs.batch.labels, self._bins)
        projected = self.projection(student, 0)
        loss = sample_contrastive(projected, teacher, labels, self._temperature, self._normalize)
        return loss * inputs.num_items


def _require_classes(name: str, task: Task, bins: int | None) -> None:
    """Refuse a task whose labels are neither classes nor scores that can be sorted into classes."""
    if bins is not None and "range" in task.type.fields and task.range is None:
        raise UserError(
            f"terms.{name}.bins={bins} divides the range of scores into {bins} classes, but the task "
            f"{task.name!r} declares no range",
            expected="`range = [lowest, highest]` in the task's file",
            hint=f'or leave such tasks out of the term with `terms.{name}.task_types=["classify", "rank"]`',
        )
    if not task.type.has_classes(bins):
        binned = f"`terms.{name}.bins=5` sorts the scores into classes; "
        raise UserError(
            f"the term {name!r} contrasts classes, but {task.name!r} has {task.type.outputs}",
            hint=(binned if task.type.has_classes(5) else "")
            + f'`terms.{name}.task_types=["classify", "rank"]` leaves such tasks out of the term',
        )
