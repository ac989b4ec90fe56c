"""Whether a device multiplies in bf16, and which precision "auto" therefore stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from mtkd.device import find_device
from mtkd.settings import DistillSettings, FinetuneSettings, RefineSettings

AnySettings = TypeVar("AnySettings", DistillSettings, RefineSettings, FinetuneSettings)

_CPU_BF16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
_FIRST_BF16_GPU = (8, 0)
SLOW_BF16 = (
    "this processor does not multiply in bf16; on such a machine (AVX2 only) bf16 was 8.5 times slower than "
    'fp32. Use "fp32", or "auto" to choose by the machine.'
)


def multiplies_in_bf16(device: torch.device) -> bool:
    """True if the device has instructions for products of bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _FIRST_BF16_GPU
    if device.type == "cpu":
        # torch before 2.11 cannot tell
        capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capabilities.get(name, False) for name in _CPU_BF16)
    return False


def resolve_precision(settings: AnySettings, device: str | None, warn: Callable[[str], None]) -> AnySettings:
    """Replace every `precision = "auto"`: "bf16" if the device multiplies in it, else "fp32".

    Args:
        device: as `--device`; None = the best device available.
        warn: called if the settings request bf16 on a device that does not multiply in it.

    Raises:
        UserError: there is no such device.
    """
    fast = multiplies_in_bf16(find_device(device))
    requested: set[str] = set()

    def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
        if "precision" not in values:
            return {}
        requested.add(values["precision"])
        return {"precision": "bf16" if fast else "fp32"} if values["precision"] == "auto" else {}

    changed: dict[str, Any] = {"train": settings.train.model_copy(update=resolved(vars(settings.train)))}
    if isinstance(settings, DistillSettings):
        changed["teacher"] = settings.teacher.model_copy(update=resolved(vars(settings.teacher)))
        changed["stages"] = {
            name: stage.model_copy(update={"train": stage.train | resolved(stage.train)})
            for name, stage in settings.stages.items()
        }
    if "bf16" in requested and not fast:
        warn(SLOW_BF16)
    return settings.model_copy(update=changed)
