"""A student exported as a transformers model gives the same predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exportable_models import bi_encoder, bilstm, model_of
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, RobertaConfig, pipeline

import mtkd
from mtkd.models.encoders.pretrained_config import config_of
from mtkd.models.encoders.transformer import TransformerEncoder
from tasks.common.errors import UserError

PAIRS = [("A man sleeps.", "Nobody is awake."), ("The dog ran home to its owner.", "A cat."), ("x", "x")]
LONG = (" ".join(f"word {n}" for n in range(200)), "A man sleeps.")


def roberta() -> TransformerEncoder:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    hf = RobertaConfig(**sizes, vocab_size=30522, max_position_embeddings=66, type_vocab_size=2)
    return TransformerEncoder(config_of(hf).model_copy(update={"pooling": "pooler"}))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_exported_classifier_works_in_a_transformers_pipeline(
    family: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "pooler") if family == "bert" else roberta()
    model = mtkd.Model(model_of(encoder, tiny_encoder, "rte,sst2,stsb", head_hidden_size=0))
    found = mtkd.export(model, out=tmp_path / "x", format="transformers", tasks="rte")
    assert found.difference < 1e-4 and found.tasks == ["rte"]
    ask = pipeline("text-classification", model=str(tmp_path / "x"), top_k=None)
    pairs = [*PAIRS, LONG]
    for (first, second), wanted in zip(pairs, model.predict("rte", pairs), strict=True):
        answers = ask({"text": first, "text_pair": second}, truncation=True)
        made = {answer["label"]: answer["score"] for answer in answers}
        assert made == pytest.approx(wanted["probabilities"], abs=1e-4)
    mtkd.export(model, out=tmp_path / "y", format="transformers", tasks="stsb")
    score = pipeline("text-classification", model=str(tmp_path / "y"), function_to_apply="none")
    (first, second), wanted = PAIRS[0], model.predict("stsb", PAIRS[:1])[0]["prediction"]
    (made,) = [score({"text": first, "text_pair": second})]
    assert min(5, max(0, made["score"])) == pytest.approx(wanted, abs=1e-3)  # predictions stay in the range


def test_an_export_can_be_a_teacher(tiny_encoder: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "pooler")
    model = mtkd.Model(model_of(encoder, tiny_encoder, "rte", head_hidden_size=0))
    found = mtkd.export(model, out=tmp_path / "x", format="transformers", data="pocket", limit=30)
    assert found.scores["rte"].difference == 0
    assert mtkd.evaluate(tmp_path / "x", data="pocket", tasks="rte", limit=30)


def test_an_exported_ranking_model_has_one_score(tiny_encoder: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "pooler")
    model = mtkd.Model(model_of(encoder, tiny_encoder, "qnli_rank", head_hidden_size=0))
    assert mtkd.export(model, out=tmp_path / "x", format="transformers").difference < 1e-4
    assert mtkd.evaluate(tmp_path / "x", data="pocket", tasks="qnli_rank", limit=30)


def test_an_exported_span_model_finds_the_same_spans(span_teacher: Path, tmp_path: Path) -> None:
    mtkd.export(span_teacher, out=tmp_path / "x", format="transformers", tasks="squad_v2")
    reader = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "x").eval()
    tokeniser = AutoTokenizer.from_pretrained(tmp_path / "x")
    with torch.no_grad():
        out = reader(**tokeniser("Who sleeps?", "A man sleeps.", return_tensors="pt"))
    assert out.start_logits.shape == out.end_logits.shape


def test_models_that_transformers_cannot_express_are_rejected(tiny_encoder: Path, tmp_path: Path) -> None:
    for encoder, what in (
        (bilstm(tiny_encoder), "bilstm"),
        (bi_encoder(tiny_encoder), "a bi-encoder"),
        (TransformerEncoder.pretrained(str(tiny_encoder), "mean"), "mean pooling"),
    ):
        model = mtkd.Model(model_of(encoder, tiny_encoder, "rte", head_hidden_size=0))
        with pytest.raises(UserError, match=f"{what} .*cannot be written|a {what}") as refused:
            mtkd.export(model, out=tmp_path / "x", format="transformers")
        assert "`format='onnx'`" in str(refused.value)
    hidden = mtkd.Model(model_of(roberta(), tiny_encoder, "rte,sst2", head_hidden_size=8))
    with pytest.raises(UserError, match="a head with a hidden layer"):
        mtkd.export(hidden, out=tmp_path / "x", format="transformers", tasks="rte")
    with pytest.raises(UserError, match="the head of one task, not 2"):
        mtkd.export(hidden, out=tmp_path / "x", format="transformers")
    with pytest.raises(UserError, match=r"`format=.tensorflow.` is not valid"):
        mtkd.export(hidden, out=tmp_path / "x", format="tensorflow")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`int8` applies only to"):
        mtkd.export(hidden, out=tmp_path / "x", format="transformers", int8=True)
    assert not list(tmp_path.iterdir())
