"""The precision in which a question generator runs."""

from __future__ import annotations

from typing import Any, Literal

from mtkd.precision import supports_bf16


def choose_precision(precision: str, backend: str, device: Any) -> Literal["fp32", "bf16"]:
    """The precision that was asked for; for "auto", bf16 if the native backend runs on a device for it."""
    if precision != "auto":
        return "bf16" if precision == "bf16" else "fp32"
    return "bf16" if backend == "native" and supports_bf16(device) else "fp32"
