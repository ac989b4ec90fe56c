"""Losses on logits: pure functions, then the terms that a recipe names."""

from __future__ import annotations

from torch import Tensor, log_softmax
from torch.nn import functional

from mtkd.losses.term import LossTerm, TermInput, full_precision
from mtkd.records import LOGITS
from mtkd.terms import Points, value_at
from tasks.batching import Batch
from tasks.kinds import hard_loss
from tasks.task import Task


@full_precision
def logits_mse(z_s: Tensor, z_t: Tensor) -> Tensor:
    """MSE(z_T, z_S), the mean over rows and outputs (MKD Eq. 6; the paper writes the squared norm).

    Args:
        z_s, z_t: (B, C) student and teacher logits; the teacher's are constants.
    """
    return functional.mse_loss(z_s, z_t.detach())


@full_precision
def soft_label_kl(z_s: Tensor, z_t: Tensor, temperature: float = 1.0) -> Tensor:
    """T² KL(softmax(z_T/T) || softmax(z_S/T)), the mean over rows (Hinton et al. 2015).

    Args:
        z_s, z_t: (B, C) student and teacher logits; the teacher's are constants.
        temperature: T > 0.
    """
    student = log_softmax(z_s / temperature, dim=-1)
    teacher = log_softmax(z_t.detach() / temperature, dim=-1)
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def _both_logits(given: TermInput) -> tuple[Tensor, Tensor]:
    student, teacher = given.student.logits, given.teacher_signal.logits
    assert student is not None and teacher is not None, "stated as needed, so always there"
    return student, teacher


class LogitsMSE(LossTerm):
    """`logits_mse`: the student's logits go to the teacher's (MKD Eq. 6-7)."""

    student_need = teacher_need = LOGITS

    def forward(self, given: TermInput) -> Tensor:
        student, teacher = _both_logits(given)
        return logits_mse(student, teacher) * len(student)


class SoftLabels(LossTerm):
    """`soft_labels`: KL with the teacher's softened probabilities; MSE where the task is a score."""

    student_need = teacher_need = LOGITS

    def __init__(self, temperature: float | Points = 1.0):
        super().__init__()
        self._temperature = temperature

    def forward(self, given: TermInput) -> Tensor:
        student, teacher = _both_logits(given)
        if student.shape[-1] == 1:
            return logits_mse(student, teacher) * len(student)
        return soft_label_kl(student, teacher, value_at(self._temperature, given.progress)) * len(student)


class Labels(LossTerm):
    """`labels`: the task's own loss on rows that have a label (no teacher)."""

    student_need = LOGITS

    def units(self, task: Task, batch: Batch) -> int:
        blank = batch.labels.new_zeros(len(batch), task.n_outputs)
        return int(hard_loss(task, blank, batch.labels, batch.groups).count)

    def forward(self, given: TermInput) -> Tensor:
        assert given.student.logits is not None, "stated as needed, so always there"
        return hard_loss(given.task, given.student.logits, given.batch.labels, given.batch.groups).total
