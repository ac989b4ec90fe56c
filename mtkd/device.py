"""Choosing the device that a model runs on, and keeping freed memory during training on a CPU."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator
from multiprocessing import parent_process

import torch

from tasks.common.errors import UserError, did_you_mean, reason_of

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameter numbers of glibc's mallopt
_KEPT_BYTES = 1 << 30
_TRIM_SECONDS = 20.0  # between two calls of malloc_trim
_LONGEST_REASON = 120  # characters; torch's error for a missing backend lists all other backends
_DEVICE_TYPES = ("cpu", "cuda", "mps")
_DEVICE_NAME = re.compile(r"(cpu|cuda|mps)(:\d+)?")


@contextlib.contextmanager
def keep_memory() -> Iterator[bool]:
    """Let glibc keep up to 1 GiB of freed memory inside the `with` block, instead of returning it every step.

    The kernel clears each page of memory that it hands out again, which slows down every training step on a
    CPU. Batches of different lengths fragment the memory, by several GB over time. A thread therefore returns
    all free memory to the system every 20 seconds, and once more at the end of the block. Without glibc
    (macOS, musl) nothing happens. glibc cannot restore its adaptive thresholds, so the new thresholds stay in
    place after the block.

    Yields:
        True if the allocator accepted the thresholds.
    """
    try:
        set_option, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        yield False
        return
    accepted = all(set_option(option, _KEPT_BYTES) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
    ended = threading.Event()

    def trim_regularly() -> None:
        while not ended.wait(_TRIM_SECONDS):
            trim(0)

    thread = threading.Thread(target=trim_regularly, name="trim-memory", daemon=True)
    thread.start()
    try:
        yield accepted
    finally:
        ended.set()
        thread.join()
        trim(0)


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def worker_device() -> torch.device:
    """The device of a worker process: the GPU if there is one, else the CPU.

    In a worker process, torch is limited to one CPU thread, since the other workers use the other cores.
    """
    if parent_process() is not None:
        torch.set_num_threads(1)
    return best_device()


def find_device(name: str | None) -> torch.device:
    """Find a device by name.

    Args:
        name: "cpu", "cuda", "cuda:1" (the second GPU) or "mps"; None = the best device available.

    Raises:
        UserError: the name is unknown, or this machine has no such device.
    """
    if name is None:
        return best_device()
    if not _DEVICE_NAME.fullmatch(name):
        corrected = name.lower().replace("gpu", "cuda")
        suggestion = (
            f" (did you mean {corrected!r}?)"
            if _DEVICE_NAME.fullmatch(corrected)
            else did_you_mean(corrected, _DEVICE_TYPES)
        )
        raise UserError(
            f"unknown device {name!r}{suggestion}",
            expected="cpu, cuda, cuda:N or mps",
            hint="omit `device` to use the best one",
        )
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = reason_of(error)
        if len(reason) > _LONGEST_REASON:
            reason = "this machine has no such device"
        raise UserError(
            f"cannot run on the device {name!r}: {reason}",
            expected=", ".join(_available()),
            hint="omit `device` to use the best one",
        ) from error
    return device


def _available() -> list[str]:
    """The names of this machine's devices, such as ["cpu", "cuda", "cuda:0"]."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    return [*names, *(["mps"] if torch.backends.mps.is_available() else [])]
