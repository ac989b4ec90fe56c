"""The machine: where a model runs outside the training loop, and freed memory kept for the next step."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's settings in glibc
_KEPT = 1 << 30
_SECONDS = 20.0


@functools.cache
def keep_memory() -> bool:
    """Have glibc keep up to 1 GiB of freed memory rather than give it back after every step.

    What is given back comes again page by page, each cleared by the kernel, and every training step on a
    CPU waits for that. Batches of many lengths leave holes of many sizes, in the end several GB of them, so
    all that is free is given back every 20 seconds. Elsewhere (macOS, musl) nothing is done.

    Returns:
        True if the allocator was told.
    """
    try:
        set_option, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    threading.Thread(target=_give_back, args=(trim,), name="give-back", daemon=True).start()
    return all(set_option(option, _KEPT) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


def _give_back(trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(_SECONDS)
        trim(0)


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
