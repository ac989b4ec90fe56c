"""Stores of bi-encoders: students learn the same from a store as from the teacher itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from first_terms import FirstTerms

import mtkd
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.losses.hidden_knowledge import kept_counts
from mtkd.teachers.teacher_sources import OnlineTeacher
from tasks.common.errors import UserError
from tasks.common.records import write_record
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

RECIPE = """
command = "distill"
name = "every pair of tokens"
summary = "Losses on pairs of tokens, and on ranked tokens."
source = ""
[student]
kind = "transformer"
max_length = 48
[student.transformer]
layers = 2
dropout = 0.0
[terms.scores]
loss = "attention_score_mse"
layer_map = "uniform"
[terms.relation]
loss = "relation"
relations = ["q-k", "v-v"]
relation_heads = 2
[terms.part]
loss = "hidden_knowledge"
tokens = 7
width = 0.5
top = 2
"""
DATA: dict[str, Any] = {"data": "pocket", "tasks": ["rte", "mrpc", "sst2"], "limit": 24}
RUN: dict[str, Any] = {**DATA, "eval_limit": 8, "epochs": 1, "device": "cpu"}


@pytest.fixture(params=["bi-encoder", ["rte"]])
def teacher(request: pytest.FixtureRequest, tiny_encoder: Path, tmp_path: Path) -> mtkd.Model:
    settings = {"max_length": 48, "pairs": request.param}
    return mtkd.refine(tiny_encoder, out=tmp_path / "t", settings=settings, **RUN)


def test_a_store_gives_the_same_student_as_its_bi_encoder(teacher: mtkd.Model, tmp_path: Path) -> None:
    recipe, place = str(tmp_path / "recipe.toml"), tmp_path / "store"
    Path(recipe).write_text(RECIPE)
    mtkd.build_store(recipe, teacher=teacher, out=place, dtype="fp32", **DATA)
    online, stored = FirstTerms(), FirstTerms()
    mtkd.distill(recipe, teacher=teacher, out=tmp_path / "online", callbacks=[online], **RUN)
    mtkd.distill(recipe, store=place, out=tmp_path / "stored", callbacks=[stored], **RUN)
    assert online.first.keys() == {"scores", "relation", "part"}
    assert stored.first == pytest.approx(online.first, rel=1e-6, abs=1e-6)
    assert_same_parts(teacher, place)
    manifest = json.loads((place / "manifest.json").read_text())
    write_record(place / "manifest.json", manifest | {"format": 3})
    with pytest.raises(UserError, match=r"of format 3, which ranks .* by attention between the texts"):
        mtkd.distill(recipe, store=place, out=tmp_path / "old", **RUN)


def assert_same_parts(teacher: mtkd.Model, place: Path) -> None:
    """The stored part of the hidden states is the teacher's, with a [CLS] of each text and no [SEP]."""
    (rte,) = resolve("rte")
    rows, manifest = load_rows(open_data("pocket"), rte, "train", 24), read_store_manifest(place)
    model, need = teacher.module, manifest.contents.need
    batch = Collator(model.reader, model.reader)(Encoded.encode(rows, model.tokeniser), np.arange(24))
    tokens = batch.inputs.joined
    assert tokens is not None and tokens.second is not None and tokens.ends is not None
    stored = StoredTeacher(place, manifest, need, {"rte": find_stored_rows(place, manifest, rows)})
    found, expected = (source.outputs(rte, batch) for source in (stored, OnlineTeacher(model, need)))
    assert found.text_numbers is not None and expected.text_numbers is not None
    assert torch.equal(found.text_numbers, expected.text_numbers)
    assert need.selection is not None
    for layer, part in expected.selected.items():
        assert torch.equal(found.selected[layer].valid, part.valid)
        assert torch.equal(found.selected[layer].positions[part.valid], part.positions[part.valid])
        torch.testing.assert_close(found.selected[layer].values, part.values, atol=1e-5, rtol=0)
        assert torch.equal(part.valid.sum(1), kept_counts(tokens, need.selection))
        kept = torch.zeros_like(tokens.mask).scatter(1, part.positions, part.valid)
        assert not (kept & tokens.ends).any() and (kept & tokens.second).any()
