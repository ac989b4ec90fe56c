"""Training with complete and with sharded weights, which `test_sharded_module.py` runs in two processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from small_students import SMALL_TRANSFORMER
from torch.distributed.tensor import DTensor

from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.recipes import load_settings
from mtkd.training.trainer import Trainer

SHORT = {"train.steps": 2, "train.lr": 1e-2, "train.batch_size": 8}
RECIPES: dict[str, dict[str, Any]] = {
    # Hidden states, so that layers are sharded again between forward and backward pass.
    "layerwise-3": {**SHORT, "train.micro_batch_size": 3, "train.max_grad_norm": 0.5},
    # Only attention scores, which are inside of layers, so that an unsharded pass stops early; and weights of
    # layers in buffers, which every batch changes.
    "bert-emd-4": {
        **SMALL_TRANSFORMER,
        **SHORT,
        "terms.hidden.weight": 0,
        "run_stages": ["layers"],
        "train.max_grad_norm": None,
    },
}


def train_both_ways(out: str, teacher: str) -> None:
    """Train the students of some recipes in `out/DDP/RECIPE` and `out/FSDP/RECIPE`, and check the shards."""
    parallel_module = Trainer.parallel_module

    def checked(trainer: Trainer) -> Any:
        parallel = parallel_module(trainer)
        check_shards(parallel.module, sharded=os.environ["ACCELERATE_USE_FSDP"] == "true")
        return parallel

    Trainer.parallel_module = checked  # type: ignore[method-assign]
    for way in ("DDP", "FSDP"):
        os.environ["ACCELERATE_USE_FSDP"] = str(way == "FSDP").lower()
        for recipe, changes in RECIPES.items():
            settings = load_settings(recipe, "distill", changes)
            distill(Request("pocket", "rte", Path(out, way, recipe), 24, 8), settings, teacher)


def check_shards(module: torch.nn.Module, sharded: bool) -> None:
    """Check that this process holds its half of the rows of every parameter, or all of them."""
    rank = int(os.environ["RANK"])
    for name, param in module.named_parameters():
        assert isinstance(param, DTensor) == sharded, name
        if isinstance(param, DTensor):
            first = -(-len(param) // 2)
            assert len(param.to_local()) == (len(param) - first if rank else first), name
