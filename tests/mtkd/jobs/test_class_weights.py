"""Class weights compared with torch's weighted cross-entropy, and the settings for unlabelled rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from mtkd.jobs.class_weights import check_class_weights, weigh_classes
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.distillation.unlabelled_rows import confident_rows
from mtkd.jobs.refine import refine
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import TaskData, TrainingData
from mtkd.losses.logits import LogitsMSE
from mtkd.losses.objective import Objective, labels_objective
from mtkd.outputs import ModelOutput
from mtkd.recipes import load_settings
from mtkd.train_settings import TrainSettings
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.task import Task

THREE = Task(name="three", kind="classify", columns=("a",), labels=("x", "y", "z"))
LABELS = [0, 0, 0, 1, 2, 2]


def data() -> TrainingData:
    rows = {"a": [f"text {n}" for n in range(6)], "label": LABELS}
    return TrainingData(
        [TaskData(THREE, load_rows(open_data({"three": {"train": rows}}), THREE, "train"), {})]
    )


@pytest.mark.parametrize("setting", ["balanced", [1.0, 4.0, 0.5], [0.0, 2.0, 2.0]])
def test_the_loss_matches_the_weighted_cross_entropy_of_torch(setting: Any) -> None:
    loaded = data()
    labels = torch.tensor([*LABELS, torch.nan])  # the last row has no label
    objective = weigh_classes(labels_objective(), TrainSettings(class_weights=setting), loaded)
    expected = torch.tensor([1 / 3, 1.0, 1 / 2] if setting == "balanced" else setting)
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    mean = functional.cross_entropy(logits[:6], labels[:6].long(), expected)
    for parts in ([slice(0, 7)], [slice(0, 3), slice(3, 7)]):
        found = 0.0
        for part in parts:  # micro-batches, or the parts of processes
            batch: Any = SimpleNamespace(labels=labels[part], groups=None)
            found += float(objective(THREE, batch, ModelOutput(logits=logits[part]), None, [6])[0])
        assert found == pytest.approx(float(mean), rel=1e-5)
    with pytest.raises(UserError, match=r"all labelled training rows of 'three' the weight 0"):
        loaded.parts[0].train.labels[:] = 0.0
        weigh_classes(labels_objective(), TrainSettings(class_weights=[0.0, 1.0, 1.0]), loaded)


def test_invalid_class_weights_are_rejected(tiny_encoder: Path, tmp_path: Path) -> None:
    for weights, tasks, objective, message in (
        ([1.0, 2.0], [THREE], labels_objective(), "the task 'three' has 3 labels, not 2"),
        ("balanced", [TASKS["stsb"]], labels_objective(), "no task of this run is a classification"),
        ("balanced", [THREE], Objective({"kd": LogitsMSE()}), "no loss of this run is the loss on labels"),
    ):
        with pytest.raises(UserError, match=message):
            check_class_weights(TrainSettings(class_weights=weights), tasks, objective)
    only_zero = {
        "sst2": {split: {"sentence": ["bad"] * 8, "label": [0] * 8} for split in ("train", "validation")}
    }
    with pytest.raises(UserError, match="all labelled training rows of 'sst2' the weight 0"):
        settings = load_settings("refine", "refine", {"train.class_weights": [0.0, 1.0]})
        refine(Request(open_data(only_zero), "sst2", tmp_path / "zero"), settings, str(tiny_encoder))
    assert not (tmp_path / "zero").exists()
    for name in ("unlabelled_fraction", "min_confidence"):
        settings = load_settings("refine", "refine", {f"train.{name}": 0.5})
        with pytest.raises(UserError, match=f"train.{name} = 0.5, but mtkd refine does not use"):
            refine(Request("pocket", "sst2", tmp_path / "run", 16, 16), settings, str(tiny_encoder))


def test_rows_of_which_the_teacher_is_unsure_are_dropped() -> None:
    loaded = data()
    labels = loaded.parts[0].train.labels
    labels[2:] = np.nan
    share = np.array([0.1, 0.1, 0.95, 0.5, 0.9, 0.6])
    logits = np.log(np.stack([share, (1 - share) / 2, (1 - share) / 2], 1))
    found = confident_rows(loaded, {"three": lambda rows: logits[rows]}, 0.75)
    assert found["three"].tolist() == [True, True, True, False, True, False]


def test_a_run_drops_rows_with_low_confidence(tiny_teacher: Path, tmp_path: Path) -> None:
    changes = {
        "train.steps": 2,
        "train.batch_size": 8,
        "student.head_hidden_size": 8,
        "student.max_length": 24,
    }
    changes |= {f"student.bilstm.{size}_size": 8 for size in ("embedding", "projection", "hidden", "output")}
    train = {"sentence": ["good", "bad"] * 8, "label": [1, 0] * 8}
    splits = {
        "train": train,
        "validation": train,
        "unlabelled": {"sentence": [f"word {n}" for n in range(20)]},
    }
    request = Request(open_data({"sst2": splits}), "sst2", tmp_path / "all")
    with pytest.raises(UserError, match="no task of this run is a classification"):
        other = Request("pocket", "stsb", tmp_path / "stsb", 16, 16)
        distill(other, load_settings("mkd-lstm", "distill", {"train.min_confidence": 0.9}), str(tiny_teacher))
    settings = load_settings("mkd-lstm", "distill", changes | {"train.min_confidence": 1.0})
    made = distill(request, settings, str(tiny_teacher))
    assert made.record["dropped"] == {"sst2": 20}
    request = Request(open_data({"sst2": {"train": train, "validation": train}}), "sst2", tmp_path / "none")
    fewer = distill(request, load_settings("mkd-lstm", "distill", changes), str(tiny_teacher))
    one, other_weights = made.model().state_dict(), fewer.model().state_dict()
    assert all(torch.equal(one[name], other_weights[name]) for name in one), "as if they were not there"
    with pytest.raises(UserError, match=r"train.unlabelled_fraction = 0.5, but all rows have labels"):
        settings = load_settings("mkd-lstm", "distill", changes | {"train.unlabelled_fraction": 0.5})
        distill(Request(request.data, "sst2", tmp_path / "other"), settings, str(tiny_teacher))
