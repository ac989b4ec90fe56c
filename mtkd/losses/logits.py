"""Losses on logits: first the pure functions, then the loss terms that recipes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor, log_softmax
from torch.nn import functional

from mtkd.losses.loss_term import LossTerm, TermInput, full_precision
from mtkd.losses.term_settings import Points, Temperature, TermSettings, value_at
from mtkd.outputs import LOGITS
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.task_types.classification import Classification
from tasks.tokens.batching import Batch


@full_precision
def logits_mse(z_s: Tensor, z_t: Tensor, mask: Tensor | None = None) -> Tensor:
    """MSE(z_T, z_S), averaged over rows and outputs: Eq. 6 of MKD (Liu et al. 2020) divided by C.

    `squared_distance` is Eq. 6 itself, the sum over the outputs.

    Args:
        z_s, z_t: (B, C) logits, or (B, 2, L) of starts and ends; no gradient flows to the teacher's.
        mask: (B, L) bool, True = real token; for spans, the mean is taken over the real tokens of each row,
            then over rows.
    """
    if mask is None:
        return functional.mse_loss(z_s, z_t.detach())
    real = mask.unsqueeze(1)
    squares = (z_s - z_t.detach()).masked_fill(~real, 0.0).square()
    return (squares.sum((1, 2)) / (2 * mask.sum(1)).clamp(min=1)).mean()


@full_precision
def squared_distance(z_s: Tensor, z_t: Tensor) -> Tensor:
    """||z_T - z_S||², averaged over rows (MKD Eq. 6).

    Args:
        z_s, z_t: (B, C) logits; no gradient flows to the teacher's.
    """
    return (z_s - z_t.detach()).square().sum(-1).mean()


@full_precision
def soft_label_kl(z_s: Tensor, z_t: Tensor, temperature: float = 1.0) -> Tensor:
    """T² KL(softmax(z_T/T) || softmax(z_S/T)), averaged over distributions (Hinton et al. 2015).

    Args:
        z_s, z_t: (..., C) logits with one distribution along the last axis: (B, C), or (B, 2, L) for the mean
            over starts and ends; no gradient flows to the teacher's.
        temperature: T > 0.
    """
    student, teacher = (log_softmax(z.flatten(0, -2) / temperature, dim=-1) for z in (z_s, z_t.detach()))
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def both_logits(inputs: TermInput) -> tuple[Tensor, Tensor]:
    """The logits of student and teacher, for terms that declare both as needed."""
    student, teacher = inputs.student_outputs.logits, inputs.teacher_outputs.logits
    assert student is not None and teacher is not None, "the term declares both as needed"
    return student, teacher


class LogitsMSE(LossTerm):
    """`logits_mse`: the squared difference of student and teacher logits (MKD Eq. 6-7). Averaged over: rows.

    Args:
        reduction: "sum" or "mean" over the outputs of a row.
    """

    class Settings(TermSettings):
        """Squared difference of student and teacher logits (MKD).

        Attributes:
            reduction: whether the squares of a row's outputs are added (`sum`, MKD Eq. 6) or averaged
                (`mean`, which divides by the number of classes); for spans, they are
                always averaged over the tokens.
        """

        reduction: Literal["sum", "mean"] = "sum"

    student_need = teacher_need = LOGITS

    def __init__(self, reduction: Literal["sum", "mean"] = "sum"):
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise UserError(f"`reduction={reduction!r}` is not valid", expected="'sum' or 'mean'")
        self._is_sum = reduction == "sum"

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = both_logits(inputs)
        if inputs.task.type.predicts_spans:
            return logits_mse(student, teacher, inputs.student_outputs.mask) * len(student)
        compare = squared_distance if self._is_sum else logits_mse
        return compare(student, teacher) * len(student)


class SoftLabels(LossTerm):
    """`soft_labels`: KL divergence from the teacher's softened probabilities; MSE for scores.

    Averaged over: rows.
    """

    class Settings(TermSettings):
        """T² KL divergence of softened probabilities; MSE for tasks whose outputs are scores.

        Attributes:
            temperature: the number that logits are divided by before the softmax; or a schedule: points
                [fraction of the steps after slow build, value].
        """

        temperature: Temperature = 1.0

    student_need = teacher_need = LOGITS

    def __init__(self, temperature: float | Points = 1.0):
        super().__init__()
        self._temperature = temperature

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = both_logits(inputs)
        softmax_logits = inputs.task.type.softmax_logits
        z_s, z_t = softmax_logits(student), softmax_logits(teacher)
        if z_s is None or z_t is None:
            return logits_mse(student, teacher) * len(student)
        return soft_label_kl(z_s, z_t, value_at(self._temperature, inputs.progress)) * len(student)


class Labels(LossTerm):
    """`labels`: the task's own loss on labels, without a teacher. Averaged over: labelled rows.

    Attributes:
        class_weights: `classify` task -> (C,) weights of its classes.
    """

    class Settings(TermSettings):
        """The task's own loss on labels."""

    needs_labels: ClassVar[bool] = True
    student_need = LOGITS
    class_weights: Mapping[str, Tensor] = {}

    def num_items(self, task: Task, batch: Batch) -> int:
        return task.type.count_items(task, batch.labels, batch.groups)

    def forward(self, inputs: TermInput) -> Tensor:
        assert inputs.student_outputs.logits is not None, "the term declares them as needed"
        task, batch = inputs.task, inputs.batch
        if task.name in self.class_weights and isinstance(task.type, Classification):
            weights = self.class_weights[task.name].to(batch.labels.device)
            return task.type.weighted_loss(inputs.student_outputs.logits, batch.labels, weights).total
        return task.type.loss(task, inputs.student_outputs.logits, batch.labels, batch.groups).total
