"""Small models of every kind, with random weights.

Transformers have one layer, because tracing a graph takes seconds per layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DebertaV2Config

from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.pretrained_config import config_of
from mtkd.models.encoders.static import StaticConfig, StaticEncoder
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.encoders.waldorf import WaldorfConfig, WaldorfEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser


def bilstm(tiny: Path) -> AnyEncoder:
    return BiLSTMEncoder(BiLSTMConfig(vocab_size=30522, embedding_size=8, hidden_size=6, output_size=12))


def static(tiny: Path) -> AnyEncoder:
    return StaticEncoder(StaticConfig(vocab_size=30522, width=8, hidden_size=12, output_size=10))


def waldorf(tiny: Path) -> AnyEncoder:
    return WaldorfEncoder(WaldorfConfig(vocab_size=30522, layers=1, hidden_size=16, intermediate_size=24))


def cross_encoder(tiny: Path) -> AnyEncoder:
    return TransformerEncoder.pretrained(str(tiny), layers=1)


def deberta(tiny: Path) -> AnyEncoder:
    """Return an encoder with its own implementation of attention, which cannot be captured."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "vocab_size": 30522}
    return TransformerEncoder(config_of(DebertaV2Config(**sizes, **relative)))


def bi_encoder(tiny: Path) -> AnyEncoder:
    return TransformerEncoder.pretrained(str(tiny), "mean", layers=1, pairs="bi-encoder")


def by_task(tiny: Path) -> AnyEncoder:
    """Return a cross-encoder that is a bi-encoder for the tasks `rte` and `stsb`."""
    return TransformerEncoder.pretrained(str(tiny), "mean", layers=1, pairs=["rte", "stsb"])


def model_of(encoder: AnyEncoder, tiny: Path, tasks: str, **info: Any) -> MultiTaskModel:
    torch.manual_seed(0)
    model = MultiTaskModel(encoder, resolve(tasks), Tokeniser.load(str(tiny)), ModelInfo(40, **info))
    for weight in model.head_modules.parameters():  # large, so that logits differ between rows
        torch.nn.init.normal_(weight)
    return model.eval()


def slow_export(value: Any) -> Any:
    """Return a test parameter, marked as slow, for a model whose export takes many seconds."""
    return pytest.param(value, marks=pytest.mark.slow(reason="exports a model"))


KINDS = [bilstm, *map(slow_export, (static, bi_encoder, cross_encoder, waldorf, by_task, deberta))]
