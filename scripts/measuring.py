"""Helpers that several benchmarks share: a student, measuring time and memory, and printing ratios."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

TINYBERT_4 = {
    "model_type": "bert",
    "num_hidden_layers": 4,
    "hidden_size": 312,
    "intermediate_size": 1200,
    "num_attention_heads": 12,
}
_KEPT_BYTES = 1 << 32
_TUNABLES = f"glibc.malloc.mmap_threshold={_KEPT_BYTES}:glibc.malloc.trim_threshold={_KEPT_BYTES}"


def restart_keeping_memory() -> None:
    """Restart this script with a setting of glibc that keeps freed memory, unless it is set already.

    Otherwise, glibc returns large blocks to the kernel, which clears them before it hands them out again.
    """
    if os.environ.get("GLIBC_TUNABLES") != _TUNABLES:
        os.environ["GLIBC_TUNABLES"] = _TUNABLES
        os.execv(sys.executable, [sys.executable, *sys.argv])


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def device_time() -> float:
    """`time.perf_counter()` once the GPU, if there is one, has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def extra_memory(work: Callable[[], object]) -> float:
    """Peak memory of one call in megabytes (of the GPU, if there is one), without what was held before."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - held) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
    before = status_bytes("VmRSS")
    work()
    return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """A size from /proc/self/status, such as VmRSS (current memory) or VmHWM (peak memory)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def report(name: str, base: str, rates: list[float], base_rates: list[float], unit: str) -> None:
    """Print the median of some rates, and the median and range of their ratios to those of a base.

    Args:
        rates: one rate per round.
        base_rates: the rates of the base in the same rounds.
    """
    ratios = [a / b for a, b in zip(rates, base_rates, strict=True)]
    print(
        f"  {name:42} {statistics.median(rates):10.1f} {unit}; relative to {base!r}: "
        f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
