"""Vectors per row: the mean over the tokens of a layer, losses on it, and warnings about unused vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mtkd
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.losses.compatibility import unread_cls
from mtkd.losses.hidden import ClsMSE
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput
from mtkd.models.encoders.encoder import EncoderConfig
from mtkd.models.encoders.pretrained_config import pretrained_config
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from mtkd.teachers.group import Member, TeacherGroup
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.teacher_sources import OnlineTeacher
from tasks.common.errors import MtkdWarning, UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batching import Batch, Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

RTE, SST2 = resolve("rte,sst2")
DATA: dict[str, Any] = {"data": "pocket", "tasks": "rte", "limit": 16}
RUN: dict[str, Any] = {**DATA, "eval_limit": 8, "epochs": 1, "device": "cpu"}
SMALL = {"student.max_length": 32, "student.transformer.layers": 2}


def pocket_batch(reader: Reader, n: int = 4) -> Batch:
    rows = load_rows(open_data("pocket"), RTE, "train", n)
    return Collator(reader, reader)(Encoded.encode(rows, reader.tokeniser), np.arange(n))


@pytest.mark.parametrize("pairs", ["cross-encoder", "bi-encoder"])
def test_mean_vectors_of_all_layers_match_a_loop(tiny_encoder: Path, pairs: Any) -> None:
    """The mean over both texts for a bi-encoder."""
    encoder = TransformerEncoder.pretrained(str(tiny_encoder), "mean", pairs=pairs).eval()
    batch = pocket_batch(Reader(Tokeniser.load(str(tiny_encoder)), encoder.input_format, 32))
    layers = frozenset(range(encoder.n_layers + 1))
    with torch.inference_mode():
        out = encoder(batch.inputs, OutputSpec(mean=layers, hidden=layers, pooled=True))
        alone = encoder(batch.inputs, OutputSpec(mean=frozenset({1})))  # the pass stops early
    assert out.mask is not None and out.pooled is not None and not out.mask.all()
    for layer in layers:
        loop = [states[mask].mean(0) for states, mask in zip(out.hidden[layer], out.mask, strict=True)]
        torch.testing.assert_close(out.mean[layer], torch.stack(loop))
    torch.testing.assert_close(alone.mean[1], out.mean[1])
    if pairs == "cross-encoder":
        torch.testing.assert_close(out.mean[encoder.n_layers], out.pooled)


def spec(mean_pooled: bool, offers: OutputSpec | None = None) -> EncoderSpec:
    every = frozenset(range(4))
    offers = offers or OutputSpec(pooled=True, cls=every, mean=every, hidden=every)
    return EncoderSpec("bert", 3, 6, 6, 2, 6, offers, mean_pooled=mean_pooled)


def built(loss: str, student: EncoderSpec, teacher: EncoderSpec, **settings: Any) -> LossTerm:
    given = validate(loss_class(loss).Settings, {"loss": loss, **settings})
    return loss_class(loss).from_settings("t", given, ModelPair(student, teacher, (RTE,)))


@pytest.mark.parametrize("row_vector", ["cls", "pooled"])
@pytest.mark.parametrize("student_mean", [True, False])
@pytest.mark.parametrize("teacher_mean", [True, False])
def test_cls_mse_compares_the_vectors_that_each_model_pools(
    row_vector: str, student_mean: bool, teacher_mean: bool
) -> None:
    torch.manual_seed(0)
    term = built("cls_mse", spec(student_mean), spec(teacher_mean), row_vector=row_vector)
    assert isinstance(term, ClsMSE)

    def outputs() -> ModelOutput:
        return ModelOutput(**{kind: {n: torch.randn(5, 6) for n in (1, 2)} for kind in ("cls", "mean")})

    student, teacher = outputs(), outputs()
    kinds = ["mean" if row_vector == "pooled" and mean else "cls" for mean in (student_mean, teacher_mean)]
    expected = 0.0
    for layer in (1, 2):  # the last one is left out
        for row in range(5):
            s, t = getattr(student, kinds[0])[layer][row], getattr(teacher, kinds[1])[layer][row]
            expected += ((s / s.norm() - t / t.norm()) ** 2).sum().item() / 2
    batch: Any = None
    found = term(TermInput(RTE, batch, student, teacher, num_items=5))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    layers = frozenset({1, 2})
    assert [term.student_need, term.teacher_need] == [OutputSpec(**{kind: layers}) for kind in kinds]
    assert not term.teacher_need.has_token_vectors, "teacher and student may have other tokens"


def test_a_warning_names_the_model_that_ignores_cls_and_the_setting_to_change() -> None:
    def warning(loss: str, student: EncoderSpec, teacher: EncoderSpec, **settings: Any) -> str | None:
        term = built(loss, student, teacher, **settings)
        return unread_cls("t", term, ModelPair(student, teacher, (RTE,)))

    mean, cls = spec(True), spec(False)
    for loss in ("cls_mse", "sample_similarity", "sample_contrastive"):
        assert warning(loss, cls, cls) is None
        assert warning(loss, mean, mean, row_vector="pooled") is None
        cases = ((cls, mean, "teacher"), (mean, cls, "student"), (mean, mean, "student and the teacher"))
        for student, teacher, who in cases:
            text = warning(loss, student, teacher)
            assert text is not None and f"no head of the {who} reads" in text
            assert text.endswith("; `terms.t.row_vector=pooled` compares pooled vectors")
    side_by_side = spec(True, replace(mean.offers, pooled=False))
    assert "with cross-encoders, `terms.t" in str(warning("sample_similarity", side_by_side, side_by_side))
    assert "with cross-encoders" not in str(warning("cls_mse", side_by_side, side_by_side))
    term = built("cls_mse", mean, mean)
    assert "terms.t" not in str(unread_cls("t", term, ModelPair(mean, mean, (RTE,)), has_settings=False))
    assert warning("hidden_mse", mean, mean) is None


@pytest.fixture
def mean_teacher(tiny_encoder: Path, tmp_path: Path) -> mtkd.Model:
    settings = {"max_length": 32, "pooling": "mean"}
    return mtkd.refine(tiny_encoder, out=tmp_path / "t", settings=settings, **RUN)


def test_a_run_warns_once_and_a_store_gives_the_same_student(
    mean_teacher: mtkd.Model, tmp_path: Path
) -> None:
    def student(out: str, **changes: Any) -> mtkd.Model:
        source = {"store": changes.pop("store")} if "store" in changes else {"teacher": mean_teacher}
        return mtkd.distill("bert-pkd-3", out=tmp_path / out, settings=SMALL | changes, **source, **RUN)

    with pytest.warns(MtkdWarning, match=r"'patience' compares .* no head of the teacher"):
        warned = student("cls", **{"terms.patience.row_vector": "cls"}).record["warnings"]
    assert len([text for text in warned if "terms.patience.row_vector=pooled" in text]) == 1
    online = student("pooled")
    assert not any("row_vector" in text for text in online.record["warnings"])
    place = tmp_path / "store"
    mtkd.build_store("bert-pkd-3", teacher=mean_teacher, out=place, dtype="fp32", settings=SMALL, **DATA)
    need = read_store_manifest(place).contents.need
    assert need.mean and not need.cls and not need.hidden, "one vector per row and layer"
    stored = student("stored", store=place).module.state_dict()
    for name, weight in online.module.state_dict().items():
        torch.testing.assert_close(weight, stored[name], rtol=0, atol=5e-5, msg=name)


def test_stored_hidden_states_offer_both_row_vectors(mean_teacher: mtkd.Model, tmp_path: Path) -> None:
    place, sets = tmp_path / "store", SMALL | {"terms.hidden.layer_map": [[1, 1], [2, 3]]}
    mtkd.build_store("layerwise-3", teacher=mean_teacher, out=place, dtype="fp32", settings=sets, **DATA)
    manifest, rows = read_store_manifest(place), load_rows(open_data("pocket"), RTE, "train", 16)
    batch, layers = pocket_batch(mean_teacher.module.reader, 16), frozenset({1, 3})
    need = OutputSpec(cls=layers, mean=layers)
    assert not need.missing_from(manifest.contents.offers)
    stored = StoredTeacher(place, manifest, need, {"rte": find_stored_rows(place, manifest, rows)})
    found, expected = (
        source.outputs(RTE, batch) for source in (stored, OnlineTeacher(mean_teacher.module, need))
    )
    for layer in layers:
        torch.testing.assert_close(found.cls[layer], expected.cls[layer], atol=1e-5, rtol=0)
        torch.testing.assert_close(found.mean[layer], expected.mean[layer], atol=1e-5, rtol=0)


def test_teachers_with_different_pooling_reject_losses_on_pooled_layers(tiny_encoder: Path) -> None:
    first = TeacherRef.find(str(tiny_encoder), heads=False)
    config: EncoderConfig = pretrained_config(str(tiny_encoder), "mean")
    members = [Member(first, ("rte",)), Member(replace(first, config=config), ("sst2",))]
    group = TeacherGroup.of(members, [RTE, SST2])
    assert isinstance(group, TeacherGroup)
    group.check_can_provide(OutputSpec(hidden=frozenset({1}), cls=frozenset({1})))
    with pytest.raises(UserError, match="differ: mean_pooled False and True"):
        group.check_can_provide(OutputSpec(mean=frozenset({1})))
