"""Stores of randomly chosen activations: the seed determines the choice, and a store serves one seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mtkd
from mtkd.knowledge_store.store_manifest import read_store_manifest
from tasks.common.errors import UserError
from tasks.common.records import write_record

SMALL: dict[str, Any] = {
    "student.max_length": 24,
    "student.transformer.init": "random",
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "student.dropout": 0.0,
    "terms.hidden.tokens": 4,
    "terms.hidden.width": 0.25,
    "terms.hidden.activation_selection": "random",
}
DATA: dict[str, Any] = {"data": "pocket", "tasks": "rte", "limit": 16}
RUN: dict[str, Any] = {**DATA, "eval_limit": 8, "epochs": 2, "device": "cpu"}


def test_a_store_records_and_checks_the_seed(tiny_teacher: Path, tmp_path: Path) -> None:
    recipe, place = "hsk-tinybert-4", tmp_path / "store"
    settings = SMALL | {"train.seed": 3}
    mtkd.build_store(recipe, teacher=tiny_teacher, out=place, dtype="fp32", settings=settings, **DATA)
    selection = read_store_manifest(place).contents.need.selection
    assert selection is not None and selection.seed == 3

    def student(out: str, seed: int, **source: Path) -> dict[str, torch.Tensor]:
        run = mtkd.distill(recipe, out=tmp_path / out, settings=SMALL, seed=seed, **source, **RUN)
        weights: dict[str, torch.Tensor] = run.module.state_dict()
        return weights

    online, stored = student("online", 3, teacher=tiny_teacher), student("stored", 3, store=place)
    for name in online:
        torch.testing.assert_close(online[name], stored[name], rtol=0, atol=5e-5, msg=name)
    with pytest.raises(UserError, match=r"by random \(seed 4\) of hidden states \(not only .* \(seed 3\)\)"):
        student("other", 4, store=place)
    manifest = json.loads((place / "manifest.json").read_text())  # as a store of format 3
    del manifest["contents"]["need"]["selection"]["seed"]
    write_record(place / "manifest.json", manifest | {"format": 3})
    with pytest.raises(UserError, match=r"\(seed 3\) of hidden states \(not only .* by random\)"):
        student("old", 3, store=place)
