"""Decoupled knowledge distillation on logits (Zhao et al. 2022, CVPR)."""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from mtkd.losses.logits import both_logits, logits_mse
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import Points, Temperature, TermSettings, applies_to, value_at
from mtkd.outputs import LOGITS
from tasks.common.errors import UserError
from tasks.task import Task


@full_precision
def decoupled_kl(
    z_s: Tensor,
    z_t: Tensor,
    target: Tensor,
    alpha: float = 1.0,
    beta: float | Tensor = 8.0,
    temperature: float = 4.0,
) -> Tensor:
    """T² (alpha TCKD + beta NCKD), averaged over rows (Zhao et al. 2022, Eq. 7).

    With p = softmax(z/T) and the target class t, TCKD is the KL divergence of [p_t, 1 - p_t] between teacher
    and student, and NCKD that of the softmax over all classes except t. With alpha = 1 and beta = 1 - p_t of
    the teacher, the sum is the KL divergence over all classes, T² KL(p_T || p_S) (Eq. 6). With two classes
    NCKD is 0.

    Args:
        z_s, z_t: (B, C) logits with C > 1, or (B, 2, L) for the mean over starts and ends; no gradient flows
            to the teacher's.
        target: (B,) or (B, 2) int64, the target class of each row.
        beta: one number, or (B,) one per row.
        temperature: T > 0.
    """
    chosen = torch.zeros_like(z_s.flatten(0, -2), dtype=torch.bool).scatter_(1, target.reshape(-1, 1), True)
    binary, rest = [], []
    for z in (z_s, z_t.detach()):
        scaled = z.flatten(0, -2) / temperature
        log_p = scaled.log_softmax(-1)
        log_rest = log_p.masked_fill(chosen, -torch.inf).logsumexp(-1)
        binary.append(torch.stack([log_p[chosen], log_rest], -1))
        rest.append(scaled.masked_fill(chosen, torch.finfo(z.dtype).min).log_softmax(-1))
    tckd = _kl(*binary).sum(-1)
    nckd = _kl(*rest).masked_fill(chosen, 0.0).sum(-1)
    return (alpha * tckd + beta * nckd).mean() * temperature**2


def _kl(log_s: Tensor, log_t: Tensor) -> Tensor:
    """The summands of KL(teacher || student), given log-probabilities."""
    return log_t.exp() * (log_t - log_s)


class DecoupledLogits(LossTerm):
    """`decoupled_logits`: `decoupled_kl` with the label as the target class (Zhao et al. 2022, Eq. 7).

    Averaged over: rows.

    For rows without a label, the target class is the teacher's most probable class. For tasks with one output
    per row (`regress`, `rank`) the loss is the MSE of the outputs, as in `soft_labels`. Tasks with several
    labels per row (`multilabel`) are refused.
    """

    class Settings(TermSettings):
        """T² KL divergence of softened probabilities, split into two weighted parts (Zhao et al. 2022).

        Attributes:
            alpha: weight of the part that compares the target class with all others.
            beta: weight of the part among the other classes; the paper uses 8 (CIFAR-100) or 0.5 (ImageNet).
            temperature: the number that logits are divided by before the softmax; or a schedule: points
                [fraction of the steps after slow build, value].
        """

        alpha: NonNegativeFloat = 1.0
        beta: NonNegativeFloat = 8.0
        temperature: Temperature = 4.0

    student_need = teacher_need = LOGITS

    def __init__(self, alpha: float = 1.0, beta: float = 8.0, temperature: float | Points = 4.0):
        super().__init__()
        self._alpha = alpha
        self._beta = beta
        self._temperature = temperature

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        for task in models.tasks:
            if applies_to(settings.task_types, task):
                _require_target_class(name, task)
        return super().from_settings(name, settings, models)

    def forward(self, inputs: TermInput) -> Tensor:
        student, teacher = both_logits(inputs)
        if inputs.task.type.softmax_logits(student) is None:
            return logits_mse(student, teacher) * len(student)
        labels = inputs.batch.labels
        target = torch.where(labels.isnan(), teacher.argmax(-1), labels.nan_to_num().long())
        temperature = value_at(self._temperature, inputs.progress)
        return decoupled_kl(student, teacher, target, self._alpha, self._beta, temperature) * len(student)


def _require_target_class(name: str, task: Task) -> None:
    """Refuse a task whose rows do not have one target class, such as `multilabel` tasks."""
    is_score = task.type.softmax_logits(torch.zeros(1, task.type.n_outputs(task))) is None
    if task.type.has_head and not (is_score or task.type.predicts_spans or task.type.has_classes(None)):
        raise UserError(
            f"the term {name!r} needs one target class per row, but {task.name!r} has {task.type.outputs}",
            expected="tasks with one class per row, with scores or with spans",
            hint=f"use `terms.{name}.loss=soft_labels`, or leave such tasks out of the term with "
            f'`terms.{name}.task_types=["classify"]`',
        )
