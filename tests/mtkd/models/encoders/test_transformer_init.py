"""Initialisation of Transformer students: the first of several encoders, and pooling layers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.refine import refine
from mtkd.jobs.request import Request
from mtkd.models.encoders.encoder_registry import build_student, student_settings
from mtkd.models.encoders.pretrained_config import pretrained_config
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.encoders.transformer_init import student_transformer
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pretrained_weights import BIN, SAFETENSORS
from mtkd.outputs import OutputSpec
from mtkd.recipes import load_settings
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser

IDS = torch.tensor([[101, 2023, 2003, 102], [101, 2748, 102, 0]])
INPUTS = ModelInputs(joined=Tokens(IDS, IDS != 0, torch.zeros_like(IDS)))
GENERAL = {"4": "huawei-noah/TinyBERT_General_4L_312D", "6": "huawei-noah/TinyBERT_General_6L_768D"}


def start_of(init: Any, teacher: Path | None = None, **sizes: Any) -> tuple[str, list[str]]:
    """Return what a student starts from, and the warnings."""
    settings = student_settings({"kind": "transformer", "transformer": {"init": init, **sizes}})
    spec = InitSpec(pretrained_config(str(teacher)) if teacher else None, None)
    found, warnings = settings.resolved(spec)
    return found.transformer.init, warnings


@pytest.mark.parametrize("recipe", ["mlkd-bert-4", "mlkd-bert-6", "tinybert-4", "tinybert-6", "bert-emd-4"])
def test_recipes_start_from_the_general_models_of_tinybert(recipe: str) -> None:
    def init(changes: dict, task: str) -> Any:
        return load_settings(recipe, "distill", changes, task).student.transformer.init

    assert init({}, "rte") == [GENERAL[recipe[-1]], "random"]
    assert init({}, "text") == "random", "general distillation"
    assert init({"student.transformer.init": "runs/general"}, "text") == "runs/general"


def test_the_first_compatible_encoder_is_used(
    tiny_encoder: Path, save_random_bert: Any, tmp_path: Path
) -> None:
    there = str(tiny_encoder)
    assert start_of([there, "random"]) == (there, [])
    assert start_of("no/such") == ("no/such", []), "one alone is found to be missing where it is loaded"
    start, warnings = start_of(["no/such", there, "random"])
    assert start == there and len(warnings) == 1
    for part in (f"starts from {there} instead of no/such", "hub cannot be reached", f"`init={there!r}`"):
        assert part in warnings[0]
    start, warnings = start_of([there, "random"], hidden_size=32, heads=2)
    assert start == "random" and "cannot have width 32 instead of 16" in warnings[0]
    (tmp_path / "config.json").write_text((tiny_encoder / "config.json").read_text())
    start, warnings = start_of([str(tmp_path), "random"], heads=2)
    assert start == "random" and "neither model.safetensors nor" in warnings[0]
    with pytest.raises(UserError, match="of width 16 cannot have 3 attention heads"):
        start_of([there, "random"], layers=1, hidden_size=16, heads=3)


def test_an_encoder_with_a_different_vocabulary_is_skipped(tiny_encoder: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_encoder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 400}))
    start, warnings = start_of([str(tiny_encoder), "random"], tmp_path)
    assert start == "random" and "30522 token ids, and the teacher one of 400" in warnings[0]


def test_a_run_starts_from_a_model_on_the_hub_or_warns(
    tiny_teacher: Path, tiny_encoder: Path, tmp_path: Path, cached_on_hub: Callable[..., None]
) -> None:
    sizes = {"layers": 2, "hidden_size": 16, "heads": 2, "intermediate_size": 32}
    changes = {f"student.transformer.{key}": value for key, value in sizes.items()}
    changes |= {"student.max_length": 24, "train.epochs": 1, "train.lr": 1e-12}

    def run(out: Path) -> tuple[dict[str, Any], list[str]]:
        shown: list[str] = []
        settings = load_settings("mlkd-bert-4", "distill", changes, "rte")
        distill(Request("pocket", "rte", out, 8, 8), settings, str(tiny_teacher), warn=shown.append)
        return json.loads((out / "run.json").read_text()), [text for text in shown if "starts from" in text]

    record, shown = run(tmp_path / "offline")
    assert len(shown) == 1 and shown[0].startswith(
        f"the student starts from random weights instead of {GENERAL['4']}"
    )
    assert shown[0] in record["warnings"]
    assert record["identity"]["settings"]["student"]["transformer"]["init"] == "random"
    weights = load_file(tiny_encoder / SAFETENSORS)
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / "old" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "old" / file).write_bytes((tiny_encoder / file).read_bytes())
    torch.save(weights, tmp_path / "old" / BIN)
    cached_on_hub(GENERAL["4"], tmp_path / "old")
    record, shown = run(tmp_path / "cached")
    assert not shown and record["identity"]["settings"]["student"]["transformer"]["init"] == GENERAL["4"]
    student = MultiTaskModel.load(tmp_path / "cached").encoder.state_dict()
    words = "body.embeddings.word_embeddings.weight"
    torch.testing.assert_close(student[words], weights[words.removeprefix("body.")], atol=1e-8, rtol=0)


def built(
    place: Path, init: str, teacher: TransformerEncoder | None = None, **more: Any
) -> TransformerEncoder:
    """Return a student of two layers with the tokeniser in a directory."""
    settings = student_settings({"kind": "transformer", "transformer": {"init": init, "layers": 2, **more}})
    tokeniser = Tokeniser.load(str(place))
    spec = InitSpec(teacher.config if teacher else None, None)
    student = build_student(settings, InitContext(tokeniser, teacher, tokeniser, spec))
    assert isinstance(student, TransformerEncoder)
    return student.eval()


def pooled(encoder: TransformerEncoder) -> torch.Tensor:
    with torch.no_grad():
        found = encoder(INPUTS, OutputSpec(pooled=True)).pooled
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["Bert", "Albert"])
def test_the_pooler_comes_from_the_checkpoint(kind: str, save_checkpoint: Callable[..., Path]) -> None:
    from transformers import AutoModelForSequenceClassification

    more = {"embedding_size": 8} if kind == "Albert" else {}
    place = save_checkpoint(kind, **more)
    classifier = AutoModelForSequenceClassification.from_pretrained(place).eval()
    student = built(place, str(place), pooling="pooler")
    with torch.no_grad():
        expected = classifier.base_model(IDS, attention_mask=(IDS != 0).long()).pooler_output
        torch.testing.assert_close(pooled(student), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            classifier.classifier(pooled(student)),
            classifier(IDS, attention_mask=(IDS != 0).long()).logits,
            atol=1e-5,
            rtol=0,
        )


def test_the_pooler_is_saved_and_passed_on(tiny_encoder: Path, tmp_path: Path) -> None:
    changes = {"pooling": "pooler", "train.epochs": 1, "max_length": 24}
    run = refine(
        Request("pocket", "rte", tmp_path / "run", 16, 16),
        load_settings("refine", "refine", changes),
        str(tiny_encoder),
    )
    teacher = run.model().encoder
    assert isinstance(teacher, TransformerEncoder) and teacher.config.pooling == "pooler"
    cls, dense = teacher(INPUTS, OutputSpec(cls=frozenset({3}))).cls[3], teacher.body.pooler.dense
    torch.testing.assert_close(pooled(teacher), torch.tanh(cls @ dense.weight.T + dense.bias).detach())
    for student in (
        built(tiny_encoder, "teacher", teacher, pooling="auto"),
        built(tiny_encoder, str(tmp_path / "run"), pooling="pooler"),
    ):
        assert torch.equal(student.body.pooler.dense.weight, dense.weight)
    assert TeacherRef.find(str(tmp_path / "run"), True).config.spec.pooled_size == 16


@pytest.mark.parametrize(
    "recipe", ["bert-pkd-3", "bert-pkd-6", "distilbert-6", "hsk-rosita-6", "layerwise-3"]
)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_recipes_that_copy_layers_keep_the_pooling_of_their_encoder(
    recipe: str, pooling: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "encoder")
    if pooling == "mean":
        (tmp_path / "encoder" / "1_Pooling").mkdir()
        declared = tmp_path / "encoder" / "1_Pooling" / "config.json"
        declared.write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    teacher = pretrained_config(str(tmp_path / "encoder"))
    sizes = {"layers": 2, "heads": None, "intermediate_size": None, "embedding_size": None}
    settings = load_settings(recipe, "distill", {f"student.transformer.{k}": v for k, v in sizes.items()})
    spec = InitSpec(teacher, str(tmp_path / "encoder"))
    assert student_transformer(settings.student.transformer, spec).pooling == pooling


def declaring(encoder: Path, place: Path, pooling: dict[str, Any]) -> str:
    """Copy an encoder, and declare a pooling as sentence-transformers does."""
    shutil.copytree(encoder, place)
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return str(place)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"embedding_dimension": 16, "pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"word_embedding_dimension": 16}, "mean"),
    ],
)
def test_the_pooling_that_sentence_transformers_declares(
    declared: dict[str, Any], expected: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    assert pretrained_config(declaring(tiny_encoder, tmp_path / "encoder", declared)).pooling == expected


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"pooling_mode": "max"}, "'max'"),
        ({"pooling_mode": ["cls", "mean"]}, "'cls' and 'mean'"),
        ({"pooling_mode_lasttoken": True}, "'lasttoken'"),
        ({"pooling_mode_weightedmean_tokens": True}, "'weightedmean'"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "'max' and 'mean'"),
    ],
)
def test_a_declared_pooling_that_is_not_supported_is_an_error(
    declared: dict[str, Any], named: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    encoder = declaring(tiny_encoder, tmp_path / "encoder", declared)
    with pytest.raises(UserError, match=f"pooling {named} is not supported\n  expected: mean or cls"):
        pretrained_config(encoder)
    assert pretrained_config(encoder, "mean").pooling == "mean"
    assert built(Path(encoder), encoder, pooling="mean").config.pooling == "mean"
    with pytest.raises(UserError, match=f"pooling {named} is not supported"):
        built(Path(encoder), encoder, pooling="auto")


def test_a_missing_pooler_is_initialised_randomly(tiny_teacher: Path) -> None:
    teacher = MultiTaskModel.load(tiny_teacher).encoder
    assert isinstance(teacher, TransformerEncoder) and not hasattr(teacher.body.pooler, "dense")
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made.append(built(tiny_teacher / "model", "teacher", teacher, pooling="pooler").state_dict())
    assert not torch.equal(*(weights["body.pooler.dense.weight"] for weights in made))
    others = [{k: v for k, v in weights.items() if "pooler" not in k} for weights in made]
    assert all(torch.equal(others[0][name], others[1][name]) for name in others[0])
    torch.manual_seed(1)
    again = built(tiny_teacher / "model", str(tiny_teacher), pooling="pooler")
    assert torch.equal(
        again.body.embeddings.word_embeddings.weight, teacher.body.embeddings.word_embeddings.weight
    )


def test_a_family_without_pooler_is_rejected(save_checkpoint: Callable[..., Path]) -> None:
    place = save_checkpoint("DistilBert")
    with pytest.raises(UserError, match="'distilbert' have no pooling layer"):
        built(place, str(place), pooling="pooler")
    with pytest.raises(UserError, match="no pooling layer"):
        TransformerEncoder.pretrained(str(place), "pooler")
