"""The machine: where a model runs outside the training loop, and freed memory kept for the next step."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import torch

from tasks.errors import UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's settings in glibc
_KEPT = 1 << 30
_SECONDS = 20.0
_DEVICES = ("cpu", "cuda", "mps")


@contextlib.contextmanager
def keep_memory() -> Iterator[bool]:
    """Inside the block glibc keeps up to 1 GiB of freed memory rather than give it back after every step.

    Memory that is given back returns page by page, each cleared by the kernel, and every training step on a
    CPU waits for that. Batches of many lengths leave holes of many sizes, in the end several GB of them, so
    a thread gives all free memory back every 20 seconds, and the block does so at its end. Elsewhere (macOS,
    musl) nothing is done. glibc cannot restore its own adaptive thresholds, so these stay as they were set.

    Yields:
        True if the allocator was told.
    """
    try:
        set_option, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        yield False
        return
    told = all(set_option(option, _KEPT) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
    ended = threading.Event()

    def give_back() -> None:
        while not ended.wait(_SECONDS):
            trim(0)

    thread = threading.Thread(target=give_back, name="give-back", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        ended.set()
        thread.join()
        trim(0)


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def find_device(name: str | None) -> torch.device:
    """The device of a name; None = the best there is.

    Args:
        name: "cpu", "cuda", "cuda:1" (the second GPU), "mps".

    Raises:
        UserError: there is no such device on this machine.
    """
    if name is None:
        return best_device()
    try:
        device = torch.device(name)
        if device.type not in _DEVICES:
            raise RuntimeError("mtkd does not run on it")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"cannot run on the device {name!r}: {str(error).splitlines()[0]}",
            expected=", ".join(_available()),
            hint="leave the device out to use the best one",
        ) from error
    return device


def _available() -> list[str]:
    """The names of the devices of this machine."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    return [*names, *(["mps"] if torch.backends.mps.is_available() else [])]
