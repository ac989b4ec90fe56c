"""Tasks with the names of methods of torch modules can be trained, saved, loaded and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from exportable_models import slow_export
from safetensors.torch import load_file
from small_students import SMALL_LSTM, SMALL_TRANSFORMER

import mtkd

NAMES = ("type", "keys", "float", "training", "get_submodule")
ROWS = {"text": [f"row {n}" for n in range(16)], "label": [n % 2 for n in range(16)]}
DATA = {name: {"train": ROWS, "validation": ROWS} for name in NAMES}
TASKS = [mtkd.Task(name=name, kind="classify", columns=("text",), labels=("no", "yes")) for name in NAMES]


@pytest.mark.parametrize("recipe", ["mkd-lstm", slow_export("mkd-transformer")])
def test_a_task_can_be_called_like_a_method(recipe: str, tiny_encoder: Path, tmp_path: Path) -> None:
    sizes = SMALL_LSTM if recipe == "mkd-lstm" else {**SMALL_TRANSFORMER, "student.transformer.layers": 1}
    settings = {**sizes, "supervision": "labels", "train.steps": 5, "student.init_heads": "random"}
    if recipe == "mkd-transformer":
        settings |= {"student.transformer.init": "random", "student.transformer.pooling": "mean"}
    model = mtkd.distill(
        recipe, data=DATA, tasks=TASKS, teacher=str(tiny_encoder), out=tmp_path / "run", settings=settings
    )
    assert list(model.module.heads) == list(NAMES)
    files = load_file(tmp_path / "run" / "model" / "heads.safetensors")
    assert {name.split(".")[0] for name in files} == set(NAMES), "the prefix is not in files"
    again = mtkd.load(tmp_path / "run").module.state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.module.state_dict().items())
    exported = NAMES if recipe == "mkd-lstm" else NAMES[:2]  # the graph of a Transformer takes seconds
    mtkd.export(tmp_path / "run", out=tmp_path / "onnx", tasks=",".join(exported))
    for name in exported:
        one, other = (mtkd.load(tmp_path / place).predict(name, ["row 3"]) for place in ("run", "onnx"))
        assert np.isclose(one[0]["probabilities"]["yes"], other[0]["probabilities"]["yes"], atol=1e-4)
