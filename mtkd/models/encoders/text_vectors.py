"""The vectors of single texts: what a Transformer reads and pools as a bi-encoder, and how two compare."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["cls", "pooler", "mean", "cls-of-layers"]
COMPARED_PARTS = 4  # the vectors that `compare_vectors` concatenates


def side_by_side(text_numbers: Tensor, first_position: int, *, adds_mask: bool) -> dict[str, Tensor]:
    """The arguments of a Transformer for two texts in one sequence that do not attend to each other.

    Args:
        text_numbers: (B, L) the number of each token's text, 1 or 2; 0 for padding, which attends to padding.
        first_position: the position of a text's first token.
        adds_mask: whether the attention adds its mask to the scores, instead of reading it as True or False.

    Returns:
        the attention mask (B, 1, L, L), and the positions (B, L), which are counted in each text.
    """
    first_lengths = (text_numbers == 1).sum(1, keepdim=True)
    positions = torch.arange(text_numbers.shape[1], device=text_numbers.device)
    positions = positions - (text_numbers == 2) * first_lengths
    visible = (text_numbers.unsqueeze(2) == text_numbers.unsqueeze(1)).unsqueeze(1)
    if adds_mask:
        visible = (~visible).float() * torch.finfo(torch.float32).min
    return {"attention_mask": visible, "position_ids": positions + first_position}


def pool_text(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """The vector (B, d) of the text whose tokens, special tokens included, the mask (B, L) marks.

    Args:
        states: (B, L, d) hidden states.
        pooling: "cls" = the state of the text's first token; otherwise the mean over its tokens.
    """
    if pooling == "cls":
        first = mask.int().argmax(1, keepdim=True)
        return states.gather(1, first.unsqueeze(-1).expand(-1, -1, states.shape[-1])).squeeze(1)
    weight = mask.unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


def compare_vectors(u: Tensor, v: Tensor) -> Tensor:
    """The features (B, 4 d) of two texts with the vectors u and v (B, d): [u; v; |u - v|; u * v]."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
