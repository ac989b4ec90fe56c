"""A tiny encoder and a tiny teacher that several test files start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtkd.jobs.common import Request
from mtkd.jobs.refine import refine
from mtkd.recipes import load_settings

SMALL_RUN = {"train.epochs": 1, "train.batch_size": 16, "max_length": 32, "train.warmup": 0.0}


@pytest.fixture(scope="session")
def tiny_encoder(build_once: Callable[..., Path], save_random_bert: Callable[..., None]) -> Path:
    """A directory as transformers saves it: a random BERT of 3 layers, 16 wide, with the real vocabulary."""
    return build_once("encoder", lambda place: save_random_bert(place, heads=2, hidden_size=16))


@pytest.fixture(scope="session")
def tiny_teacher(tiny_encoder: Path, build_once: Callable[..., Path]) -> Path:
    """A finished run of `refine` on three pocket tasks."""
    settings = load_settings("refine", "refine", SMALL_RUN)

    def make(out: Path) -> None:
        refine(Request("pocket", "sst2,rte,stsb", out, 48, 32), settings, str(tiny_encoder))

    return build_once("teacher", make)


@pytest.fixture(scope="session")
def span_teacher(tiny_encoder: Path, build_once: Callable[..., Path]) -> Path:
    """A finished run of `refine` on two pocket tasks, one of spans."""
    settings = load_settings("refine", "refine", SMALL_RUN | {"max_length": 48, "stride": 8})

    def make(out: Path) -> None:
        refine(Request("pocket", "squad_v2,rte", out, 48, 32), settings, str(tiny_encoder))

    return build_once("span-teacher", make)
