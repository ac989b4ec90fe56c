"""Models and corpora are pushed to the hub and pulled unchanged. The hub is a server in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import DatasetCard, ModelCard

import mtkd
from mtkd.models.model_card import model_card
from mtkd.models.saved_model import ModelInfo
from tasks.common.errors import UserError
from tasks.common.hub_loading import find_file, from_hub, is_hub_name
from tasks.common.locks import LOCK
from tasks.glue import TASKS

PAIRS = [("A man sleeps.", "Nobody is awake."), ("The dog ran home.", "A cat.")]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from_hub.cache_clear()
    with FakeHub().serve(monkeypatch, tmp_path / "cache") as served:
        yield served
    from_hub.cache_clear()


def test_a_pulled_model_equals_the_pushed_one(hub: FakeHub, tiny_teacher: Path, tmp_path: Path) -> None:
    address = mtkd.push(tiny_teacher, "someone/teacher")
    assert address.endswith("/someone/teacher") and hub.tokens == {"Bearer hf_test"}
    sent = hub.files["someone/teacher"]
    for file in (tiny_teacher / "model").iterdir():
        assert sent[file.name] == file.read_bytes()
    made = mtkd.pull("someone/teacher", out=tmp_path / "x")
    expected = mtkd.load(tiny_teacher).predict("rte", PAIRS)
    assert mtkd.load(made).predict("rte", PAIRS) == expected
    assert [file.name for file in made.glob(".*")] == [LOCK]
    assert mtkd.load("someone/teacher").predict("rte", PAIRS) == expected
    student = mtkd.distill(
        "mkd-lstm",
        teacher="someone/teacher",
        data="pocket",
        tasks="rte",
        limit=16,
        steps=1,
        settings={"student.bilstm.hidden_size": 8, "student.bilstm.embeddings": "teacher"},
        out=tmp_path / "student",
    )
    assert student.predict("rte", PAIRS)


def test_a_checkpoint_on_the_hub_predicts_and_is_timed_as_one_on_disk(
    hub: FakeHub, save_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)  # takes seconds
    place = save_checkpoint("Bert", id2label={0: "negative", 1: "positive"})
    hub.files["someone/checkpoint"] = {file.name: file.read_bytes() for file in place.iterdir()}
    (tmp_path / "rows.csv").write_text("sentence\nA fine film.\nA dull one.\n")
    for model, out in ((place, "disk.csv"), ("someone/checkpoint", "hub.csv")):
        assert mtkd.predict(model, "sst2", tmp_path / "rows.csv", tmp_path / out) == 2
    assert (tmp_path / "disk.csv").read_text() == (tmp_path / "hub.csv").read_text()
    (timed,) = mtkd.bench_inference(["someone/checkpoint"], seq_len=4, batch=1, rounds=1, warmup=0)
    assert timed.name == "someone/checkpoint"


def test_files_with_code_are_neither_pushed_nor_pulled(
    hub: FakeHub, tiny_teacher: Path, tmp_path: Path
) -> None:
    mtkd.push(tiny_teacher, "someone/teacher")
    hub.files["someone/teacher"] |= {"setup.py": b"print()", "pytorch_model.bin": b"x"}
    made = mtkd.pull("someone/teacher", out=tmp_path / "x")
    written = {file.name for file in made.iterdir()} - {LOCK}
    assert written == {file.name for file in (tiny_teacher / "model").iterdir()}


def test_a_corpus_is_pushed_as_a_data_set(hub: FakeHub, tmp_path: Path) -> None:
    mtkd.augment.mask(data="pocket", tasks="rte", limit=8, copies=2, out=tmp_path / "corpus")
    assert "/datasets/someone/copies" in mtkd.push(tmp_path / "corpus", "someone/copies")
    made = mtkd.pull("someone/copies", out=tmp_path / "again")
    for file in (tmp_path / "corpus").rglob("*.parquet"):
        assert (made / file.relative_to(tmp_path / "corpus")).read_bytes() == file.read_bytes()
    card = DatasetCard.load(made / "README.md")
    assert [config["config_name"] for config in card.data.configs] == ["rte"]
    assert len(list(made.glob(card.data.configs[0]["data_files"]))) > 0


def test_the_model_card_has_the_scores(tiny_teacher: Path) -> None:
    card = ModelCard.load(tiny_teacher / "model" / "README.md")
    scores = mtkd.load(tiny_teacher).scores
    found = {r.dataset_name: r.metric_value for r in card.data.eval_results if r.metric_type == "accuracy"}
    assert found["rte"] == pytest.approx(scores["rte"].metrics["accuracy"], abs=1e-4)
    assert card.data.library_name == "mtkd" and "rte" in card.text
    assert not card.data.datasets and {r.dataset_type for r in card.data.eval_results} == {"pocket"}, (
        "not trained on GLUE"
    )
    length = mtkd.load(tiny_teacher).module.info.max_length
    assert f"Texts are truncated to {length} tokens." in card.text and "windows" not in card.text
    assert "initialised from encoder, with" in card.text, "not the path of a user's directory"
    spans = model_card("A BERT", [TASKS["squad"]], ModelInfo(384), "", "")
    assert "Long contexts are read in windows of 384 tokens." in spans and "truncated" not in spans


def test_invalid_pushes_and_pulls_are_errors(
    hub: FakeHub, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="cannot download someone/none"):
        mtkd.pull("someone/none", out=tmp_path / "x")
    hub.files["someone/other"] = {"config.json": b"{}"}
    with pytest.raises(UserError, match="neither an mtkd model nor an mtkd corpus"):
        mtkd.pull("someone/other", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="does not contain an mtkd model"):
        mtkd.push(tmp_path, "someone/x")
    with pytest.raises(UserError, match="Repo id must use"):
        mtkd.push(tiny_teacher, "some one/x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"do not belong to a download: thesis\.tex"):
        mtkd.pull("someone/other", out=tmp_path / "full")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot upload"):
        mtkd.push(tiny_teacher, "someone/y")


def test_names_on_the_hub_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    names = {"bert-base-uncased": True, "owner/model": True, "runs/teacher": False, "runs": False}
    names |= {"/tmp/x": False, "../x": False, "a/b/c": False, "a b": False}
    assert {name: is_hub_name(name) for name in names} == names
    assert find_file("runs", "model.json") is None


def test_a_run_without_a_transformer_is_not_an_encoder(tmp_path: Path) -> None:
    run = tmp_path / "student"
    (run / "model").mkdir(parents=True)
    for file in ("run.json", "model/model.json"):
        (run / file).touch()
    with pytest.raises(UserError, match="cannot be the encoder: it is no Transformer"):
        mtkd.refine(run, data="pocket", tasks="rte", out=tmp_path / "run")
