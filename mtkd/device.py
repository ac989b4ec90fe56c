"""The machine: where a model runs outside the training loop, and how memory is kept."""

from __future__ import annotations

import ctypes

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def keep_memory() -> None:
    """Let glibc keep freed memory instead of handing every large tensor back to the system.

    By default each big allocation is mapped and faulted in anew, which can cost more than the arithmetic.
    Does nothing where the C library has no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
