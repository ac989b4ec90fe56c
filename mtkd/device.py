"""The device that a model runs on outside the training loop, and how a CPU run keeps freed memory."""

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
_KEPT = 1 << 30  # bytes
_SECONDS = 20.0
_LONGEST_REASON = 120  # characters of an error of torch; for a missing backend it lists all others
_NAMES = ("cpu", "cuda", "mps")
_DEVICE = re.compile(r"(cpu|cuda|mps)(:\d+)?")


@contextlib.contextmanager
def keep_memory() -> Iterator[bool]:
    """Let glibc keep up to 1 GiB of freed memory inside the block, instead of returning it after every step.

    Memory that was returned to the system comes back page by page, each cleared by the kernel, which slows
    down every training step on a CPU. Batches of different lengths fragment the memory, by several GB over
    time, so a thread returns all free memory every 20 seconds, and once more at the end of the block. Without
    glibc (macOS, musl) nothing happens. glibc cannot restore its adaptive thresholds, so the new thresholds
    stay in place after the block.

    Yields:
        True if the allocator accepted the thresholds.
    """
    try:
        set_option, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        yield False
        return
    accepted = all(set_option(option, _KEPT) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
    ended = threading.Event()

    def trim_regularly() -> None:
        while not ended.wait(_SECONDS):
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
    """The device of a worker process: a GPU, or one thread of the CPU, since other workers use the others."""
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
    if not _DEVICE.fullmatch(name):
        usual = name.lower().replace("gpu", "cuda")
        near = f" (did you mean {usual!r}?)" if _DEVICE.fullmatch(usual) else did_you_mean(usual, _NAMES)
        raise UserError(
            f"unknown device {name!r}{near}",
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
    """The names of this machine's devices."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    return [*names, *(["mps"] if torch.backends.mps.is_available() else [])]
