"""Selecting the crucial part of a teacher's hidden states (Liu et al. 2021, section 4)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mtkd.models.encoders.text_vectors import pool_text
from mtkd.outputs import EncoderOutput, OutputSpec, Selected
from mtkd.selection import Selection
from tasks.tokens.batching import Tokens

_STATIC_SEED = 0x5E1EC7  # of randomly chosen activations, together with the seed of the selection


def select_hidden_states(
    output: EncoderOutput, need: OutputSpec, tokens: Tokens, heads: int
) -> dict[int, Selected]:
    """Apply `need.selection` to the hidden states of the layers `need.selected`.

    Args:
        output: has the hidden states of those layers, and queries and keys of the layers that rank tokens.
        tokens: the input of the encoder.
        heads: number of attention heads of the encoder.
    """
    selection = need.selection
    if selection is None:
        return {}
    sources = dict(selection.scored)
    selected = {}
    for layer in sorted(need.selected):
        ranks = None
        if selection.ranked:
            source = sources[layer]
            texts = tokens.mask if output.text_numbers is None else output.text_numbers
            ranks = cls_attention(output.query[source], output.key[source], texts, heads)
        selected[layer] = select_in_layer(output.hidden[layer], tokens, selection, ranks)
    return selected


def cls_attention(query: Tensor, key: Tensor, texts: Tensor, heads: int) -> Tensor:
    """Attention of the first token of each text to the tokens of the text, averaged over heads (Eq. 6).

    Args:
        query, key: (B, L, d), with all heads concatenated.
        texts: (B, L) bool, True for real tokens, which are one text; or the number of each token's text, 1 or
            2, and 0 for padding.

    Returns:
        (B, L) float32, with a sum of 1 for each text; 0 for padding.
    """
    keys = key.float().unflatten(-1, (heads, -1))
    attention = torch.zeros(texts.shape, device=key.device)
    for number in (1,) if texts.dtype == torch.bool else (1, 2):
        mask = texts == number
        first = pool_text(query, mask, "cls").float().unflatten(-1, (heads, -1))  # (B, heads, d/heads)
        scores = torch.einsum("bhc,blhc->bhl", first, keys) / math.sqrt(first.shape[-1])
        scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        attention = torch.where(mask, scores.softmax(-1).mean(1), attention)
    return attention


def attention_scores(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """The (B, heads, L, L) attention scores before the softmax, from (B, L, d) queries and keys."""
    q, k = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (query, key))
    return q @ k.mT / math.sqrt(q.shape[-1])


def eligible(tokens: Tokens, selection: Selection) -> Tensor:
    """The tokens that may be kept, as (B, L) bool."""
    if not selection.excludes_sep:
        return tokens.mask
    assert tokens.ends is not None, "token-level comparison needs rows read as one sequence"
    return tokens.mask & ~tokens.ends


def kept_counts(tokens: Tokens, selection: Selection) -> Tensor:
    """The number of tokens kept in each row, as (B,) int64."""
    counts = eligible(tokens, selection).sum(1)
    return counts if selection.tokens is None else counts.clamp(max=selection.tokens)


def select_in_layer(hidden: Tensor, tokens: Tokens, selection: Selection, ranks: Tensor | None) -> Selected:
    """Apply a selection to the hidden states of one layer.

    Args:
        hidden: (B, L, d).
        ranks: (B, L) importance of each token; None = keep the first tokens in order.
    """
    allowed = eligible(tokens, selection)
    n = int(kept_counts(tokens, selection).max())
    if ranks is None:
        ranks = -torch.arange(hidden.shape[1], device=hidden.device).expand(allowed.shape).float()
    ranks = ranks.masked_fill(~allowed, -torch.inf)
    # The stable sort breaks ties in favour of the first token on every machine.
    positions = ranks.argsort(dim=1, descending=True, stable=True)[:, :n]
    valid = allowed.gather(1, positions)
    values = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])).float()
    activations = kept_activations(values, selection) & valid.unsqueeze(-1)
    return Selected(positions, valid, values.masked_fill(~activations, 0.0), activations)


def kept_activations(values: Tensor, selection: Selection) -> Tensor:
    """The activations kept in each vector, as (..., d) bool (section 4.3, Eq. 7)."""
    width = values.shape[-1]
    count = selection.n_kept_activations(width)
    if count == width:
        return torch.ones_like(values, dtype=torch.bool)
    if selection.activation_selection == "magnitude":
        largest = values.abs().topk(count, dim=-1).indices
        return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, largest, True)
    return static_activations(width, selection).to(values.device).expand(values.shape)


def static_activations(width: int, selection: Selection) -> Tensor:
    """The activations kept by a static rule, the same for every vector, as (width,) bool."""
    count = selection.n_kept_activations(width)
    if count == width:
        return torch.ones(width, dtype=torch.bool)
    chosen = torch.zeros(width, dtype=torch.bool)
    if selection.activation_selection == "uniform":
        positions = np.floor(np.arange(1, count + 1) * width / count + 0.5).astype(np.int64) - 1
    else:
        seeds = [_STATIC_SEED] if selection.seed is None else [selection.seed, _STATIC_SEED]
        positions = np.random.default_rng(seeds).permutation(width)[:count]
    chosen[torch.from_numpy(positions)] = True
    return chosen


def narrow_selection(selected: Selected, stored: Selection, requested: Selection) -> Selected:
    """Reduce hidden states selected by `stored` to those selected by `requested` (see `Selection.covers`)."""
    positions = selected.positions
    valid = selected.valid
    values = selected.values
    activations = selected.activations
    if requested.tokens is not None and requested.tokens < positions.shape[1]:
        positions, valid, values, activations = (
            part[:, : requested.tokens] for part in (positions, valid, values, activations)
        )
    if requested.width != stored.width:
        activations = activations & kept_activations(values, requested)
        values = values.masked_fill(~activations, 0.0)
    return Selected(positions, valid, values, activations)
