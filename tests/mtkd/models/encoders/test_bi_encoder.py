"""Bi-encoders: each text of a pair gets the same vector as the text alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from first_terms import FirstTerms

import mtkd
from mtkd.models.encoders.text_vectors import Pooling
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

SIMILAR = 'extends = "stsb"\nname = "similar"\nhead = "stsb"\n'
RUN: dict[str, Any] = {"data": "pocket", "limit": 24, "eval_limit": 16, "epochs": 1, "device": "cpu"}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "MPNet"])
def test_a_pair_is_read_as_two_single_texts(
    save_checkpoint: Callable[..., Path], kind: str, pooling: Pooling
) -> None:
    directory = str(save_checkpoint(kind))
    encoder = TransformerEncoder.pretrained(directory, pooling, pairs="bi-encoder").eval()
    tokeniser, rows = (
        Tokeniser.load(directory),
        load_rows(open_data("pocket"), resolve("stsb")[0], "train", 6),
    )
    short = tuple(
        pc.utf8_slice_codeunits(text, 0, stop) for text, stop in zip(rows.texts, (30, 9), strict=True)
    )
    rows = replace(rows, texts=short)  # at most 64 tokens
    values = frozenset() if kind == "MPNet" else frozenset({2})
    indices, need = np.arange(len(rows)), OutputSpec(pooled=True, hidden=frozenset({1}), value=values)
    reader = Reader(tokeniser, "side-by-side", 64)
    both = Collator(reader)(Encoded.encode(rows, tokeniser), indices).inputs
    alone = [
        Collator(Reader(tokeniser, "joined", 64))(
            Encoded.encode(replace(rows, texts=(text,)), tokeniser), indices
        ).inputs
        for text in rows.texts
    ]
    with torch.inference_mode():
        pair, (first, second) = encoder(both, need), (encoder(inputs, need) for inputs in alone)
    assert first.pooled is not None and second.pooled is not None and both.joined is not None
    u, v = first.pooled, second.pooled
    torch.testing.assert_close(pair.pooled, torch.cat([u, v, (u - v).abs(), u * v], 1))
    assert both.joined.second is not None and len(both.joined.ids[0]) < 64
    for out, mask in ((first, both.joined.mask & ~both.joined.second), (second, both.joined.second)):
        assert out.mask is not None
        torch.testing.assert_close(pair.hidden[1][mask], out.hidden[1][out.mask])
        for layer in values:
            torch.testing.assert_close(pair.value[layer][mask], out.value[layer][out.mask])


def test_long_pairs_are_truncated_longest_text_first(save_checkpoint: Callable[..., Path]) -> None:
    tokeniser = Tokeniser.load(str(save_checkpoint("Bert")))
    rows = load_rows(open_data("pocket"), resolve("rte")[0], "train", 20)
    encoded, reader = Encoded.encode(rows, tokeniser), Reader(tokeniser, "side-by-side", 12)
    tokens = Collator(reader)(encoded, np.arange(20)).inputs.joined
    assert tokens is not None and tokens.second is not None
    assert tokens.ids.shape[1] == 12 and np.array_equal(tokens.mask.sum(1), reader.lengths(encoded.texts))
    (before, after) = tokeniser.layout(1).specials
    firsts = torch.where(tokens.second, tokens.ids, -1).max(1)  # every row has a second text
    assert bool((firsts.values >= 0).all())
    for ids, mask, second in zip(tokens.ids, tokens.mask, tokens.second, strict=True):
        for part in (ids[mask & ~second], ids[second]):
            assert tuple(part[: len(before)]) == before and tuple(part[-len(after) :]) == after
            assert len(part) > len(before) + len(after)


@pytest.fixture
def teacher(tiny_encoder: Path, tmp_path: Path) -> mtkd.Model:
    settings = {"max_length": 48, "pairs": "bi-encoder", "pooling": "mean"}
    return mtkd.refine(tiny_encoder, tasks=["rte", "sst2"], out=tmp_path / "t", settings=settings, **RUN)


def test_a_student_encodes_pairs_like_its_teacher(
    teacher: mtkd.Model, tiny_encoder: Path, tmp_path: Path
) -> None:
    assert {name: head.output.in_features for name, head in teacher.module.heads.items()} == {
        "rte": 4 * teacher.module.encoder.width,
        "sst2": teacher.module.encoder.width,
    }
    rows = [{"sentence1": f"the {n} cats sleep", "sentence2": "cats are awake " * n} for n in range(5)]
    made = mtkd.load(tmp_path / "t").predict("rte", rows)
    assert made == teacher.predict("rte", rows)
    for row, found in zip(rows, made, strict=True):  # padding changes nothing
        alone = teacher.predict("rte", [row])[0]
        assert alone["probabilities"] == pytest.approx(found["probabilities"], abs=1e-5)
    small = {"student.transformer.layers": 1, "student.max_length": 48}
    student = mtkd.distill(
        "layerwise-3", teacher=teacher, tasks=["rte", "sst2"], out=tmp_path / "s", settings=small, **RUN
    )
    assert student.module.encoder.config.pairs == "bi-encoder"
    data = {"data": "pocket", "tasks": ["rte"], "settings": small}
    mtkd.build_store("layerwise-3", teacher=teacher, out=tmp_path / "k", limit=24, **data)
    again = mtkd.distill("layerwise-3", store=tmp_path / "k", out=tmp_path / "s2", **RUN | data)
    assert again.module.encoder.config.pairs == "bi-encoder"
    own = {"student.transformer.init": str(tiny_encoder), "student.transformer.pooling": "cls-of-layers"}
    joint = mtkd.distill(
        "mkd-transformer", teacher=teacher, out=tmp_path / "m", **RUN | data | {"settings": small | own}
    )
    assert joint.module.encoder.config.pairs == "cross-encoder", "the mean over layers needs one sequence"
    other = {"student.transformer.pairs": "cross-encoder", "student.init_heads": "random"}
    with pytest.raises(
        UserError, match=r"two texts side by side \(a bi-encoder\).* the student both texts in one"
    ):
        mtkd.distill(
            "layerwise-3", teacher=teacher, out=tmp_path / "x", **RUN | data | {"settings": small | other}
        )


def test_a_model_can_be_a_bi_encoder_for_some_tasks_only(tiny_encoder: Path, tmp_path: Path) -> None:
    """The logits of each task equal those of a model that reads all tasks the same way."""
    names, mixed = ["mrpc", "stsb", "sst2"], {"max_length": 48, "pairs": ["stsb"], "pooling": "mean"}
    teacher = mtkd.refine(tiny_encoder, tasks=names, out=tmp_path / "t", settings=mixed, **RUN)
    model, alike = mtkd.load(tmp_path / "t").module, {}
    for name, pairs in (("mrpc", "cross-encoder"), ("stsb", "bi-encoder"), ("sst2", "cross-encoder")):
        (task,) = resolve(name)
        encoder = TransformerEncoder(
            model.encoder.config.model_copy(update={"pairs": pairs}), model.encoder.body
        )
        alike[name] = MultiTaskModel(encoder, [task], model.tokeniser, model.info).eval()
        alike[name].heads[name].load_state_dict(model.heads[name].state_dict())
        rows = load_rows(open_data("pocket"), task, "validation", 12)
        encoded = Encoded.encode(rows, model.tokeniser)
        logits = predict_logits(model, task, encoded, batch_size=5)
        np.testing.assert_allclose(logits, predict_logits(alike[name], task, encoded), atol=1e-5)
    similar = tmp_path / "similar.toml"
    similar.write_text(SIMILAR)
    scores = teacher.evaluate(data="pocket", tasks=["stsb", str(similar)])
    (stsb, renamed) = scores.values()
    assert renamed.metrics == stsb.metrics, "a task reads as the task whose head it uses"


def test_a_student_encodes_each_task_like_the_teacher_of_the_task(tiny_encoder: Path, tmp_path: Path) -> None:
    """This holds with one teacher per task, and with a store."""
    teachers = {
        name: mtkd.refine(
            tiny_encoder,
            tasks=[name],
            out=tmp_path / name,
            settings={"max_length": 48, "pairs": pairs, "pooling": "mean"},
            **RUN,
        )
        for name, pairs in (("rte", "bi-encoder"), ("mrpc", "cross-encoder"), ("stsb", ["stsb"]))
    }
    small = {"student.transformer.layers": 1, "student.max_length": 48}
    shared: dict[str, Any] = RUN | {"tasks": list(teachers), "settings": small}
    student = mtkd.distill("layerwise-3", teacher=teachers, out=tmp_path / "s", **shared)
    assert student.module.encoder.config.pairs == ["rte", "stsb"]
    assert student.module.reader.side_by_side == {"rte", "stsb"}
    both = mtkd.distill(
        "layerwise-3",
        teacher={"rte": teachers["rte"], "stsb": teachers["stsb"]},
        out=tmp_path / "b",
        **shared | {"tasks": ["rte", "stsb"]},
    )
    assert both.module.encoder.config.pairs == "bi-encoder"


def test_a_task_is_encoded_like_the_task_whose_head_it_uses(tiny_encoder: Path, tmp_path: Path) -> None:
    """This holds for students of a teacher and of a store, and if the student's `pairs` names the task."""
    mixed = {"max_length": 48, "pairs": ["stsb"], "pooling": "mean"}
    teacher = mtkd.refine(tiny_encoder, tasks=["rte", "stsb"], out=tmp_path / "t", settings=mixed, **RUN)
    similar = tmp_path / "similar.toml"
    similar.write_text(SIMILAR)
    small = {"student.transformer.layers": 1, "student.max_length": 48, "student.dropout": 0.0}
    small["student.transformer.dropout"] = 0.0
    for name in ("stsb", str(similar)):
        losses = []
        place = tmp_path / Path(name).stem
        data: dict[str, Any] = {"data": "pocket", "tasks": [name], "limit": 24}
        run: dict[str, Any] = {**data, "eval_limit": 16, "epochs": 1, "device": "cpu"}
        mtkd.build_store(
            "layerwise-3", teacher=teacher, out=place / "k", settings=small, dtype="fp32", **data
        )
        own = small | {"student.transformer.pairs": [Path(name).stem]}
        for out, given, settings in (
            ("online", {"teacher": teacher}, small),
            ("stored", {"store": place / "k"}, small),
            ("own", {"teacher": teacher}, own),
        ):
            first = FirstTerms()
            student = mtkd.distill(
                "layerwise-3", out=place / out, settings=settings, callbacks=[first], **given, **run
            )
            assert student.module.encoder.config.compares_texts(resolve(name)[0])
            losses.append(first.first)
        assert losses[0].keys() == {"hidden", "logits"}
        assert losses[1:] == [pytest.approx(losses[0], rel=1e-4)] * 2


def test_a_teacher_without_bi_encoder_tasks_in_the_run_gives_pooled_vectors(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    mixed = {"max_length": 48, "pairs": ["stsb"], "pooling": "mean"}
    teacher = mtkd.refine(tiny_encoder, tasks=["rte", "stsb"], out=tmp_path / "t", settings=mixed, **RUN)
    settings = {
        "student.transformer.layers": 1,
        "student.max_length": 48,
        "terms.rows.loss": "sample_similarity",
        "terms.rows.row_vector": "pooled",
    }
    student = mtkd.distill(
        "layerwise-3", teacher=teacher, tasks=["rte"], out=tmp_path / "s", settings=settings, **RUN
    )
    assert student.module.encoder.config.pairs == "cross-encoder"
    with pytest.raises(
        UserError, match=r"'rows' compares pooled vectors .* the teacher \(bert\) is a bi-encoder"
    ):
        mtkd.distill(
            "layerwise-3", teacher=teacher, tasks=["stsb"], out=tmp_path / "x", settings=settings, **RUN
        )
    unknown = settings | {"student.transformer.pairs": ["sst2"]}
    with pytest.raises(UserError, match="unknown task that a bi-encoder can read 'sst2'"):
        mtkd.distill(
            "layerwise-3", teacher=teacher, tasks=["rte"], out=tmp_path / "y", settings=unknown, **RUN
        )


def test_a_bi_encoder_gives_the_pooled_vectors_of_single_texts(tiny_encoder: Path, tmp_path: Path) -> None:
    sides = {"max_length": 48, "pairs": "bi-encoder", "pooling": "mean"}
    teacher = mtkd.refine(tiny_encoder, tasks=["sst2"], out=tmp_path / "t", settings=sides, **RUN)
    settings = {
        "student.transformer.layers": 1,
        "student.max_length": 48,
        "terms.rows.loss": "sample_similarity",
        "terms.rows.row_vector": "pooled",
    }
    found = []
    for pairs in ("bi-encoder", "cross-encoder"):
        first = FirstTerms()
        chosen = settings | {"student.transformer.pairs": pairs}
        options: dict[str, Any] = {"settings": chosen, "callbacks": [first], **RUN}
        mtkd.distill("layerwise-3", teacher=teacher, tasks=["sst2"], out=tmp_path / pairs, **options)
        found.append(first.first)
    assert found[0]["rows"] > 0 and found[0] == pytest.approx(found[1])


@pytest.mark.parametrize(
    ("settings", "tasks", "message"),
    [
        ({"pairs": ["stsb"]}, "rte,sst2", "unknown task that a bi-encoder can read 'stsb'"),
        ({"pairs": ["sst2"]}, "rte,sst2", "unknown task that a bi-encoder can read 'sst2'"),
        ({"pairs": ["squad_v2"]}, "rte,squad_v2", "unknown task that a bi-encoder can read 'squad_v2'"),
        ({"pairs": ["rte"], "pair_head": "san"}, "rte", "pair_head=san"),
        ({"pair_head": "san"}, "rte", "pair_head=san"),
        ({"pooling": "pooler"}, "rte", "cannot use pooling=pooler"),
        ({}, "squad_v2", "question and the context separately"),
    ],
)
def test_unsupported_uses_of_bi_encoders_are_errors(
    settings: dict[str, str], tasks: str, message: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        mtkd.refine(
            tiny_encoder, tasks=tasks, out=tmp_path / "t", settings={"pairs": "bi-encoder"} | settings, **RUN
        )
    assert not (tmp_path / "t").exists()


def test_the_default_depends_on_the_encoder_and_the_number_of_rows(
    tiny_encoder: Path,
    tmp_path: Path,
    cached_on_hub: Callable[..., None],
    save_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encoders from sentence-transformers become bi-encoders, unless there are many pairs."""
    sentences = tmp_path / "sentences"
    shutil.copytree(tiny_encoder, sentences)
    (sentences / "1_Pooling").mkdir()
    (sentences / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    cached_on_hub("some/sentences", sentences)

    def pairs(encoder: str | Path, tasks: str, name: str, **settings: Any) -> tuple[str, str]:
        made = mtkd.refine(
            encoder, tasks=tasks, out=tmp_path / name, settings={"max_length": 48} | settings, **RUN
        )
        config = made.module.encoder.config
        return config.pairs, config.pooling

    assert pairs(tiny_encoder, "rte", "a") == ("cross-encoder", "cls")
    assert pairs("some/sentences", "rte,sst2", "b") == ("bi-encoder", "mean")
    assert pairs(sentences, "rte,sst2", "c", pair_head="san") == ("cross-encoder", "mean")
    assert pairs(tmp_path / "b", "rte", "again") == ("bi-encoder", "mean"), "it was trained as one"
    family = save_checkpoint("DebertaV2")
    shutil.copytree(sentences / "1_Pooling", family / "1_Pooling")
    assert pairs(family, "rte,stsb", "deberta") == ("cross-encoder", "mean"), "it cannot be a bi-encoder"
    assert pairs(sentences, "rte,squad_v2", "d") == ("cross-encoder", "mean")
    monkeypatch.setattr("mtkd.jobs.refine.FEW_ROWS", 20)
    assert pairs(sentences, "rte,sst2", "e") == ("cross-encoder", "mean")
    assert pairs(sentences, "rte,stsb", "f") == (["stsb"], "mean"), "scores say how similar two texts are"
    assert pairs(tmp_path / "f", "rte,stsb", "again-2") == (["stsb"], "mean")
