"""A digest of the weights of a module in memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tasks.common.errors import UserError
from tasks.common.sha256 import digest_bytes


def digest_weights(module: nn.Module, *, without: str | None = None) -> str:
    """A SHA-256 of the names, dtypes and values of a module's parameters and buffers.

    Args:
        without: leave out the submodules with this name.
    """
    parts: list[bytes | str] = []
    for name, value in sorted(module.state_dict().items()):
        if without not in name.split("."):
            parts += [name, str(value.dtype), tensor_bytes(value)]
    return digest_bytes(*parts)


def tensor_bytes(value: Tensor) -> bytes:
    """The values of a tensor of any dtype, in memory order; raises UserError on the device "meta"."""
    if value.is_meta:
        raise UserError("a weight has no values: it is on the device 'meta'", expected="weights on a device")
    return np.asarray(value.detach().cpu().contiguous().view(-1).view(torch.uint8)).tobytes()
