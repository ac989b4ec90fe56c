"""What several benchmarks measure: the seconds of a call, and the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def extra_memory(work: Callable[[], object]) -> float:
    """Peak memory of one call in megabytes, in addition to what this process holds before it."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
    before = status_bytes("VmRSS")
    work()
    return (status_bytes("VmHWM") - before) / 1e6


def status_bytes(key: str) -> int:
    """A size from Linux's status of this process, such as VmRSS (current) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
