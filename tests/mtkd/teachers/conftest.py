"""Tiny random checkpoints of transformers, as a user would have fine-tuned them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaTokenizerFast,
)

from mtkd.models.encoders.pretrained_config import locate
from tasks.sources import PocketSource, load_rows
from tasks.task_names import resolve

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "hidden_size": 16}
CLASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertForSequenceClassification, BertConfig, SIZES | {"max_position_embeddings": 64}),
    "bert-qa": (BertForQuestionAnswering, BertConfig, SIZES | {"max_position_embeddings": 64}),
    "roberta": (RobertaForSequenceClassification, RobertaConfig, SIZES | {"max_position_embeddings": 66}),
    "roberta-qa": (RobertaForQuestionAnswering, RobertaConfig, SIZES | {"max_position_embeddings": 66}),
    "distilbert": (
        DistilBertForSequenceClassification,
        DistilBertConfig,
        {"n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dim": 16, "max_position_embeddings": 64},
    ),
}


def byte_level_tokeniser(place: Path) -> RobertaTokenizerFast:
    """A byte-level BPE of 400 tokens, trained on the pocket rows of sst2."""
    rows = load_rows(PocketSource(), resolve("sst2")[0], "train")
    bpe = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(rows.texts[0].to_pylist(), vocab_size=400, special_tokens=specials)
    place.mkdir(parents=True, exist_ok=True)
    bpe.save_model(str(place))
    return RobertaTokenizerFast(vocab=str(place / "vocab.json"), merges=str(place / "merges.txt"))


@pytest.fixture
def save_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A function that saves a random checkpoint; weights are large, so that logits differ between rows."""

    def save(kind: str, name: str = "", *, seed: int = 0, **config: Any) -> Path:
        place = tmp_path / (name or kind)
        if kind.startswith("roberta"):
            tokeniser: Any = byte_level_tokeniser(tmp_path / "bpe")
        else:
            tokeniser = AutoTokenizer.from_pretrained(locate("minilm"))
        model_class, config_class, sizes = CLASSES[kind]
        torch.manual_seed(seed)
        special = {"pad_token_id": tokeniser.pad_token_id}
        model = model_class(config_class(vocab_size=len(tokeniser), **sizes, **special, **config))
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.mul_(8.0)
        model.save_pretrained(place)
        tokeniser.model_max_length = 64
        tokeniser.save_pretrained(place)
        return place

    return save
