"""Loss on a selected part of the teacher's hidden states (Liu et al. 2021)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from mtkd.losses.compatibility import hidden_widths, pairs_of, projections_of
from mtkd.losses.layer_maps import LayerPairs, named_map_pairs
from mtkd.losses.layered import LayeredTerm, Projections, joined_tokens
from mtkd.losses.loss_term import ModelPair, TermInput, full_precision
from mtkd.losses.term_settings import Projection, TermSettings
from mtkd.outputs import ModelOutput, OutputSpec
from mtkd.selection import ActivationRule, Selection, TokenRule
from mtkd.teachers.hidden_selection import kept_counts
from tasks.common.errors import UserError, counted
from tasks.task import Task
from tasks.tokens.batching import Batch


@full_precision
def selected_mse(h_s: Tensor, h_t: Tensor, activations: Tensor, valid: Tensor) -> Tensor:
    """MSE(M * H_S, M * H_T) over kept activations, averaged over the kept tokens (Liu et al. 2021, Eq. 3).

    Args:
        h_s, h_t: (B, n, d) states of the kept tokens, of the same width; no gradient flows to h_t.
        activations: (B, n, d) bool, True = the activation is kept.
        valid: (B, n) bool, True = a kept token.
    """
    selected = activations & valid.unsqueeze(-1)
    squared = (h_s - h_t.detach()).masked_fill(~selected, 0.0).square().sum(-1)
    per_token = squared / selected.sum(-1).clamp(min=1)
    return per_token.sum() / valid.sum().clamp(min=1)


class HiddenKnowledge(LayeredTerm):
    """`hidden_knowledge`: `selected_mse` of H_S W and H_T, summed over layer pairs (Liu et al. 2021, Eq. 3).

    Averaged over: kept tokens.

    Args:
        pairs: (student layer, teacher layer) pairs.
        selection: which part of the teacher's hidden states is kept.
        projection: W, without bias.
    """

    class Settings(TermSettings):
        """MSE on a selected part of the teacher's hidden states, summed over layer pairs (Liu et al. 2021).

        Attributes:
            top: L_top, the teacher layer paired with the student's last layer, or a fraction of the teacher's
                layers (None = the last layer). Layer l of N student layers is paired with the teacher layer
                g(l) = floor(l top / N + 1/2), and embeddings (l = 0) with embeddings.
            depth: N_D, how many of these layer pairs to keep, counted from the top; None = all.
            tokens: N_L, how many tokens to keep per row at most; None = all.
            token_selection: which tokens to keep: the first (`left`), or those that [CLS] attends to most,
                either at the pair's own teacher layer (`att`, or `att-no-sep` without [SEP]), or as if `top`
                were the last layer (`att-last-no-sep`).
            width: N_W, the fraction of each vector's activations to keep.
            activation_selection: which activations to keep: the largest of each vector (`magnitude`), or
                the same ones in all vectors: evenly spaced ones (`uniform`), or ones drawn at `random`, which
                follow `train.seed`.
        """

        top: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | None = None
        depth: PositiveInt | None = None
        tokens: PositiveInt | None = None
        token_selection: TokenRule = "att-last-no-sep"
        width: float = Field(1.0, gt=0, le=1)
        activation_selection: ActivationRule = "magnitude"
        projection: Projection = "shared"

    def __init__(self, pairs: LayerPairs, selection: Selection, projection: Projections):
        super().__init__(pairs, ["hidden"])
        self.selection, self.projection = selection, projection
        teacher_layers = frozenset(layer for _, layer in pairs)
        self.teacher_need = OutputSpec(selected=teacher_layers, selection=selection)

    @classmethod
    def from_settings(cls, name: str, settings: Any, models: ModelPair) -> Self:
        pairs_of(name, [(0, 0)], models)  # refuses models without layers
        s = settings
        n = models.student.layers
        m = models.teacher.layers
        if n > m:
            raise UserError(
                f"the student has {counted(n, 'layer')}, but the teacher only {m}",
                expected=f"up to {counted(m, 'layer')}: the term {name!r} compares each with another one",
                hint="use `student.transformer.layers=N`",
            )
        top, depth = _top_layer(s.top, n, m), s.depth or n + 1
        for key, value, lowest, highest in (("top", top, n, m), ("depth", depth, 1, n + 1)):
            if not lowest <= value <= highest:
                raise UserError(
                    f"terms.{name}.{key} = {value} does not fit {n} student layers and {m} teacher layers",
                    expected=f"{lowest} to {highest}",
                    hint=f"use `terms.{name}.{key}=N`",
                )
        all_pairs = [(0, 0), *named_map_pairs(f"top:{top}", n, m)]
        pairs = pairs_of(name, all_pairs[n + 1 - depth :], models)
        scored: list[tuple[int, int]] = []  # (teacher layer, the layer whose attention ranks its tokens)
        if s.tokens is not None and s.token_selection != "left":
            highest_ranking = m if s.token_selection == "att-last-no-sep" else top
            ranking_layer_of = {0: 0, **dict(named_map_pairs(f"top:{highest_ranking}", n, m))}
            # The embedding layer has no attention, so the attention of the first layer is used for it.
            scored = [(layer_t, max(1, ranking_layer_of[layer_s])) for layer_s, layer_t in pairs]
        seed = models.seed if s.activation_selection == "random" else None
        rules = s.tokens, s.token_selection, s.width, s.activation_selection
        selection = Selection(*rules, tuple(scored), seed)
        widths = hidden_widths(name, models, pairs)
        return cls(pairs, selection, projections_of(name, s.projection, pairs, widths))

    def num_items(self, task: Task, batch: Batch) -> int:
        """Count the kept tokens of the batch."""
        return int(kept_counts(joined_tokens(batch), self.selection).sum())

    def token_positions(self, layer: int, teacher: ModelOutput) -> Tensor | None:
        """The tokens that the teacher's part of the paired layer keeps."""
        pairs = dict(self.layer_pairs)
        selected = teacher.selected.get(pairs[layer]) if layer in pairs else None
        return selected.positions if selected else None

    def pair_loss(self, inputs: TermInput, layer_s: int, layer_t: int) -> Tensor:
        """The mean over kept tokens for one pair of layers."""
        selected = inputs.teacher_outputs.selected[layer_t]
        hidden = inputs.student_outputs.hidden[layer_s]
        if layer_s not in inputs.student_outputs.positions:
            positions = selected.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
            hidden = torch.gather(hidden, 1, positions)
        projected = self.projection(hidden, layer_s)
        return selected_mse(projected, selected.values, selected.activations, selected.valid)


def _top_layer(top: int | float | None, student: int, teacher: int) -> int:
    """L_top as a layer; a fraction is rounded half up, and is at least as many layers as the student has."""
    if isinstance(top, float):
        return max(min(student, teacher), math.floor(top * teacher + 0.5))
    return top or teacher
