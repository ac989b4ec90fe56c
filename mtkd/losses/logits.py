"""Losses on logits: pure functions, then the terms that a recipe names."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, log_softmax
from torch.nn import functional

from mtkd.losses.base import LossTerm, TermInput, full_precision
from mtkd.losses.term_settings import Points, Temperature, TermSettings, value_at
from mtkd.outputs import LOGITS
from tasks.batching import Batch
from tasks.task import Task


@full_precision
def logits_mse(z_s: Tensor, z_t: Tensor, mask: Tensor | None = None) -> Tensor:
    """MSE(z_T, z_S), the mean over rows and outputs (MKD Eq. 6; the paper writes the squared norm).

    Args:
        z_s, z_t: (B, C), or (B, 2, L) of starts and ends; the teacher's are constants.
        mask: (B, L) bool, True = real token; of spans the mean is over each row's real tokens, then rows.
    """
    if mask is None:
        return functional.mse_loss(z_s, z_t.detach())
    real = mask.unsqueeze(1)
    squares = (z_s - z_t.detach()).masked_fill(~real, 0.0).square()
    return (squares.sum((1, 2)) / (2 * mask.sum(1)).clamp(min=1)).mean()


@full_precision
def soft_label_kl(z_s: Tensor, z_t: Tensor, temperature: float = 1.0) -> Tensor:
    """T² KL(softmax(z_T/T) || softmax(z_S/T)), the mean over distributions (Hinton et al. 2015).

    Args:
        z_s, z_t: (..., C), one distribution per last axis: (B, C), or (B, 2, L) for the mean of starts and
            ends; the teacher's are constants.
        temperature: T > 0.
    """
    student, teacher = (log_softmax(z.flatten(0, -2) / temperature, dim=-1) for z in (z_s, z_t.detach()))
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def both_logits(given: TermInput) -> tuple[Tensor, Tensor]:
    """The logits of student and teacher, for terms that stated both as needed."""
    student, teacher = given.student.logits, given.teacher_signal.logits
    assert student is not None and teacher is not None, "stated as needed, so always there"
    return student, teacher


class LogitsMSE(LossTerm):
    """`logits_mse`: the student's logits go to the teacher's (MKD Eq. 6-7)."""

    student_need = teacher_need = LOGITS

    def forward(self, given: TermInput) -> Tensor:
        student, teacher = both_logits(given)
        mask = given.student.mask if given.task.type.predicts_spans else None
        return logits_mse(student, teacher, mask) * len(student)


class SoftLabels(LossTerm):
    """`soft_labels`: KL with the teacher's softened probabilities; MSE where the task is a score."""

    class Settings(TermSettings):
        """T² KL of softened probabilities; MSE where the task is a score."""

        temperature: Temperature = 1.0

    student_need = teacher_need = LOGITS

    def __init__(self, temperature: float | Points = 1.0):
        super().__init__()
        self._temperature = temperature

    def forward(self, given: TermInput) -> Tensor:
        student, teacher = both_logits(given)
        arranged = given.task.type.softmax_logits
        z_s, z_t = arranged(student), arranged(teacher)
        if z_s is None or z_t is None:
            return logits_mse(student, teacher) * len(student)
        return soft_label_kl(z_s, z_t, value_at(self._temperature, given.progress)) * len(student)


class Labels(LossTerm):
    """`labels`: the task's own loss on rows that have a label (no teacher)."""

    needs_labels: ClassVar[bool] = True
    student_need = LOGITS

    def num_items(self, task: Task, batch: Batch) -> int:
        return task.type.count_items(task, batch.labels, batch.groups)

    def forward(self, given: TermInput) -> Tensor:
        assert given.student.logits is not None, "stated as needed, so always there"
        task, batch = given.task, given.batch
        return task.type.loss(task, given.student.logits, batch.labels, batch.groups).total
