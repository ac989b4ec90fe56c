"""The last layer of BERT-style encoders, run only for the tokens whose output is needed.

A classifier that reads the first token needs no other output of the last layer. Its keys and values are still
computed for all tokens, but queries, the projections after the attention, and the feed-forward network only
for those that are needed. This saves most of the time of the layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mtkd.models.capture import active_capture, find_layers
from mtkd.models.fast_dropout import attention, is_faster
from mtkd.outputs import BY_LAYER, OutputSpec
from tasks.tokens.batching import ModelInputs

# Model types whose layers are those of BERT, with the names that `_output_at` uses.
BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra")


def make_selective(body: Any, n_layers: int) -> bool:
    """Make the last layer run only for `Capture.positions` where they are set; False = not BERT-style."""
    found = find_layers(body, n_layers)
    config = body.config
    if found is None or config.model_type not in BERT_LIKE or config.is_decoder:
        return False
    last = found[1][-1]
    last.forward = partial(_forward, last)
    return True


def needed_positions(inputs: ModelInputs, need: OutputSpec, top: int, *, mean_pooled: bool) -> Tensor | None:
    """The tokens for which the last layer must be run: the first, and `inputs.needed`; None = all.

    Args:
        top: the number of layers.
        mean_pooled: the vector per row is the mean over tokens.

    Returns:
        (B, 1 + n) int64.
    """
    tokens = inputs.joined
    assert tokens is not None, "a Transformer reads both texts in one sequence"
    per_token = {kind for kind in BY_LAYER if top in getattr(need, kind)} - {"cls", "hidden"}
    two_texts = tokens.text_numbers is not None or tokens.second is not None
    if per_token or two_texts or need.sequence or (need.pooled and mean_pooled):
        return None
    first = torch.zeros_like(tokens.ids[:, :1])
    if top not in need.hidden:
        return first
    if inputs.needed is None or inputs.needed.shape[1] + 1 >= tokens.ids.shape[1]:
        return None
    return torch.cat([first, inputs.needed], 1)


def reads_first_token(module: nn.Module) -> bool:
    """True for the sequence classifiers of transformers, whose heads read only the first token."""
    kind = type(module)
    return kind.__module__.startswith("transformers.") and kind.__name__.endswith("ForSequenceClassification")


def _forward(
    layer: nn.Module, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor:
    capture = active_capture()
    if capture is None or capture.positions is None:
        return type(layer).forward(layer, hidden_states, attention_mask, *args, **options)
    return _output_at(layer, hidden_states, attention_mask, capture.positions)


def _output_at(layer: Any, states: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    """The layer's output for some tokens, (B, n, d).

    Args:
        states: (B, L, d) the output of the layer before.
        mask: (B, 1, L, L), the same for every query; None = every token is real.
        positions: (B, n) int64.
    """
    chosen = states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
    own = layer.attention.self
    sources = ((own.query, chosen), (own.key, states), (own.value, states))
    query, key, value = (
        project(source).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
        for project, source in sources
    )
    mask, p = None if mask is None else mask[:, :, :1], own.dropout.p if layer.training else 0.0
    if is_faster(query, p):
        context = attention(query, key, value, mask, own.scaling, p)
    else:
        context = scaled_dot_product_attention(query, key, value, mask, p, scale=own.scaling)
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), chosen)
    output: Tensor = layer.feed_forward_chunk(attended)
    return output
