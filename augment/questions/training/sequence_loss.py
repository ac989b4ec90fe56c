"""The training loss of a question generator."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from augment.questions.training.prompts import EncodedPrompt

_IGNORED = -100


def batch_loss(model: Any, rows: list[EncodedPrompt], pad: int, precision: str) -> Tensor:
    """Mean cross-entropy per token over all questions of the prompts; each prompt is encoded once."""
    device = model.device
    ids = _padded([row.prompt for row in rows], pad).to(device)
    real = _padded([[1] * len(row.prompt) for row in rows], 0).to(device)
    labels = _padded([q for row in rows for q in row.questions], _IGNORED).to(device)
    owner = torch.tensor([n for n, row in enumerate(rows) for _ in row.questions], device=device)
    autocast = (
        torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    )
    with autocast:
        encoded = model.encoder(input_ids=ids, attention_mask=real).last_hidden_state
        hidden = model.decoder(
            input_ids=model._shift_right(labels),
            encoder_hidden_states=encoded.index_select(0, owner),
            encoder_attention_mask=real.index_select(0, owner),
            use_cache=False,
        ).last_hidden_state
        is_label = labels != _IGNORED
        scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0
        logits = model.lm_head(hidden[is_label] * scale)
    return F.cross_entropy(logits.float(), labels[is_label])


def _padded(rows: list[list[int]], value: int) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)
