"""Encoders can be compiled by torch.compile: as one graph, with the same results."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import OutputSpec
from tasks.tokens.batching import ModelInputs, Tokens


def tensors_of(output: Any) -> list[torch.Tensor]:
    found = []
    for field in fields(output):
        value = getattr(output, field.name)
        for tensor in value.values() if isinstance(value, dict) else [value]:
            found += [tensor] if isinstance(tensor, torch.Tensor) else []
    return found


@pytest.mark.slow(reason="importing and running torch's compiler takes ten seconds")
@pytest.mark.parametrize(
    "need",
    [
        OutputSpec(hidden=frozenset({0, 1}), query=frozenset({2})),  # the pass stops inside the second layer
        OutputSpec(hidden=frozenset({1}), scores=frozenset({2}), context=frozenset({2}), pooled=True),
        OutputSpec(pooled=True),  # the last layer is run for the first token only
    ],
)
def test_an_encoder_compiles_to_one_graph_with_the_same_results(need: OutputSpec) -> None:
    torch.manual_seed(0)
    config = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
    encoder = TransformerEncoder(
        TransformerConfig(hf={**config, "num_attention_heads": 2, "vocab_size": 50})
    ).eval()
    inputs = []
    for length in (12, 7):
        mask = torch.arange(length) < torch.tensor([[length], [length - 3]])
        tokens = Tokens(torch.randint(50, (2, length)), mask, torch.zeros(2, length, dtype=torch.long))
        inputs.append(ModelInputs(joined=tokens))
    expected = [encoder(each, need) for each in inputs]
    torch.compiler.reset()
    encoder.compile(backend="eager", fullgraph=True)  # which raises if there are several graphs
    for each, eager in zip(inputs, expected, strict=True):
        pairs = list(zip(tensors_of(encoder(each, need)), tensors_of(eager), strict=True))
        assert pairs
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)
