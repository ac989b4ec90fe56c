"""`precision = "auto"`: what it becomes on machines with and without bf16 products."""

from __future__ import annotations

import pytest
import torch

from mtkd.precision import resolve_precision
from mtkd.recipes import load_settings

SET = {"train.precision": "auto", "teacher.precision": "auto", "stages.layers.train.precision": "auto"}


def set_capabilities(monkeypatch: pytest.MonkeyPatch, **found: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, **found}, raising=False)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("avx512_bf16", "bf16"), ("amx_bf16", "bf16"), ("bf16", "bf16"), ("avx512_f", "fp32")],
)
def test_auto_follows_the_processor(flag: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, **{flag: True})
    settings = load_settings("tinybert-4", "distill", SET)
    found = resolve_precision(settings, "cpu", pytest.fail)
    stages = {stage.name: stage.train.precision for stage in found.resolved_stages()}
    assert stages == {"layers": expected, "prediction": expected}
    assert found.teacher.precision == expected and settings.train.precision == "auto"


@pytest.mark.parametrize("key", ["train.precision", "teacher.precision", "stages.layers.train.precision"])
def test_bf16_warns_where_it_is_slow(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings("tinybert-4", "distill", {key: "bf16"})
    warnings: list[str] = []
    set_capabilities(monkeypatch)
    assert resolve_precision(settings, "cpu", warnings.append) == settings
    assert len(warnings) == 1 and "8.5 times slower" in warnings[0]
    set_capabilities(monkeypatch, avx512_bf16=True)
    assert resolve_precision(settings, "cpu", pytest.fail) == settings


def test_the_default_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, avx512_bf16=True)
    settings = load_settings("refine", "refine", {})
    assert resolve_precision(settings, "cpu", pytest.fail).train.precision == "fp32"
