"""Models whose pair classification tasks have a stochastic answer network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import mtkd
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.heads import Head, SANHead
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

RUN = {"data": "pocket", "limit": 24, "eval_limit": 16, "epochs": 1, "device": "cpu"}


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_the_masks_cover_the_tokens_of_each_text(save_checkpoint: Callable[..., Path], kind: str) -> None:
    reader = Reader(Tokeniser.load(str(save_checkpoint(kind))), "joined", 200)
    task = resolve("rte")[0]
    rows = load_rows(open_data("pocket"), task, "train", 8)
    encoded = Encoded.encode(rows, reader.tokeniser)
    tokens = Collator(reader)(encoded, np.arange(8)).inputs.joined
    assert tokens is not None
    for column, mask in zip(rows.texts, tokens.text_masks, strict=True):
        alone = reader.tokeniser.token_ids(pa.array(column.to_pylist()))
        assert [ids[mask].tolist() for ids, mask in zip(tokens.ids, mask, strict=True)] == [
            alone.row(number).tolist() for number in range(8)
        ]


def test_a_teacher_with_san_heads_is_trained_saved_and_distilled(tiny_encoder: Path, tmp_path: Path) -> None:
    teacher = mtkd.refine(
        tiny_encoder, tasks=["rte", "sst2", "stsb"], out=tmp_path / "t",
        settings={"max_length": 48, "pair_head": "san"}, **RUN,
    )  # fmt: skip
    kinds = {name: type(head) for name, head in teacher.module.heads.items()}
    assert kinds == {"rte": SANHead, "sst2": Head, "stsb": Head}
    rows = [{"sentence1": f"the {n} cats sleep", "sentence2": "cats are awake " * n} for n in range(5)]
    again = mtkd.load(tmp_path / "t")
    assert again.predict("rte", rows) == teacher.predict("rte", rows)
    for row, made in zip(rows, again.predict("rte", rows), strict=True):  # padding changes nothing
        alone = again.predict("rte", [row])[0]
        assert alone["probabilities"] == pytest.approx(made["probabilities"], abs=1e-5)
    tuned = mtkd.finetune(tmp_path / "t", task="rte", out=tmp_path / "f", **RUN)
    assert isinstance(tuned.module.heads["rte"], SANHead)
    student = mtkd.distill(
        "mkd-transformer", teacher=teacher, tasks=["rte", "sst2"], out=tmp_path / "s",
        settings={"student.transformer.layers": 1, "student.max_length": 48}, **RUN,
    )  # fmt: skip
    assert {type(head) for head in student.module.heads.values()} == {Head}


def test_all_weights_of_the_head_get_gradients(tiny_encoder: Path) -> None:
    """All its weights get a gradient through the model."""
    model = MultiTaskModel.without_heads(str(tiny_encoder), 48)
    model.info = dataclasses.replace(model.info, pair_head="san")
    task = resolve("rte")[0]
    model.set_tasks([task])
    rows = load_rows(open_data("pocket"), task, "train", 8)
    encoded = Encoded.encode(rows, model.tokeniser)
    batch = Collator(model.reader)(encoded, np.arange(8))
    out = model.train()(batch.inputs, "rte", OutputSpec(logits=True, cls=frozenset({1})))
    assert out.logits is not None and set(out.cls) == {1} and batch.labels is not None
    task.type.loss(task, out.logits, batch.labels).total.backward()
    assert all(
        weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.head_modules.parameters()
    )


def test_a_student_cannot_start_from_a_san_head(tiny_encoder: Path, tmp_path: Path) -> None:
    teacher = mtkd.refine(
        tiny_encoder, tasks="rte", out=tmp_path / "t", settings={"max_length": 48, "pair_head": "san"}, **RUN
    )
    with pytest.raises(UserError, match="the teacher's head for 'rte'"):
        mtkd.distill(
            "mkd-transformer", teacher=teacher, tasks="rte", out=tmp_path / "s",
            settings={"student.transformer.layers": 1, "student.init_heads": "teacher"}, **RUN,
        )  # fmt: skip
