"""Loss on the part of the teacher's hidden states that is kept (Liu et al. 2021): function, then term."""

from __future__ import annotations

import torch
from torch import Tensor

from mtkd.losses.base import TermInput, full_precision
from mtkd.losses.layer_maps import Pairs
from mtkd.losses.layered import LayeredTerm, Projections
from mtkd.outputs import OutputSpec
from mtkd.selection import Selection
from mtkd.teachers.hidden_selection import kept_counts
from tasks.batching import Batch
from tasks.task import Task


@full_precision
def selected_mse(h_s: Tensor, h_t: Tensor, units: Tensor, valid: Tensor) -> Tensor:
    """MSE(M * H_S, M * H_T) over what is kept: the mean over kept tokens of the mean over their kept units.

    Args:
        h_s, h_t: (B, n, d) the kept tokens' states, of one width; h_t is a constant.
        units: (B, n, d) bool, True = this activation is kept.
        valid: (B, n) bool, True = a kept token.
    """
    kept = units & valid.unsqueeze(-1)
    squared = (h_s - h_t.detach()).masked_fill(~kept, 0.0).square().sum(-1)
    each = squared / kept.sum(-1).clamp(min=1)
    return each.sum() / valid.sum().clamp(min=1)


class HiddenKnowledge(LayeredTerm):
    """`hidden_knowledge`: `selected_mse` of H_S W, summed over layers; unit: a kept token.

    Args:
        pairs: (student layer, teacher layer).
        selection: what is kept of the teacher's.
        projection: W, without bias.
    """

    def __init__(self, pairs: Pairs, selection: Selection, projection: Projections):
        super().__init__(pairs, ["hidden"])
        self.selection, self.projection = selection, projection
        theirs = frozenset(layer for _, layer in pairs)
        self.teacher_need = OutputSpec(selected=theirs, selection=selection)

    def num_items(self, task: Task, batch: Batch) -> int:
        """Kept tokens of the batch."""
        assert batch.inputs.joined is not None, "token-aligned students read jointly"
        return int(kept_counts(batch.inputs.joined, self.selection).sum())

    def pair_loss(self, given: TermInput, number: int, mine: int, theirs: int) -> Tensor:
        """The mean over kept tokens for one pair of layers."""
        kept = given.teacher_signal.selected[theirs]
        hidden = given.student.hidden[mine]
        where = kept.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        projected = self.projection(torch.gather(hidden, 1, where), mine)
        return selected_mse(projected, kept.values, kept.units, kept.valid)
