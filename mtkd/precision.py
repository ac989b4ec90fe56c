"""Whether a device has native bf16 support, and which precision "auto" therefore stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtkd.device import find_device
from mtkd.settings import DistillSettings, FinetuneSettings, RefineSettings

AnySettings = TypeVar("AnySettings", DistillSettings, RefineSettings, FinetuneSettings)

_TORCH_CAPABILITIES = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # names in `torch.cpu`
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # names in /proc/cpuinfo
_CPU_INFO = Path("/proc/cpuinfo")
_FIRST_BF16_GPU = (8, 0)  # CUDA compute capability
_SLOW_BF16 = (
    "this processor has no native bf16 support; on such a machine (AVX2 only), bf16 was 8.5 times slower "
    "than fp32. "
)


def supports_bf16(device: torch.device) -> bool:
    """True if the device has instructions for products of bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _FIRST_BF16_GPU
    if device.type == "cpu":
        if hasattr(torch.cpu, "get_capabilities"):  # torch 2.11 and later
            capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
            return any(capabilities.get(name, False) for name in _TORCH_CAPABILITIES)
        return bool(_CPU_FLAGS & _cpu_flags())
    return False


def _cpu_flags() -> set[str]:
    """The names of the processor's instruction sets on Linux; empty on other systems."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())


def warn_of_slow_bf16(precision: str, device: torch.device, warn: Callable[[str], None]) -> None:
    """Warn if bf16 is requested for a device without native bf16 support.

    Args:
        precision: "fp32", "bf16" or "auto"; only "bf16" can cause a warning.
        warn: called with the text of the warning.
    """
    if precision == "bf16" and not supports_bf16(device):
        warn(f'{_SLOW_BF16}Use "fp32".')


def resolve_precision(settings: AnySettings, device: str | None, warn: Callable[[str], None]) -> AnySettings:
    """Replace every `precision = "auto"`: by "bf16" if the device has native support for it, else by "fp32".

    Args:
        device: the name of a device; None = the best device available.
        warn: called with a warning if the settings request bf16 for a device without native support.

    Raises:
        UserError: there is no such device.
    """
    is_fast = supports_bf16(find_device(device))
    requested: set[str] = set()

    def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
        if "precision" not in values:
            return {}
        requested.add(values["precision"])
        return {"precision": "bf16" if is_fast else "fp32"} if values["precision"] == "auto" else {}

    changed: dict[str, Any] = {"train": settings.train.model_copy(update=resolved(vars(settings.train)))}
    if isinstance(settings, DistillSettings):
        changed["teacher"] = settings.teacher.model_copy(update=resolved(vars(settings.teacher)))
        changed["stages"] = {
            name: stage.model_copy(update={"train": stage.train | resolved(stage.train)})
            for name, stage in settings.stages.items()
        }
    if "bf16" in requested and not is_fast:
        warn(f'{_SLOW_BF16}Use "fp32", or "auto" to choose automatically.')
    return settings.model_copy(update=changed)
