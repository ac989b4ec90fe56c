"""Contrastive losses: pure functions, then the terms that a recipe names."""

from __future__ import annotations

import torch
from torch import Tensor

from mtkd.losses.base import TermInput, full_precision
from mtkd.losses.hidden import unit
from mtkd.losses.layered import Projections, SampleTerm
from tasks.batching import Batch
from tasks.task import Task


@full_precision
def sample_contrastive(
    g_s: Tensor, g_t: Tensor, labels: Tensor, temperature: float = 0.07, normalize: bool = True
) -> Tensor:
    """Supervised contrast of student and teacher rows (MLKD-BERT Eq. 16-17, Khosla et al. 2020).

    With H = [G_S; G_T], the mean over anchors i, and for each over the other rows p of its label, of
    -log(exp(h_i·h_p / ρ) / sum_a exp(h_i·h_a / ρ)), a being all other rows. (The paper prints the division by
    ρ outside exp, where it would cancel.) Anchors without a positive are left out; 0 if nothing is left.

    Args:
        g_s, g_t: (B, d) vectors of one width, a row each; g_t is a constant.
        labels: (B,) classes; NaN = none, and the row is left out altogether.
        temperature: ρ > 0.
        normalize: h has length 1.
    """
    known = ~labels.isnan()
    h = torch.cat([g_s[known], g_t[known].detach()])
    h = unit(h) if normalize else h
    label = labels[known].repeat(2)
    itself = torch.eye(len(h), dtype=torch.bool, device=h.device)
    positive = (label.unsqueeze(0) == label.unsqueeze(1)) & ~itself
    logits = h @ h.mT / temperature
    others = logits.masked_fill(itself, -torch.inf).logsumexp(-1, keepdim=True)
    count = positive.sum(-1)
    by_anchor = (others - logits).masked_fill(~positive, 0.0).sum(-1) / count.clamp(min=1)
    return by_anchor.sum() / (count > 0).sum().clamp(min=1)


class SampleContrastive(SampleTerm):
    """`sample_contrastive`: rows of one class together, others apart; unit: a labelled row.

    Args:
        vector, mine, theirs: see SampleTerm.
        projection: from student to teacher width (W_g).
        bins: classes that scores are sorted into; None for tasks with classes.
    """

    what = "a contrast between rows"

    def __init__(
        self,
        vector: str,
        mine: int,
        theirs: int,
        projection: Projections,
        temperature: float,
        normalize: bool,
        bins: int | None,
    ):
        super().__init__(vector, mine, theirs)
        self.projection = projection
        self._temperature, self._normalize, self._bins = temperature, normalize, bins

    def num_items(self, task: Task, batch: Batch) -> int:
        """Labelled rows, if there are two or more."""
        labelled = int((~batch.labels.isnan()).sum())
        return labelled if super().num_items(task, batch) and labelled > 1 else 0

    def forward(self, given: TermInput) -> Tensor:
        student, teacher = self.vectors(given)
        labels = given.task.type.row_classes(given.task, given.batch.labels, self._bins)
        projected = self.projection(student, 0)
        loss = sample_contrastive(projected, teacher, labels, self._temperature, self._normalize)
        return loss * self.num_items(given.task, given.batch)
