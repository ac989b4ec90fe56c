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
from mtkd.models.fast_dropout import attention, is_faster
from mtkd.outputs import BY_LAYER, OutputSpec
from tasks.tokens.batching import ModelInputs


def make_selective(body: Any, n_layers: int) -> bool:
    """Make the last layer run only for `Capture.positions` where they are set; False = not BERT-style."""
    found = find_layers(body, n_layers)
    config = body.config
    run = OUTPUT_OF.get(config.model_type)
    if found is None or run is None or getattr(config, "is_decoder", False):
        return False
    last = found[1][-1]
    last.forward = partial(_forward, last, run)
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
    layer: nn.Module,
    run: _Run,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """The layer's output (B, L, d), or (B, n, d) for the positions of the active capture."""
    capture = active_capture()
    if capture is None or capture.positions is None:
        return type(layer).forward(layer, hidden_states, attention_mask, *args, **options)
    indices = capture.positions.unsqueeze(-1).expand(-1, -1, hidden_states.shape[-1])
    # The mask (B, 1, L, L) is the same for every query.
    mask = None if attention_mask is None else attention_mask[:, :, :1]
    return run(layer, hidden_states.gather(1, indices), hidden_states, mask)


def _of_bert(layer: Any, chosen: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    own = layer.attention.self
    context = _context(own, (own.query, own.key, own.value), chosen, states, mask)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, chosen))
    return output


def _of_distilbert(layer: Any, chosen: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    own = layer.attention
    context = _context(own, (own.q_lin, own.k_lin, own.v_lin), chosen, states, mask)
    attended = layer.sa_layer_norm(own.out_lin(context) + chosen)
    output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return output


def _context(
    own: Any, projections: Iterable[nn.Module], chosen: Tensor, states: Tensor, mask: Tensor | None
) -> Tensor:
    """The output of the attention heads for some tokens, (B, n, d), with the heads concatenated.

    Args:
        own: the attention of the layer.
        projections: of queries, keys and values.
        chosen, states: (B, n, d) and (B, L, d), the output of the layer before for these and for all tokens.
        mask: (B, 1, 1, L) bool, True = a real token; None = all are.
    """
    query, key, value = (
        project(source).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
        for project, source in zip(projections, (chosen, states, states), strict=True)
    )
    p = own.dropout.p if own.training else 0.0
    if is_faster(query, p):
        context = attention(query, key, value, mask, own.scaling, p)
    else:
        context = scaled_dot_product_attention(query, key, value, mask, p, scale=own.scaling)
    return context.transpose(1, 2).flatten(2)


_Run = Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]
_LIKE_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
# Model type -> what computes the output of its layer for some tokens.
OUTPUT_OF: dict[str, _Run] = {**dict.fromkeys(_LIKE_BERT, _of_bert), "distilbert": _of_distilbert}
