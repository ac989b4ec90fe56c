"""`precision = "auto"` on machines with and without bf16 instructions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import mtkd
from mtkd import precision
from mtkd.precision import resolve_precision, supports_bf16
from mtkd.recipes import load_settings
from tasks.common.errors import MtkdWarning

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
    warned: list[str] = []
    set_capabilities(monkeypatch)
    assert resolve_precision(settings, "cpu", warned.append) == settings
    assert len(warned) == 1 and "8.5 times slower" in warned[0]
    set_capabilities(monkeypatch, avx512_bf16=True)
    assert resolve_precision(settings, "cpu", pytest.fail) == settings


def test_the_default_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, avx512_bf16=True)
    settings = load_settings("refine", "refine", {})
    assert resolve_precision(settings, "cpu", pytest.fail).train.precision == "fp32"


@pytest.mark.parametrize(
    ("line", "expected"),
    [("flags\t\t: avx2 amx_bf16", True), ("Features\t: fp bf16", True), ("flags\t\t: avx2", False)],
)
def test_an_older_torch_asks_the_system(
    line: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(precision, "_CPU_INFO", tmp_path / "cpuinfo")
    assert not supports_bf16(torch.device("cpu")), "there is no such file on other systems"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\n", encoding="utf-8")
    assert supports_bf16(torch.device("cpu")) is expected


def test_commands_that_only_run_a_model_warn_of_slow_bf16_too(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: Any, **__: Any) -> None:
        raise mtkd.UserError("the end")

    monkeypatch.setattr("mtkd.evaluation.inference_bench.bench_inference", ends)
    monkeypatch.setattr("augment.questions.training.train_generator.train_generator", ends)
    monkeypatch.setattr("augment.questions.generation.prepare_generation.prepare_generation", ends)
    monkeypatch.setattr("mtkd.jobs.knowledge_store.plan_store.shutil.disk_usage", ends)
    monkeypatch.setattr("mtkd.jobs.knowledge_store.build_store.open_directory", ends)
    store: Any = {"data": "pocket", "tasks": "rte", "teacher": tiny_teacher, "limit": 8, "precision": "bf16"}
    for fast in (True, False):
        set_capabilities(monkeypatch, avx512_bf16=fast)
        for call in (
            lambda: mtkd.bench_inference([tiny_teacher], precision="bf16", device="cpu"),
            lambda: mtkd.plan_store("layerwise-3", out=tmp_path, **store),
            lambda: mtkd.build_store("layerwise-3", out=tmp_path / "store", **store),
            lambda: mtkd.augment.train_questions("t5", "pocket", tmp_path / "t5", precision="bf16"),
            lambda: mtkd.augment.generate_questions("t.txt", tmp_path, model="t5", precision="bf16"),
        ):
            with warnings.catch_warnings(record=True) as caught, pytest.raises(mtkd.UserError, match="end"):
                warnings.simplefilter("always", MtkdWarning)
                call()  # type: ignore[no-untyped-call]
            slow = [str(warning.message) for warning in caught if "8.5 times slower" in str(warning.message)]
            assert len(slow) == (0 if fast else 1)
