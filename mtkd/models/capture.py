"""Capture intermediate results of a Transformer during its forward pass.

transformers routes the attention of every modern encoder through one interface. Our implementation of it
records what is needed and calls the fast path (SDPA). Queries, keys, values and context vectors therefore
cost only the memory to keep them, no encoder family needs code of its own, and a forward pass stops as soon
as everything that was requested has been captured.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor, nn

from mtkd.models.encoders.text_vectors import pool_text
from mtkd.models.fast_dropout import dropout_attention, dropout_attention_is_faster
from mtkd.outputs import BY_LAYER, OutputSpec

ATTENTION = "mtkd_sdpa"


class _Active(threading.local):
    """The capture of this thread's forward pass. (torch.compile understands no ContextVar.)"""

    def __init__(self) -> None:
        self.capture: Capture | None = None


_active = _Active()


def active_capture() -> Capture | None:
    """The capture of this thread's forward pass, if there is one."""
    return _active.capture


class StopForward(Exception):
    """Raised to end a forward pass early, once everything requested has been captured."""


class Capture:
    """Collects the requested outputs of one forward pass.

    Args:
        need: the outputs to keep; the caller adds the last layer's hidden states from the model's result.
        mask: (B, L) bool, True = real token.
        run_all_layers: True if the forward pass must not be stopped early.
        positions: (B, n) int64, the positions of the tokens for which the last layer is run; None = all.

    Attributes:
        captured: kind of output -> layer -> tensor.
    """

    def __init__(self, need: OutputSpec, mask: Tensor, run_all_layers: bool, positions: Tensor | None = None):
        self.positions = positions
        self.captured: dict[str, dict[int, Tensor]] = {kind: {} for kind in BY_LAYER}
        self._requested = {kind: getattr(need, kind) for kind in BY_LAYER}
        self._n_missing = sum(map(len, self._requested.values()))
        self._mask, self._run_all_layers = mask, run_all_layers
        self._attended = 0

    def run(self, body: nn.Module, **inputs: Any) -> Any:
        """Run the body; return its result, or None if the pass was stopped early."""
        outer, _active.capture = _active.capture, self
        try:
            return body(**inputs)
        except StopForward:
            return None
        finally:
            _active.capture = outer

    def keep(self, kind: str, layer: int, value: Tensor) -> None:
        """Keep a tensor if it was requested and is not kept already."""
        if layer in self._requested[kind] and layer not in self.captured[kind]:
            self.captured[kind][layer] = value
            self._n_missing -= 1

    def record_hidden(self, layer: int, hidden: Tensor) -> None:
        """Offer a layer's output (B, L, d); outputs that are kept already stay."""
        self.keep("hidden", layer, hidden)
        self.keep("cls", layer, hidden[:, 0])
        if layer in self._requested["mean"]:
            self.keep("mean", layer, pool_text(hidden, self._mask, "mean"))

    def record_layer(self, layer: int, hidden: Tensor) -> None:
        """Offer a layer's output during the pass, and stop the pass if nothing else is needed."""
        self.record_hidden(layer, hidden)
        self._stop_if_done()

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, bias: Tensor | None
    ) -> int:
        """Offer the inputs of a layer's attention, (B, heads, L, d/heads) each; return the layer's number."""
        self._attended += 1
        layer = self._attended
        for kind, tensor in (("query", query), ("key", key), ("value", value)):
            if layer in self._requested[kind]:
                self.keep(kind, layer, tensor.transpose(1, 2).flatten(2))
        if layer in self._requested["scores"]:
            scores = query @ key.transpose(-1, -2) * scaling
            self.keep("scores", layer, scores if bias is None else scores + bias)
        self._stop_if_done()
        return layer

    def context(self, layer: int, context: Tensor) -> None:
        """Offer the output of a layer's attention, (B, L, heads, d/heads)."""
        self.keep("context", layer, context.flatten(2))
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._n_missing == 0 and not self._run_all_layers:
            raise StopForward


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """SDPA that also reports its inputs and output to the active capture."""
    capture = _active.capture
    if capture is None:
        layer = 0
    else:
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        layer = capture.attention(query, key, value, factor, position_bias)
    dropout_p = options.get("dropout", 0.0)
    if position_bias is None and query.shape == key.shape and dropout_attention_is_faster(query, dropout_p):
        context = dropout_attention(query, key, value, attention_mask, scaling, dropout_p).transpose(1, 2)
    else:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        context, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, position_bias=position_bias, **options
        )
    if capture is not None:
        capture.context(layer, context)
    return context, None


def register_attention() -> None:
    """Register our attention with transformers, which is imported here because its import takes seconds."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def find_layers(body: nn.Module, n_layers: int) -> tuple[str, nn.ModuleList] | None:
    """Find the list of layers of a transformers base model: its dotted name and the list, or None.

    Args:
        n_layers: the length of the list.
    """
    return next(
        ((n, m) for n, m in body.named_modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers),
        None,
    )


def attach_capture(body: nn.Module, n_layers: int) -> bool:
    """Make a transformers base model report to the active capture; return False if it has no list of layers.

    The attention of families that do not use transformers' attention interface cannot be captured
    (`EncoderSpec.offers`).
    """
    if getattr(body, "_supports_attention_backend", False):
        register_attention()
        body.set_attn_implementation(ATTENTION)  # type: ignore[operator]
    name_and_layers = find_layers(body, n_layers)
    if name_and_layers is None:
        return False
    first = name_and_layers[1][0]
    first.register_forward_pre_hook(_on_embeddings, with_kwargs=True)
    for number, layer in enumerate(name_and_layers[1][:-1], 1):  # type: ignore[arg-type]
        layer.register_forward_hook(functools.partial(_on_layer_output, number))
    return True


# The hooks are functions of this module, so that models can be pickled.
def _on_embeddings(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Offer the embeddings, which the first layer reads."""
    if (capture := _active.capture) is not None:
        capture.record_layer(0, args[0] if args else kwargs["hidden_states"])


def _on_layer_output(number: int, module: nn.Module, args: Any, output: Any) -> None:
    """Offer the output of a layer."""
    if (capture := _active.capture) is not None:
        capture.record_layer(number, output if isinstance(output, torch.Tensor) else output[0])
