"""Decoding steps of a T5 for many rows at once, with preallocated buffers.

It computes the same function as the decoder in transformers, in another order. Cross-attention factors the
keys and values of a head: with K = E Wk and V = E Wv, q K^T = (q Wk^T) E^T and p V = (p E) Wv, so every layer
reads the encoder output E directly. No layer projects or caches E, and the rows of one prompt (beams,
samples) share it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass
class State:
    """The decoding state of a batch of B prompts with K rows each.

    Attributes:
        encoded: (B, L, D), the encoder's output.
        mask: (B, 1, L), added to the attention scores: 0 for real tokens and -inf for padding.
        keys, values: one (B * K, H, T, d) buffer per layer; the first `step` positions of T are filled.
        step: number of tokens decoded so far.
    """

    encoded: Tensor
    mask: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    step: int = 0

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Keep only the given prompts and rows, in this order; rows may be repeated (beams)."""
        if len(prompts) != len(self.encoded):
            self.encoded, self.mask = self.encoded[prompts], self.mask[prompts]
        self.reorder(rows)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the cached keys and values of the rows."""
        for buffers in (self.keys, self.values):
            for index, buffer in enumerate(buffers):
                buffers[index] = buffer.index_select(0, rows)


class Decoder:
    """The decoder of a T5 or mT5.

    Args:
        model: a `T5ForConditionalGeneration` or similar model in float32, on its device.
        precision: `bf16` computes in bfloat16 (on a copy of the model). The logits stay in float32, because
            the two best often differ only in the third digit.
    """

    def __init__(self, model, precision: str = "fp32"):
        self.head = model.lm_head.weight
        self.matmul_precision = "highest" if precision == "fp32" else "medium"
        self.model = model.eval() if precision == "fp32" else copy.deepcopy(model).eval().bfloat16()
        self.config = model.config
        self.device = model.device
        self.layers = [_Layer(block) for block in self.model.decoder.block]
        scaled = getattr(model.config, "scale_decoder_outputs", False)
        self.scale = model.config.d_model**-0.5 if scaled else 1.0

    def start(self, prompts: list[list[int]], rows: int, steps: int) -> State:
        """Encode the prompts and allocate buffers for `rows` rows per prompt of up to `steps` tokens."""
        ids = [tuple(prompt) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        real = torch.arange(int(lengths.max()), device=self.device) < lengths[:, None]
        if self.device.type == "cpu":  # one at a time: there is no padding, and the data fit in the cache
            encode = self.model.encoder
            encoded_prompts = {
                prompt_ids: encode(torch.tensor([prompt_ids])).last_hidden_state[0]
                for prompt_ids in dict.fromkeys(ids)
            }
            encoded = pad_sequence([encoded_prompts[prompt_ids] for prompt_ids in ids], batch_first=True)
        else:
            padded = pad_sequence([torch.tensor(prompt_ids) for prompt_ids in ids], batch_first=True).to(
                self.device
            )
            encoded = self.model.encoder(input_ids=padded, attention_mask=real.long()).last_hidden_state
        mask = torch.zeros_like(encoded[:, :, 0]).masked_fill(~real, -torch.inf)[:, None]
        shape = (len(prompts) * rows, self.config.num_heads, steps, self.config.d_kv)
        buffers = [[encoded.new_empty(shape) for _ in self.layers] for _ in range(2)]
        return State(encoded, mask, buffers[0], buffers[1])

    def step(self, state: State, tokens: Tensor) -> Tensor:
        """Decode one token per row.

        Args:
            tokens: (B * K,) the last token of each row.

        Returns:
            (B * K, V) logits of the next token.
        """
        hidden = self.model.decoder.embed_tokens(tokens)
        bias: Tensor | None = None
        for index, layer in enumerate(self.layers):
            bias = layer.position_bias(state.step) if layer.has_bias else bias
            hidden = hidden + layer.self_attend(
                hidden, state.keys[index], state.values[index], state.step, bias
            )
            hidden = hidden + layer.cross_attend(hidden, state.encoded, state.mask)
            hidden = layer.feed_forward(hidden)
        state.step += 1
        hidden = (self.model.decoder.final_layer_norm(hidden) * self.scale).float()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul_precision)
        try:
            return F.linear(hidden, self.head)
        finally:
            torch.set_float32_matmul_precision(before)


class _Layer:
    """The weights of one layer, arranged for `Decoder.step`; M stands for the B * K rows."""

    def __init__(self, block):
        self_layer, cross_layer, self.feed_forward = block.layer
        self.self_norm = self_layer.layer_norm
        self.attention = self_layer.SelfAttention
        self.has_bias = self.attention.has_relative_attention_bias
        self.qkv = torch.cat([self.attention.q.weight, self.attention.k.weight, self.attention.v.weight])
        self.self_out = self.attention.o.weight
        self.cross_norm = cross_layer.layer_norm
        cross_attention = cross_layer.EncDecAttention
        self.heads = cross_attention.n_heads
        self.query = cross_attention.q.weight
        size = cross_attention.key_value_proj_dim
        self.to_keys = cross_attention.k.weight.view(self.heads, size, -1)  # (H, d, D)
        self.from_values = cross_attention.v.weight.view(self.heads, size, -1).transpose(1, 2)  # (H, D, d)
        self.cross_out = cross_attention.o.weight

    def position_bias(self, step: int) -> Tensor:
        """(1, H, 1, step + 1) position bias, added to the scores of the last token."""
        return self.attention.compute_bias(1, step + 1, past_seen_tokens=step)

    def self_attend(
        self, hidden: Tensor, keys: Tensor, values: Tensor, step: int, bias: Tensor | None
    ) -> Tensor:
        """Self-attention of one token, (M, D) to (M, D); its key and value are added to the buffers."""
        rows = len(hidden)
        projected = F.linear(self.self_norm(hidden), self.qkv).view(rows, 3, self.heads, 1, -1)
        query = projected[:, 0]
        keys[:, :, step] = projected[:, 1, :, 0]
        values[:, :, step] = projected[:, 2, :, 0]
        scores = query @ keys[:, :, : step + 1].transpose(2, 3)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return F.linear((weights @ values[:, :, : step + 1]).view(rows, -1), self.self_out)

    def cross_attend(self, hidden: Tensor, encoded: Tensor, mask: Tensor) -> Tensor:
        """Cross-attention of the M = B * K rows to the B encoded prompts, (M, D) to (M, D)."""
        rows, prompts = len(hidden), len(encoded)
        query = F.linear(self.cross_norm(hidden), self.query).view(rows, self.heads, -1).transpose(0, 1)
        query = (
            (query @ self.to_keys).transpose(0, 1).reshape(prompts, -1, encoded.shape[-1])
        )  # (B, K * H, D)
        weights = (query @ encoded.transpose(1, 2) + mask).softmax(-1)
        mixed = (weights @ encoded).view(rows, self.heads, -1).transpose(0, 1)  # (H, M, D)
        return F.linear((mixed @ self.from_values).transpose(0, 1).reshape(rows, -1), self.cross_out)
