"""How many prompts are decoded at once: a fixed number, or ("auto") as many as fit in the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

R = TypeVar("R")

_ON_CPU = 32  # larger batches are hardly faster there
_MAX_BATCH = 1024
_BYTES = 4  # per number; bf16 needs less
_ENCODER_COPIES, _DECODER_COPIES = 6, 4  # activations of a layer, or logits, that exist at the same time
_USED = 0.5  # of the free memory; the rest is for fragments and libraries


class BatchSize:
    """The number of prompts per batch. It affects speed and memory only.

    Attributes:
        prompts: the current number.
        halves: whether it is halved when the memory of the device is used up.
    """

    def __init__(self, prompts: int, *, halves: bool = False):
        self.prompts, self.halves = prompts, halves

    def next_batch(self, waiting: list[int], run: Callable[[list[int]], R]) -> tuple[list[int], R]:
        """Run the first of the waiting prompts; if they need too much memory, half as many, and so on.

        Returns:
            the prompts that were run, and the result of `run`.

        Raises:
            torch.OutOfMemoryError: a single prompt needs too much memory, or the number is fixed.
        """
        while True:
            part = waiting[: self.prompts]
            try:
                return part, run(part)
            except torch.OutOfMemoryError:
                if not self.halves or len(part) == 1:
                    raise
            # outside of `except`, so that the traceback no longer holds tensors
            self.prompts = (len(part) + 1) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def choose_batch_size(
    requested: int | Literal["auto"], model: Any, max_input: int, rows: int, steps: int
) -> BatchSize:
    """The batch size that was asked for; for "auto", a power of two that fits in the free memory of a GPU.

    Args:
        model: a T5 on its device.
        max_input: tokens of the longest prompt.
        rows: questions per prompt that are decoded together (beams).
        steps: tokens of the longest question.
    """
    if requested != "auto":
        return BatchSize(requested)
    if model.device.type != "cuda":
        return BatchSize(_ON_CPU, halves=True)
    free, _ = torch.cuda.mem_get_info(model.device)
    fitting = int(free * _USED) // bytes_per_prompt(model.config, max_input, rows, steps)
    return BatchSize(1 << max(min(fitting, _MAX_BATCH), 1).bit_length() - 1, halves=True)


def bytes_per_prompt(config: Any, max_input: int, rows: int, steps: int) -> int:
    """An estimate of the memory that one prompt of the greatest length needs, besides the weights."""
    heads, width = config.num_heads, config.d_model
    encoder = max_input * (heads * max_input + config.d_ff + heads * config.d_kv + width)
    layers = config.num_decoder_layers or config.num_layers
    cached = 2 * layers * heads * steps * config.d_kv
    attention = heads * (width + max_input)
    decoder = rows * (cached + _DECODER_COPIES * (config.vocab_size + attention))
    return _BYTES * (_ENCODER_COPIES * encoder + decoder)
