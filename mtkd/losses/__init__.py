"""Losses: one class each, such as `mtkd.losses.SoftLabels`; `loss_registry.BUILT_IN` lists them by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _classes() -> dict[str, str]:
    """Class name -> module of this package."""
    from mtkd.losses.loss_registry import BUILT_IN

    return {loss: module for module, _, loss in (location.partition(".") for location in BUILT_IN.values())}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in (classes := _classes()):
        raise AttributeError(f"module 'mtkd.losses' has no attribute {name!r}")
    return getattr(import_module(f"mtkd.losses.{classes[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_classes()})
