"""Where a model runs outside the training loop, which leaves that to Accelerate."""

from __future__ import annotations

import torch


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
