"""The inference benchmark on tiny models."""

import time

import pytest
import torch

from mtkd.engine.bench import BenchSettings, bench_inference, common_head, random_inputs, time_in_turn
from mtkd.model import ModelInfo, MultiTaskModel
from mtkd.students.bilstm import BiLSTMConfig, BiLSTMEncoder
from mtkd.students.transformer import TransformerConfig, TransformerEncoder
from tasks.errors import UserError
from tasks.glue import TASKS
from tasks.tokenise import Tokeniser


@pytest.fixture(scope="module")
def tokeniser():
    import pyarrow as pa

    return Tokeniser.word_level([pa.array(["a few plain words", "and a few more"])])


def bilstm(tokeniser, tasks=("sst2", "rte")) -> MultiTaskModel:
    sizes = {"embedding_size": 8, "projection_size": 8, "hidden_size": 8, "output_size": 8}
    encoder = BiLSTMEncoder(BiLSTMConfig(vocab_size=tokeniser.vocab_size, **sizes))
    return MultiTaskModel(
        encoder, [TASKS[name] for name in tasks], tokeniser, ModelInfo(head_hidden=4)
    ).eval()


def bert(tokeniser, tasks=("sst2", "rte")) -> MultiTaskModel:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    hf = {"model_type": "bert", "vocab_size": tokeniser.vocab_size, "max_position_embeddings": 16, **sizes}
    encoder = TransformerEncoder(TransformerConfig(hf=hf))
    return MultiTaskModel(
        encoder, [TASKS[name] for name in tasks], tokeniser, ModelInfo(head_hidden=4)
    ).eval()


def test_results_of_saved_models(tokeniser, tmp_path):
    models = {"bert": bert(tokeniser), "bilstm": bilstm(tokeniser)}
    places = {name: tmp_path / name for name in models}
    for name, model in models.items():
        model.save(places[name])
    results = bench_inference(places, BenchSettings(seq_len=12, batch=3, rounds=3, warmup=1))
    assert [result.name for result in results] == ["bert", "bilstm"]
    assert results[0].speed == 1.0
    for result in results:
        assert 0 < result.fastest <= result.ms <= result.slowest
        assert result.rows_per_second == pytest.approx(3000 / result.ms)
        weights = sum(weight.numel() for weight in models[result.name].parameters())
        assert result.parameters.total == weights
        assert result.disk_bytes == (places[result.name] / "model.safetensors").stat().st_size > 4 * weights
        assert result.peak_bytes is None or 4 * weights <= result.peak_bytes < 4 * weights + 50e6
        assert result.to_json()["parameters"]["total"] == weights


def test_medians_and_turns():
    order = []
    waits = {"slow": [0.03, 0.04, 0.05], "fast": [0.0, 0.0, 0.0]}

    def run(name):
        order.append(name)
        time.sleep(waits[name][order.count(name) - 2] if order.count(name) > 1 else 0)

    times = time_in_turn({name: lambda name=name: run(name) for name in waits}, rounds=3, warmup=1)
    assert order == ["slow", "fast"] * 4
    assert all(0 <= taken - slept < 0.02 for taken, slept in zip(times["slow"], waits["slow"], strict=True))


def test_every_model_reads_the_same_number_of_real_tokens(tokeniser):
    settings = BenchSettings(seq_len=12, batch=3)
    joint = random_inputs(bert(tokeniser), "rte", settings).joint
    pair = random_inputs(bilstm(tokeniser), "rte", settings).texts
    single = random_inputs(bilstm(tokeniser), "sst2", settings).texts
    assert joint.ids.shape == (3, 12) and joint.mask.all()
    assert [text.ids.shape for text in pair] == [(3, 6), (3, 6)]
    assert [text.ids.shape for text in single] == [(3, 12)]
    long = random_inputs(bilstm(tokeniser), "rte", BenchSettings(seq_len=12, batch=3, texts_len=12)).texts
    assert [text.ids.shape for text in long] == [(3, 12), (3, 12)]
    assert torch.stack([t.ids.max() for t in (joint, *pair, *single)]).max() < tokeniser.vocab_size


def test_which_head_answers(tokeniser):
    both = {"a": bert(tokeniser), "b": bilstm(tokeniser)}
    assert common_head(both, None) == "rte"
    assert common_head(both, "sst2") == "sst2"
    assert common_head({**both, "c": bilstm(tokeniser, ("sst2",))}, None) == "sst2"
    with pytest.raises(UserError, match="'sst' .*'sst2'"):
        common_head(both, "sst")
    with pytest.raises(UserError, match="no task in common"):
        common_head({**both, "c": bilstm(tokeniser, ("cola",))}, None)


def test_refuses_what_cannot_be_run(tokeniser, tmp_path):
    bert(tokeniser).save(tmp_path / "bert")
    with pytest.raises(UserError, match=r"cannot read 17 tokens(.|\n)*16 or fewer"):
        bench_inference({"bert": tmp_path / "bert"}, BenchSettings(seq_len=17))
    with pytest.raises(UserError, match="device 'nowhere'"):
        bench_inference({"bert": tmp_path / "bert"}, BenchSettings(device="nowhere"))
