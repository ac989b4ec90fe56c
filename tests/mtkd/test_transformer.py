"""Transformer encoders against transformers itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from mtkd.model import ModelInfo, MultiTaskModel
from mtkd.records import Need
from mtkd.students.transformer import TransformerEncoder, locate, transformer_from
from tasks.batching import Inputs, Tokens
from tasks.errors import UserError
from tasks.glue import TASKS
from tasks.tokenise import Tokeniser


def batch(lengths: list[int], vocab: int = 400) -> Inputs:
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, vocab, (len(lengths), longest)) * mask
    return Inputs(joint=Tokens(ids, mask, torch.zeros_like(ids)))


def families() -> dict[str, object]:
    from transformers import BertConfig, DistilBertConfig, ElectraConfig, RobertaConfig

    sizes = {"vocab_size": 400, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    return {
        "bert": BertConfig(**sizes, intermediate_size=32),
        "roberta": RobertaConfig(**sizes, intermediate_size=32, pad_token_id=0, max_position_embeddings=40),
        "electra": ElectraConfig(**sizes, intermediate_size=32, embedding_size=12),
        "distilbert": DistilBertConfig(vocab_size=400, dim=24, n_layers=3, n_heads=2, hidden_dim=32),
    }


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert"])
def test_hidden_states_and_pooling_are_transformers_own(family: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    torch.manual_seed(0)
    original = AutoModel.from_config(families()[family]).eval()
    original.save_pretrained(tmp_path)
    encoder = TransformerEncoder.pretrained(str(tmp_path), "mean").eval()
    inputs = batch([9, 4])
    assert inputs.joint is not None
    with torch.no_grad():
        ours = encoder(inputs, Need(hidden=frozenset({0, 2, 3})))
        theirs = original(
            inputs.joint.ids, attention_mask=inputs.joint.mask.long(), output_hidden_states=True
        ).hidden_states
    assert set(ours.hidden) == {0, 2, 3}
    for layer, hidden in ours.hidden.items():
        torch.testing.assert_close(
            hidden[inputs.joint.mask], theirs[layer][inputs.joint.mask], atol=1e-5, rtol=0
        )
    means = torch.stack([theirs[-1][0].mean(0), theirs[-1][1, :4].mean(0)])
    torch.testing.assert_close(ours.pooled, means, atol=1e-5, rtol=0)

    short = transformer_from(encoder, 2, "cls-of-layers").eval()
    assert short.n_layers == 2
    with torch.no_grad():
        pooled = short(inputs).pooled
    torch.testing.assert_close(pooled, (theirs[1][:, 0] + theirs[2][:, 0]) / 2, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="has 3 layers"):
        transformer_from(encoder, 4, "cls")


def test_the_default_teacher_pools_as_its_directory_says() -> None:
    encoder = TransformerEncoder.pretrained("minilm")
    assert (encoder.n_layers, encoder.width, encoder.config.pooling) == (6, 384, "mean")


def test_a_model_is_the_same_after_saving(tmp_path: Path, tiny_encoder: Path) -> None:
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "cls")
    tokeniser = Tokeniser.load(locate("minilm"))
    model = MultiTaskModel(encoder, [TASKS["rte"], TASKS["stsb"]], tokeniser, ModelInfo(32, 0)).eval()
    model.save(tmp_path / "model")
    loaded = MultiTaskModel.load(tmp_path / "model")
    inputs = batch([6, 3])
    with torch.no_grad():
        torch.testing.assert_close(model(inputs, "rte").logits, loaded(inputs, "rte").logits, rtol=0, atol=0)
    assert loaded.tasks == model.tasks and loaded.info == model.info
    texts = pa.array(["one two", "three"])
    assert loaded.tokeniser.digest == tokeniser.digest
    assert (loaded.tokeniser.pieces(texts).values == tokeniser.pieces(texts).values).all()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        MultiTaskModel.load(tmp_path / "model")
