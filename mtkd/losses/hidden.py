"""Losses on hidden states: pure functions, then the terms that a recipe names."""

from __future__ import annotations

from torch import Tensor, nn

from mtkd.losses.term import LossTerm, TermInput, wide
from mtkd.records import Need
from tasks.batching import Batch
from tasks.task import Task


def masked_mse(h_s: Tensor, h_t: Tensor, mask: Tensor) -> Tensor:
    """The mean over valid tokens and width of (H_S - H_T)²; 0 if no token is valid.

    Args:
        h_s, h_t: (B, L, d) hidden states of one width.
        mask: (B, L) bool, True = real token.
    """
    squared = (wide(h_s) - wide(h_t)).square().mean(-1)
    return squared.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


class HiddenMSE(LossTerm):
    """`hidden_mse`: MSE(H_S W, H_T) of one pair of layers, W learnable without bias; unit: a real token."""

    def __init__(self, student_layer: int, teacher_layer: int, student_width: int, teacher_width: int):
        super().__init__()
        self.student_layer, self.teacher_layer = student_layer, teacher_layer
        self.student_need = Need(hidden=frozenset({student_layer}), tokens=True)
        self.teacher_need = Need(hidden=frozenset({teacher_layer}), tokens=True)
        self.projection = nn.Linear(student_width, teacher_width, bias=False)

    def units(self, task: Task, batch: Batch) -> int:
        assert batch.inputs.joint is not None, "token-aligned students read jointly"
        return int(batch.inputs.joint.mask.sum())

    def forward(self, given: TermInput) -> Tensor:
        mask = given.student.mask
        assert mask is not None, "hidden states come with their mask"
        projected = self.projection(given.student.hidden[self.student_layer])
        return masked_mse(projected, given.teacher_signal.hidden[self.teacher_layer], mask) * mask.sum()
