"""Students that start from a pretrained encoder with a tokeniser of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import Ridge
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import mtkd as library
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import PocketSource
from tasks.glue import TASKS
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser

RUN: dict[str, Any] = {"data": "pocket", "limit": 24, "eval_limit": 16, "steps": 2}
LABELS = {"id2label": {0: "negative", 1: "positive"}}
pytestmark = pytest.mark.filterwarnings("ignore::tasks.common.errors.MtkdWarning")


def settings(encoder: Path | str, **more: Any) -> dict[str, Any]:
    return {"student.transformer.init": str(encoder), "student.max_length": 24} | more


@pytest.mark.slow(reason="exports a model")
def test_student_and_teacher_use_different_tokenisers(
    save_checkpoint: Callable[..., Path], tiny_encoder: Path, tmp_path: Path
) -> None:
    """The student starts with all weights of its encoder; the teacher's logits are those of transformers."""
    teacher = save_checkpoint("Roberta", **LABELS)
    given = settings(tiny_encoder, **{"train.lr": 1e-12, "train.weight_decay": 0.0})
    student = library.distill(
        "pretrained", teacher=teacher, tasks="sst2", out=tmp_path / "run", settings=given, **RUN
    )
    assert student.module.tokeniser.digest == Tokeniser.load(str(tiny_encoder)).digest
    pretrained = AutoModel.from_pretrained(tiny_encoder).state_dict()
    for name, weight in student.module.encoder.body.state_dict().items():
        if not name.startswith("pooler."):
            torch.testing.assert_close(weight, pretrained[name])

    (file,) = (tmp_path / "run").glob("logits-*/*/*.safetensors")
    texts = load_rows(PocketSource(), resolve("sst2")[0], "train", 24).texts[0].to_pylist()
    inputs = AutoTokenizer.from_pretrained(teacher)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = AutoModelForSequenceClassification.from_pretrained(teacher)(**inputs).logits
    np.testing.assert_allclose(load_file(file)["logits"], logits, atol=2e-5)

    rows = [("Quaint 中文 zebras",), ("a fine film",)]
    expected = student.predict("sst2", rows)
    assert library.load(tmp_path / "run").predict("sst2", rows) == expected
    library.export(tmp_path / "run", out=tmp_path / "onnx", tasks="sst2")
    for found, wanted in zip(library.load(tmp_path / "onnx").predict("sst2", rows), expected, strict=True):
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-4)
    tuned = library.finetune(student, task="sst2", out=tmp_path / "tuned", **RUN)
    assert tuned.module.tokeniser.digest == student.module.tokeniser.digest


def test_a_student_without_a_teacher_reads_the_tokens_of_its_encoder(
    save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    encoder = save_checkpoint("Roberta", **LABELS)
    given = settings(encoder, supervision="labels")
    student = library.distill("pretrained", tasks="sst2", out=tmp_path / "run", settings=given, **RUN)
    assert student.module.tokeniser.digest == Tokeniser.load(str(encoder)).digest
    given["student.vocabulary"] = "teacher"
    with pytest.raises(UserError, match="another vocabulary than the default encoder minilm"):
        library.distill("pretrained", tasks="sst2", out=tmp_path / "other", settings=given, **RUN)


@pytest.fixture
def other_tokens(tiny_encoder: Path, tmp_path: Path) -> Path:
    """An encoder with as many tokens as `tiny_encoder`, two of which have each other's ids."""
    other = tmp_path / "other"
    shutil.copytree(tiny_encoder, other)
    tokens = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    return other


def test_an_encoder_with_other_tokens_is_rejected(
    other_tokens: Path, tiny_encoder: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    """Its embeddings would be used for other words than those that they were trained for."""
    given: dict[str, Any] = {"teacher": tiny_teacher, "tasks": "sst2", "out": tmp_path / "run", **RUN}
    with pytest.raises(UserError, match=r"has another vocabulary than the teacher") as raised:
        library.distill("layerwise-3", settings=settings(other_tokens), **given)
    assert "student.vocabulary=encoder" in str(raised.value.hint)
    assert not (tmp_path / "run").exists()
    names = settings(tiny_encoder, **{"student.transformer.init": [str(other_tokens), str(tiny_encoder)]})
    with pytest.warns(UserWarning, match=r"other has other tokens than the teacher"):
        student = library.distill("layerwise-3", settings=names, **given)
    assert student.module.tokeniser.digest == Tokeniser.load(str(tiny_encoder)).digest
    student = library.distill(
        "pretrained", settings=settings(other_tokens), **given | {"out": tmp_path / "own"}
    )
    vocabulary = Tokeniser.load(str(other_tokens)).hf.get_vocab()
    assert student.module.tokeniser.hf.get_vocab()["cat"] == vocabulary["cat"]


def test_heads_of_a_teacher_with_another_encoder_are_not_copied(
    other_tokens: Path, tiny_teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the same sizes, but fit other features; the student's heads start from a linear probe."""
    given: dict[str, Any] = {"teacher": tiny_teacher, "tasks": "sst2", **RUN}
    message = "no suitable head for sst2: the student's head starts from a linear probe"
    for heads in ("auto", "teacher"):
        own = settings(other_tokens, **{"student.init_heads": heads})
        library.distill("pretrained", settings=own, out=tmp_path / heads, **given)
        assert (message in capsys.readouterr().err) == (heads == "auto")


def test_heads_start_from_a_probe_of_the_teachers_logits(
    tiny_encoder: Path, save_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No labels are needed."""
    monkeypatch.setattr("mtkd.training.linear_probe._STRENGTHS", (1.0,))
    texts = PocketSource().table(TASKS["sst2"], "train")["sentence"].to_pylist()[:40]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
    student = library.distill(
        "pretrained", teacher=save_checkpoint("Roberta", **LABELS), tasks="sst2", steps=1, out=tmp_path / "a",
        data={"sst2": {"validation": PocketSource().table(TASKS["sst2"], "validation")}},
        unlabelled={"sst2": tmp_path / "texts.jsonl"}, settings=settings(tiny_encoder, **{"train.lr": 1e-12}),
    )  # fmt: skip
    (file,) = (tmp_path / "a").glob("logits-*/*/*.safetensors")
    logits = load_file(file)["logits"]
    vectors = student.encode(texts)
    centred = vectors - vectors.mean(0)
    centred /= np.sqrt((centred**2).sum(1).mean())
    expected = Ridge(alpha=2.0).fit(centred, logits).predict(centred)
    with torch.no_grad():
        found = student.module.heads["sst2"].eval()(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_store_needs_no_teacher_for_a_student_of_another_encoder(
    tiny_encoder: Path, tiny_teacher: Path, other_tokens: Path, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_teacher, teacher)
    given: dict[str, Any] = {"tasks": "sst2", "data": "pocket", "limit": 24}
    own = settings(other_tokens)
    library.build_store("pretrained", teacher=teacher, out=tmp_path / "store", settings=own, **given)
    shutil.rmtree(teacher)
    student = library.distill(
        "pretrained",
        store=tmp_path / "store",
        out=tmp_path / "run",
        settings=own,
        steps=2,
        eval_limit=16,
        **given,
    )
    assert student.module.tokeniser.digest == Tokeniser.load(str(other_tokens)).digest


def test_a_run_is_repeated_after_its_encoder_has_changed(
    other_tokens: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"teacher": tiny_teacher, "tasks": "sst2", "out": tmp_path / "run", **RUN}
    library.distill("pretrained", settings=settings(other_tokens), **given)
    file = other_tokens / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(UserError, match="student_encoder"):
        library.distill("pretrained", settings=settings(other_tokens), **given)


def test_a_student_that_cannot_be_a_bi_encoder_reads_pairs_as_one_sequence(
    save_checkpoint: Callable[..., Path], tiny_encoder: Path, tmp_path: Path
) -> None:
    teacher = library.refine(
        tiny_encoder, tasks="rte", out=tmp_path / "teacher", data="pocket", limit=24, eval_limit=16, epochs=1,
        settings={"pairs": "bi-encoder", "pooling": "mean", "max_length": 24},
    )  # fmt: skip
    given = settings(save_checkpoint("DebertaV2"))
    student = library.distill(
        "pretrained", teacher=teacher, tasks="rte", out=tmp_path / "run", settings=given, **RUN
    )
    assert student.module.encoder.config.pairs == "cross-encoder"


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            "layerwise-3",
            {"student.transformer.init": "minilm", "terms.hidden.projection": "shared"},
            "compares teacher and student token by token",
        ),
        ("layerwise-3", {"student.transformer.init": "teacher"}, "cannot be combined with .*init=teacher"),
        (
            "pretrained",
            {"student.transformer.init": ["/no/such/encoder", "random"]},
            r"/no/such/encoder.*; student.vocabulary=encoder cannot be combined with .*init=random",
        ),
        ("static", {}, "cannot be combined with student.kind=static"),
    ],
)
def test_students_that_cannot_read_other_tokens_are_rejected(
    recipe: str, changes: dict[str, Any], message: str, tiny_teacher: Path, tmp_path: Path
) -> None:
    given = {"student.vocabulary": "encoder"} | changes
    with pytest.raises(UserError, match=message):
        library.distill(
            recipe, teacher=tiny_teacher, tasks="sst2", out=tmp_path / "run", settings=given, **RUN
        )
    assert not (tmp_path / "run").exists()
