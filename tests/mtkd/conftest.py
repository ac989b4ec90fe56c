"""A tiny encoder and a tiny teacher that several test files start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtkd.jobs.common import Request
from mtkd.jobs.refine import refine
from mtkd.models.encoders.pretrained_config import locate
from mtkd.recipes import load_settings

SMALL_RUN = {"train.epochs": 1, "train.batch_size": 16, "max_length": 32, "train.warmup": 0.0}


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as transformers saves it: a random BERT of 3 layers, 16 wide, with the real vocabulary."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    place = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        hidden_dropout_prob=0.1,
    )
    BertModel(config).save_pretrained(place)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def tiny_teacher(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `refine` on three pocket tasks."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    settings = load_settings("refine", "refine", SMALL_RUN)
    refine(Request("pocket", "sst2,rte,stsb", out, 48, 32), settings, str(tiny_encoder))
    return out
