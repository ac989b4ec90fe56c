"""Loss on the part of the teacher's hidden states that is kept (Liu et al. 2021)."""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from mtkd.losses.base import ModelPair, TermInput, full_precision
from mtkd.losses.compatibility import hidden_widths, pairs_of, projections_of
from mtkd.losses.layer_maps import Pairs, spread
from mtkd.losses.layered import LayeredTerm, Projections
from mtkd.losses.term_settings import Projection, TermSettings
from mtkd.outputs import OutputSpec
from mtkd.selection import Selection, TokenRule, UnitRule
from mtkd.teachers.hidden_selection import kept_counts
from tasks.batching import Batch
from tasks.errors import UserError
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
    """`hidden_knowledge`: `selected_mse` of H_S W, summed over layers; item: a kept token.

    Args:
        pairs: (student layer, teacher layer).
        selection: what is kept of the teacher's.
        projection: W, without bias.
    """

    class Settings(TermSettings):
        """MSE of the part of the teacher's hidden states that is kept (Liu et al. 2021), summed over layers.

        Attributes:
            top: L_top, the teacher layer that the student's last looks at; None = the last. The others are
                spread evenly below it, the embeddings look at the embeddings.
            depth: N_D, how many of these pairs are kept, from the top; None = all.
            tokens: N_L, the most tokens kept of a row; None = all.
            by: which tokens: the first (`left`), or those that [CLS] attends to most: at the pair's own
                teacher layer (`att`, and `att-no-sep` without [SEP]), or as if `top` were the last layer
                (`att-last-no-sep`).
            width: N_W, the share of the activations kept.
            units: which: the largest of each vector (`magnitude`), or the same of all (`uniform`, `random`).
        """

        top: PositiveInt | None = None
        depth: PositiveInt | None = None
        tokens: PositiveInt | None = None
        by: TokenRule = "att-last-no-sep"
        width: float = Field(1.0, gt=0, le=1)
        units: UnitRule = "magnitude"
        projection: Projection = "shared"

    def __init__(self, pairs: Pairs, selection: Selection, projection: Projections):
        super().__init__(pairs, ["hidden"])
        self.selection, self.projection = selection, projection
        teacher_layers = frozenset(layer for _, layer in pairs)
        self.teacher_need = OutputSpec(selected=teacher_layers, selection=selection)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs_of(name, [(0, 0)], models)
        s, n, last = settings, models.student.layers, models.teacher.layers
        top, depth = s.top or last, s.depth or n + 1
        for key, value, least, most in (("top", top, n, last), ("depth", depth, 1, n + 1)):
            if not least <= value <= most:
                raise UserError(
                    f"terms.{name}.{key} = {value}, with {n} student layers and {last} teacher layers",
                    expected=f"{least} to {most}",
                    hint=f"--set terms.{name}.{key}=N",
                )
        pairs = pairs_of(name, [(0, 0), *spread(f"top:{top}", n, last)][n + 1 - depth :], models)
        scored: list[tuple[int, int]] = []
        if s.tokens is not None and s.by != "left":
            ranking = dict([(0, 0), *spread(f"top:{last if s.by == 'att-last-no-sep' else top}", n, last)])
            # The embedding layer has no attention: the first layer's stands in for it.
            scored = [(layer_t, max(1, ranking[layer_s])) for layer_s, layer_t in pairs]
        selection = Selection(s.tokens, s.by, s.width, s.units, tuple(scored))
        return cls(pairs, selection, projections_of(name, s.projection, pairs, hidden_widths(models, pairs)))

    def num_items(self, task: Task, batch: Batch) -> int:
        """Kept tokens of the batch."""
        assert batch.inputs.joined is not None, "token-aligned students read jointly"
        return int(kept_counts(batch.inputs.joined, self.selection).sum())

    def pair_loss(self, given: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over kept tokens for one pair of layers."""
        kept = given.teacher_signal.selected[layer_t]
        hidden = given.student.hidden[layer_s]
        where = kept.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        projected = self.projection(torch.gather(hidden, 1, where), layer_s)
        return selected_mse(projected, kept.values, kept.units, kept.valid)
