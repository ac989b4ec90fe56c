"""The last layer of BERT-style encoders, run only for the tokens whose output is needed.

A classifier that reads the first token needs no other output of the last layer. Its keys and values are still
computed for all tokens, but queries, the projections after the attention, and the feed-forward network only
for those that are needed. This saves most of the time of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mtkd.models.capture import active_capture, find_layers
from mtkd.models.fast_dropout import dropout_attention, dropout_attention_is_faster
from mtkd.outputs import BY_LAYER, OutputSpec
from tasks.tokens.batching import ModelInputs


def make_selective(body: Any, n_layers: int) -> bool:
    """Make the last layer run only for `Capture.positions` where they are set; False = not BERT-style."""
    found = find_layers(body, n_layers)
    config = body.config
    forward = SELECTIVE_FORWARD.get(config.model_type)
    if found is None or forward is None or getattr(config, "is_decoder", False):
        return False
    last = found[1][-1]
    last.forward = partial(_forward, last, forward)
    return True


def needed_positions(
    inputs: ModelInputs, need: OutputSpec, n_layers: int, *, mean_pooled: bool
) -> Tensor | None:
    """The tokens for which the last layer must be run: the first, and `inputs.needed`; None = all.

    Args:
        mean_pooled: the vector per row is the mean over tokens.

    Returns:
        (B, 1 + n) int64.
    """
    tokens = inputs.joined
    assert tokens is not None, "a Transformer reads both texts in one sequence"
    per_token = {kind for kind in BY_LAYER if n_layers in getattr(need, kind)} - {"cls", "hidden"}
    two_texts = tokens.text_numbers is not None or tokens.second is not None
    if per_token or two_texts or need.sequence or (need.pooled and mean_pooled):
        return None
    first = torch.zeros_like(tokens.ids[:, :1])
    if n_layers not in need.hidden:
        return first
    if inputs.needed is None or inputs.needed.shape[1] + 1 >= tokens.ids.shape[1]:
        return None
    return torch.cat([first, inputs.needed], 1)


def reads_first_token(module: nn.Module) -> bool:
    """True for the sequence classifiers of transformers; in BERT-style models they read only this token."""
    kind = type(module)
    return kind.__module__.startswith("transformers.") and kind.__name__.endswith("ForSequenceClassification")


def _forward(
    layer: nn.Module,
    selective: _SelectiveForward,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """The layer's output (B, L, d), or (B, n, d) for the positions of the active capture.

    Args:
        hidden_states: (B, L, d).
        attention_mask: (B, 1, L, L) bool, the same for every query; None = all tokens are real.
    """
    capture = active_capture()
    if capture is None or capture.positions is None:
        return type(layer).forward(layer, hidden_states, attention_mask, *args, **options)
    indices = capture.positions.unsqueeze(-1).expand(-1, -1, hidden_states.shape[-1])
    mask = None if attention_mask is None else attention_mask[:, :, :1]
    return selective(layer, hidden_states.gather(1, indices), hidden_states, mask)


def _bert_layer(layer: Any, selected: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    self_attention = layer.attention.self
    context = _context(
        self_attention,
        (self_attention.query, self_attention.key, self_attention.value),
        selected,
        states,
        mask,
    )
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, selected))
    return output


def _distilbert_layer(layer: Any, selected: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    self_attention = layer.attention
    context = _context(
        self_attention,
        (self_attention.q_lin, self_attention.k_lin, self_attention.v_lin),
        selected,
        states,
        mask,
    )
    attended = layer.sa_layer_norm(self_attention.out_lin(context) + selected)
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


def _context(
    self_attention: Any,
    projections: Iterable[nn.Module],
    selected: Tensor,
    states: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """The output of the attention heads for some tokens, (B, n, d), with the heads concatenated.

    Args:
        self_attention: the attention of the layer.
        projections: of queries, keys and values.
        selected, states: (B, n, d) and (B, L, d), the layer's input for these tokens and for all.
        mask: (B, 1, 1, L) bool, True = a real token; None = all are.
    """
    query, key, value = (
        project(source).unflatten(-1, (-1, self_attention.attention_head_size)).transpose(1, 2)
        for project, source in zip(projections, (selected, states, states), strict=True)
    )
    p = self_attention.dropout.p if self_attention.training else 0.0
    if dropout_attention_is_faster(query, p):
        context = dropout_attention(query, key, value, mask, self_attention.scaling, p)
    else:
        context = scaled_dot_product_attention(query, key, value, mask, p, scale=self_attention.scaling)
    return context.transpose(1, 2).flatten(2)


_SelectiveForward = Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]
_LIKE_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
# Model type -> what computes the output of its layer for selected tokens.
SELECTIVE_FORWARD: dict[str, _SelectiveForward] = {
    **dict.fromkeys(_LIKE_BERT, _bert_layer),
    "distilbert": _distilbert_layer,
}
