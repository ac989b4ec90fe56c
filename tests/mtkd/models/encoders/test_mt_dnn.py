"""Checkpoints in the format of MT-DNN, compared with the BERT that they contain."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from mtkd.models.encoders.pretrained_config import digest_encoder, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.saved_model import read_saved
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
CONFIG = {
    "vocab_size": 30522,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    **SIZES,
}


def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**CONFIG)).eval()


def checkpoint(model: BertModel) -> dict[str, Any]:
    """Return a checkpoint of MT-DNN: the encoder under "bert.", one head per task, and its options."""
    state: dict[str, Tensor] = {f"bert.{name}": value for name, value in model.state_dict().items()}
    state |= {"scoring_list.0.weight": torch.ones(3, 8), "scoring_list.0.bias": torch.zeros(3)}
    return {
        "state": state,
        "config": {**CONFIG, "answer_opt": [1, 0], "init_checkpoint": "bert.pt"},
    }


@pytest.mark.parametrize("old_names", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_the_converted_encoder_matches_the_checkpoint(tmp_path: Path, old_names: bool, zipped: bool) -> None:
    model = bert()
    parts = checkpoint(model)
    if old_names:  # the names of BERT in 2018
        for new, old in (("weight", "gamma"), ("bias", "beta")):
            parts["state"] = {
                name.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): value
                for name, value in parts["state"].items()
            }
    file = tmp_path / "mt_dnn.pt"
    torch.save(parts, file, _use_new_zipfile_serialization=zipped)
    encoder = TransformerEncoder.pretrained(str(file)).eval()
    ids = torch.randint(1000, 30000, (2, 9))
    kinds = torch.tensor([[0] * 4 + [1] * 5] * 2)
    with torch.no_grad():
        ours = encoder(ModelInputs(Tokens(ids, ids > 0, kinds)), OutputSpec(sequence=True)).sequence
        theirs = model(ids, token_type_ids=kinds).last_hidden_state
    torch.testing.assert_close(ours, theirs)
    shorter = TransformerEncoder.pretrained(str(file), layers=1)
    torch.testing.assert_close(
        shorter.body.encoder.layer[0].output.dense.weight, model.encoder.layer[0].output.dense.weight
    )


def test_a_checkpoint_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "mt_dnn.pt"
    torch.save(checkpoint(bert()), file)
    place = Path(locate(str(file)))
    assert place == tmp_path / "mt_dnn.pt.converted"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in place.iterdir()}
    assert Tokeniser.load(str(place)).digest == Tokeniser.load(locate("minilm")).digest
    written, digest = (place / "model.safetensors").stat().st_mtime_ns, digest_encoder(str(file))
    assert locate(str(file)) == str(place)
    assert (place / "model.safetensors").stat().st_mtime_ns == written
    changed = bert()
    changed.embeddings.word_embeddings.weight.data += 1
    torch.save(checkpoint(changed), file)
    os.utime(file, (later := (place / "model.safetensors").stat().st_mtime + 5, later))
    assert digest_encoder(str(file)) != digest


def test_a_teacher_can_be_refined_from_an_mt_dnn_checkpoint(mtkd: Callable, tmp_path: Path) -> None:
    torch.save(checkpoint(bert()), tmp_path / "mt_dnn.pt")
    small = ("--limit", 16, "--eval-limit", 8, "--epochs", 1, "--set", "max_length=24", "--device", "cpu")
    answered = mtkd(
        *("refine", "--encoder", tmp_path / "mt_dnn.pt", "--data", "pocket", "--tasks", "rte,sst2"),
        *("--recipe", "mkd-refine", "--out", tmp_path / "run", *small),
    )
    assert answered.code == 0, answered.err
    assert read_saved(tmp_path / "run").info.base == str(tmp_path / "mt_dnn.pt")


def without(parts: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    return {**parts, part: {key: value for key, value in parts[part].items() if key != name}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda parts: {**parts, "task": Fraction(1, 2)}, "strip_model.py"),
        (lambda parts: parts["state"], "no `state` and `config`"),
        (lambda parts: [1, 2], "no `state` and `config`"),
        (lambda parts: without(parts, "config", "hidden_size"), "no hidden_size"),
        (
            lambda parts: without(parts, "state", "bert.embeddings.word_embeddings.weight"),
            "do not fit its sizes",
        ),
        (lambda parts: {**parts, "config": {**CONFIG, "intermediate_size": 14}}, "do not fit its sizes"),
        (lambda parts: {**parts, "config": {**CONFIG, "vocab_size": 100}}, "a vocabulary of 100 tokens"),
        (lambda parts: {**parts, "state": {5: torch.ones(1)}}, "has 5, which is not a weight"),
        (lambda parts: {**parts, "state": {"bert.x": 5}}, "has 'bert.x', which is not a weight"),
        *(
            (lambda parts, key=key, value=value: {**parts, "config": {**CONFIG, key: value}}, problem)
            for key, value, problem in (
                ("num_attention_heads", 0, "num_attention_heads = 0 is not valid"),
                ("num_attention_heads", "2", "num_attention_heads = '2' is not valid"),
                ("num_attention_heads", 3, "not a multiple"),
                ("vocab_size", 30522.0, "vocab_size = 30522.0 is not valid"),
                ("hidden_size", None, "hidden_size = None is not valid"),
                ("num_hidden_layers", 10**7, "num_hidden_layers = 10000000 is not valid"),
                ("hidden_act", [1], r"hidden_act = \[1\] is not valid"),
                ("hidden_act", "evil", "'evil' is missing or unknown"),
                ("hidden_dropout_prob", 5, "hidden_dropout_prob = 5 is not valid"),
                ("layer_norm_eps", "x", "layer_norm_eps = 'x' is not valid"),
                ("initializer_range", "x", "initializer_range = 'x' is not valid"),
            )
        ),
    ],
)
def test_a_file_that_is_not_an_mt_dnn_checkpoint_is_one_error(
    tmp_path: Path, change: Callable[[Any], Any], problem: str
) -> None:
    torch.save(change(checkpoint(bert())), tmp_path / "mt_dnn.pt")
    with pytest.raises(UserError, match=problem):
        locate(str(tmp_path / "mt_dnn.pt"))
    assert [path.name for path in tmp_path.iterdir()] == ["mt_dnn.pt"]


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "damaged.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"damaged\.pt cannot be used: it is damaged"):
        locate(str(tmp_path / "damaged.pt"))
    with pytest.raises(UserError, match=r"no such file: .*nowhere\.pt"):
        locate(str(tmp_path / "nowhere.pt"))
