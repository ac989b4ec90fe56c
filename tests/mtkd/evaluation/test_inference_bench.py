"""The inference benchmark on tiny models."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.numpy import load_file

import mtkd
from mtkd.evaluation import inference_bench as bench
from mtkd.evaluation.inference_bench import BenchSettings, common_head, random_inputs
from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo, disk_bytes
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.tokens.tokeniser import Tokeniser


@pytest.fixture(scope="module")
def tokeniser():
    import pyarrow as pa

    return Tokeniser.word_level([pa.array(["a few plain words", "and a few more"])])


def with_heads(encoder, tokeniser, tasks) -> MultiTaskModel:
    heads = [TASKS[name] for name in tasks]
    return MultiTaskModel(encoder, heads, tokeniser, ModelInfo(max_length=16, head_hidden_size=4)).eval()


def bilstm(tokeniser, tasks=("sst2", "rte")) -> MultiTaskModel:
    sizes = {"embedding_size": 8, "projection_size": 8, "hidden_size": 8, "output_size": 8}
    encoder = BiLSTMEncoder(BiLSTMConfig(vocab_size=tokeniser.vocab_size, **sizes))
    return with_heads(encoder, tokeniser, tasks)


def bert(tokeniser, tasks=("sst2", "rte")) -> MultiTaskModel:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    hf = {"model_type": "bert", "vocab_size": tokeniser.vocab_size, "max_position_embeddings": 16, **sizes}
    return with_heads(TransformerEncoder(TransformerConfig(hf=hf)), tokeniser, tasks)


def test_the_benchmark_reports_time_memory_and_size_of_saved_models(tokeniser, tmp_path, monkeypatch):
    models = {"bert": bert(tokeniser), "bilstm": bilstm(tokeniser)}
    places = {name: tmp_path / name for name in models}
    for name, model in models.items():
        model.save(places[name])

    def timed(runs, rounds, warmup, wait):
        assert {name: run().shape for name, run in runs.items()} == {"bert": (3, 2), "bilstm": (3, 2)}
        return {"bert": [0.2, 0.4, 0.3], "bilstm": [0.1, 0.1, 0.3]}

    monkeypatch.setattr(bench, "time_in_turn", timed)
    monkeypatch.setattr(bench, "_peak_apart", lambda place, head, settings: len(place.name))
    first, second = bench.bench_inference(places, BenchSettings(seq_len=12, batch=3))
    assert (first.name, first.speed, second.name) == ("bert", 1.0, "bilstm")
    assert (first.ms, first.fastest, first.slowest) == pytest.approx((300, 200, 400))
    assert (second.ms, second.rows_per_second) == pytest.approx((100, 30))
    assert second.speed == pytest.approx(2)  # the median of 2, 4 and 1
    assert second.speed_text == "2.00x" and replace(second, speed=0.00217).speed_text == "0.0022x"
    for result in (first, second):
        weights = sum(weight.numel() for weight in models[result.name].parameters())
        assert result.parameters.total == weights
        assert result.disk_bytes == disk_bytes(places[result.name]) > 4 * weights
        assert result.peak_bytes == len(result.name)
        assert result.to_json()["parameters"]["total"] == weights


def test_a_checkpoint_is_timed_with_heads_for_the_tasks_of_the_other_models(
    tokeniser, tmp_path, monkeypatch, save_checkpoint
):
    place = save_checkpoint("Bert")
    bilstm(tokeniser, ("rte",)).save(tmp_path / "student")
    monkeypatch.setattr(bench, "_peak_apart", lambda place, head, settings: None)
    small = {"seq_len": 12, "batch": 2, "rounds": 1, "warmup": 0}
    teacher, student = mtkd.bench_inference([place, tmp_path / "student"], **small)
    assert (teacher.name, student.name) == (str(place), str(tmp_path / "student"))
    encoder = sum(
        weight.size
        for name, weight in load_file(place / "model.safetensors").items()
        if name.startswith("bert.") and ".pooler." not in name
    )
    assert 0 <= teacher.parameters.total - encoder < 100_000
    assert mtkd.bench_inference({"alone": place}, **small)[0].parameters.total > encoder


@pytest.mark.slow(reason="a fresh process imports torch to measure its memory")
@pytest.mark.skipif(not bench.STATUS.exists(), reason="the system does not tell a process its peak memory")
def test_peak_memory_is_measured_for_the_batch(tokeniser, tmp_path):
    bilstm(tokeniser).save(tmp_path / "model")
    ballast = torch.ones(75_000_000)  # this process's own memory must not count
    settings = BenchSettings(seq_len=256, batch=512)
    peak = bench._peak_apart(tmp_path / "model", "rte", settings)
    widest = 512 * 128 * 48 * 4  # bytes of one text's input of the second BiLSTM, 6 * 8 wide
    assert widest < peak < 20 * widest < ballast.nbytes


def test_models_take_turns(monkeypatch):
    order, now = [], 0.0

    def run(name, takes):
        nonlocal now
        order.append(name)
        now += takes * len(order)

    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now))
    runs = {"slow": lambda: run("slow", 3.0), "fast": lambda: run("fast", 1.0)}
    times = bench.time_in_turn(runs, rounds=2, warmup=1)
    assert order == ["slow", "fast"] * 3
    assert times == {"slow": [9.0, 15.0], "fast": [4.0, 6.0]}


def test_every_model_reads_the_same_number_of_real_tokens(tokeniser):
    settings = BenchSettings(seq_len=12, batch=3)
    joint = random_inputs(bert(tokeniser), "rte", settings).joined
    pair = random_inputs(bilstm(tokeniser), "rte", settings).texts
    single = random_inputs(bilstm(tokeniser), "sst2", settings).texts
    assert joint.ids.shape == (3, 12) and joint.mask.all()
    assert [text.ids.shape for text in pair] == [(3, 6), (3, 6)]
    assert [text.ids.shape for text in single] == [(3, 12)]
    long = random_inputs(bilstm(tokeniser), "rte", BenchSettings(seq_len=12, batch=3, texts_len=12)).texts
    assert [text.ids.shape for text in long] == [(3, 12), (3, 12)]
    assert torch.stack([t.ids.max() for t in (joint, *pair, *single)]).max() < tokeniser.vocab_size


def test_the_head_to_be_timed_can_be_chosen(tokeniser):
    both = {"a": bert(tokeniser), "b": bilstm(tokeniser)}
    assert common_head(both, None) == "rte"
    assert common_head(both, "sst2") == "sst2"
    assert common_head({**both, "c": bilstm(tokeniser, ("sst2",))}, None) == "sst2"
    with pytest.raises(UserError, match=r"'sst' .*'sst2'"):
        common_head(both, "sst")
    with pytest.raises(UserError, match="no task in common"):
        common_head({**both, "c": bilstm(tokeniser, ("cola",))}, None)


def test_models_that_cannot_be_timed_are_rejected(tokeniser, tmp_path):
    bert(tokeniser).save(tmp_path / "bert")
    with pytest.raises(UserError, match=r"cannot read 17 tokens(.|\n)*16 or fewer"):
        bench.bench_inference({"bert": tmp_path / "bert"}, BenchSettings(seq_len=17))
    with pytest.raises(UserError, match="device 'nowhere'"):
        bench.bench_inference({"bert": tmp_path / "bert"}, BenchSettings(device="nowhere"))
