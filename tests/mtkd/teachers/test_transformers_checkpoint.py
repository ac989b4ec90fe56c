"""Fine-tuned transformers checkpoints as teachers, compared with transformers itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from mtkd.models.inference import predict_logits
from mtkd.outputs import OutputSpec
from mtkd.teachers.transformers_checkpoint import CheckpointRef, checkpoint_directory
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.rows import Rows
from tasks.data.sources import PocketSource
from tasks.task import Task
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

NAMED = {"id2label": {0: "POSITIVE", 1: "Negative"}, "label2id": {"POSITIVE": 0, "Negative": 1}}


def task_of(name: str) -> Task:
    return resolve(name)[0]


def rows_of(task: Task, count: int = 24) -> Rows:
    return load_rows(PocketSource(), task, "train", count)


def plain_logits(place: Path, rows: Rows) -> np.ndarray:
    """Return the logits, computed with transformers alone."""
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    tokeniser = AutoTokenizer.from_pretrained(place)
    columns = [column.to_pylist() for column in rows.texts]
    inputs = tokeniser(*columns, truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits.numpy()


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert"])
@pytest.mark.parametrize("name", ["sst2", "rte"])
def test_logits_match_transformers(kind: str, name: str, save_checkpoint: Callable[..., Path]) -> None:
    task = task_of(name)
    labels = {0: task.labels[0].upper(), 1: task.labels[1].replace("_", " ")}
    place = save_checkpoint(kind, id2label=labels)
    rows = rows_of(task)
    model = CheckpointRef.of(str(place), place, task).load(None)
    assert model.info.max_length == 64
    found = predict_logits(model, task, Encoded.encode(rows, model.tokeniser), batch_size=7)
    expected = plain_logits(place, rows)
    assert expected.std(0).min() > 0.005, "the rows differ"
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_long_pairs_are_truncated_like_in_transformers(save_checkpoint: Callable[..., Path]) -> None:
    task = task_of("rte")
    place = save_checkpoint("Roberta", id2label=dict(enumerate(task.labels)))
    rows = rows_of(task, 12)
    first = [" ".join([text] * (1 + n % 4)) for n, text in enumerate(rows.texts[0].to_pylist())]
    second = [" ".join([text] * (1 + n % 5)) for n, text in enumerate(rows.texts[1].to_pylist())]
    rows = replace(rows, texts=tuple(rows.texts[0].from_pandas(column) for column in (first, second)))
    model = CheckpointRef.of(str(place), place, task).load(None)
    encoded = Encoded.encode(rows, model.tokeniser)
    assert (model.reader.lengths(encoded.texts) == 64).sum() > 3, "some rows are truncated"
    found = predict_logits(model, task, encoded)
    np.testing.assert_allclose(found, plain_logits(place, rows), atol=2e-5)


def test_one_row_alone_differs_only_by_rounding(save_checkpoint: Callable[..., Path]) -> None:
    """Without padding there is nothing to mask; the last layer is run for the first token only."""
    task = task_of("sst2")
    place = save_checkpoint("Bert", **NAMED)
    rows = rows_of(task, 1)
    model = CheckpointRef.of(str(place), place, task).load(None)
    found = predict_logits(model, task, Encoded.encode(rows, model.tokeniser))
    np.testing.assert_allclose(found, plain_logits(place, rows)[:, ::-1], atol=1e-6)


def test_outputs_are_put_into_the_order_of_the_labels(save_checkpoint: Callable[..., Path]) -> None:
    task = task_of("sst2")
    named, numbered = save_checkpoint("Bert", **NAMED), save_checkpoint("Bert", "numbered")
    ref = CheckpointRef.of("x", named, task)
    assert (ref.order, ref.warning) == ((1, 0), None)
    ref = CheckpointRef.of("x", numbered, task)
    assert ref.order == (0, 1) and ref.warning and "LABEL_0, LABEL_1" in ref.warning
    given = CheckpointRef.of("x", numbered, task, ["Positive", "negative"])
    assert (given.order, given.warning) == ((1, 0), None)
    assert given.digest != ref.digest


def test_regression_multilabel_and_ranking_checkpoints(save_checkpoint: Callable[..., Path]) -> None:
    stsb = task_of("stsb")
    place = save_checkpoint("Roberta", num_labels=1)
    model = CheckpointRef.of("x", place, stsb).load(None)
    rows = rows_of(stsb)
    found = predict_logits(model, stsb, Encoded.encode(rows, model.tokeniser))
    np.testing.assert_allclose(found, plain_logits(place, rows), atol=2e-5)

    topics = Task("topics", "multilabel", ("sentence",), ("a", "b", "c"))
    place = save_checkpoint(
        "Bert", "topics", id2label={0: "C", 1: "A", 2: "B"}, problem_type="multi_label_classification"
    )
    rows = rows_of(task_of("sst2"))
    model = CheckpointRef.of("x", place, topics).load(None)
    found = predict_logits(model, topics, Encoded.encode(rows, model.tokeniser))
    np.testing.assert_allclose(found, plain_logits(place, rows)[:, [1, 2, 0]], atol=2e-5)

    rank = Task("r", "rank", ("question", "sentence"), ("yes", "no"), group="question", positive=0)
    place = save_checkpoint("Bert", "rank", id2label={0: "no", 1: "yes"})
    rows = rows_of(task_of("qnli"))
    model = CheckpointRef.of("x", place, rank).load(None)
    found = predict_logits(model, rank, Encoded.encode(rows, model.tokeniser))
    plain = plain_logits(place, rows)
    np.testing.assert_allclose(found[:, 0], plain[:, 1] - plain[:, 0], atol=4e-5)


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_question_answering_checkpoints_match_transformers(
    kind: str, save_checkpoint: Callable[..., Path]
) -> None:
    task = task_of("squad")
    place = save_checkpoint(kind, head="ForQuestionAnswering")
    model = CheckpointRef.of("x", place, task).load(48)
    rows = model.reader.rows(rows_of(task, 6))
    encoded = Encoded.encode(rows, model.tokeniser)
    found = predict_logits(model, task, encoded)
    batch = Collator(model.reader)(encoded, np.arange(len(rows)))
    assert batch.inputs.joined is not None
    plain = AutoModelForQuestionAnswering.from_pretrained(place).eval()
    tokeniser = AutoTokenizer.from_pretrained(place)
    texts = [column.to_pylist() for column in rows.texts]
    truncation = {
        "truncation": "only_first",
        "max_length": 48,
    }  # mtkd splits contexts into windows, and truncates long questions
    inputs = tokeniser(*texts, padding=True, return_tensors="pt", **truncation)
    if kind == "Bert":
        assert torch.equal(inputs["input_ids"], batch.inputs.joined.ids), "windows are read as pairs"
    inputs["input_ids"] = batch.inputs.joined.ids
    inputs["attention_mask"] = batch.inputs.joined.mask.long()
    with torch.no_grad():
        out = plain(**inputs)
    mask = inputs["attention_mask"].bool().numpy()
    for number, expected in enumerate((out.start_logits, out.end_logits)):
        values = found[:, number, : mask.shape[1]]
        np.testing.assert_allclose(values[mask], expected.numpy()[mask], atol=2e-5)
        assert (values[~mask] == -1e4).all()


def test_hidden_states_and_logits_come_from_one_pass(save_checkpoint: Callable[..., Path]) -> None:
    task = task_of("rte")
    place = save_checkpoint("Bert", id2label=dict(enumerate(task.labels)))
    model = CheckpointRef.of("x", place, task).load(None)
    batch = Collator(model.reader)(Encoded.encode(rows_of(task, 8), model.tokeniser), np.arange(8))
    runs = []
    model.encoder.body.register_forward_pre_hook(lambda *call: runs.append(1))  # type: ignore[union-attr]
    every = frozenset({0, 1, 2})
    need = OutputSpec(logits=True, hidden=every, cls=every, query=frozenset({2}), scores=frozenset({1}))
    with torch.no_grad():
        found = model(batch.inputs, task.head, need)
    assert len(runs) == 1 and found.query.keys() == {2} and found.scores.keys() == {1}
    tokens = batch.inputs.joined
    assert tokens is not None
    plain = AutoModelForSequenceClassification.from_pretrained(place).eval()
    with torch.no_grad():
        out = plain(
            input_ids=tokens.ids,
            attention_mask=tokens.mask.long(),
            token_type_ids=tokens.token_type_ids,
            output_hidden_states=True,
        )
    for layer in every:
        expected = out.hidden_states[layer][tokens.mask]
        torch.testing.assert_close(found.hidden[layer][tokens.mask], expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.logits, out.logits, atol=2e-5, rtol=0)


def test_a_model_given_as_an_object_is_not_changed(save_checkpoint: Callable[..., Path]) -> None:
    task = task_of("sst2")
    place = save_checkpoint("Bert", **NAMED)
    plain = AutoModelForSequenceClassification.from_pretrained(place)
    before = plain.config._attn_implementation
    pair = (plain, AutoTokenizer.from_pretrained(place))
    ref = CheckpointRef.of("x", pair, task)
    model, digest = ref.load(None), ref.digest
    rows = rows_of(task)
    found = predict_logits(model, task, Encoded.encode(rows, model.tokeniser))
    np.testing.assert_allclose(found, plain_logits(place, rows)[:, ::-1], atol=2e-5)
    assert plain.config._attn_implementation == before and not plain.bert.encoder.layer[0]._forward_hooks
    with torch.no_grad():
        plain.classifier.bias += 1
    assert CheckpointRef.of("x", pair, task).digest != digest


def test_checkpoints_are_told_apart_from_runs_and_encoders(
    save_checkpoint: Callable[..., Path], tiny_encoder: Path, tiny_teacher: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = save_checkpoint("Bert")
    assert checkpoint_directory(str(place)) == place
    assert checkpoint_directory(str(tiny_encoder)) is None, "it has no task head"
    assert checkpoint_directory(str(tiny_teacher)) is None
    assert checkpoint_directory("minilm") is None
    with pytest.raises(UserError, match="there is no such directory"):
        checkpoint_directory("no/such")
    with pytest.raises(UserError, match=r"config\.json is a file"):
        checkpoint_directory(str(place / "config.json"))


@pytest.mark.parametrize(
    ("task", "config", "given", "parts"),
    [
        ("sst2", {"num_labels": 3}, None, ["3 outputs", "2 labels"]),
        ("mnli", {}, None, ["2 outputs", "3 labels"]),
        ("stsb", {}, None, ["2 outputs", "needs 1"]),
        ("rte", {"id2label": {0: "a\n\x1b[31m", 1: "b"}}, None, [r"named 'a\n\x1b[31m', b, but"]),
        ("sst2", {"num_labels": 1}, None, ["has 1 output (LABEL_0)", "2 labels"]),
        ("rte", NAMED, None, ["POSITIVE, Negative", "teacher_labels={'rte': ['FIRST', 'SECOND']}`"]),
        (
            "mnli",
            {"id2label": {0: "A", 1: "B", 2: "C"}},
            None,
            ["the checkpoint ", "{'mnli': ['FIRST', 'SECOND', 'THIRD']}`"],
        ),
        ("sst2", {"id2label": {0: "negative", 1: "LABEL_1"}}, None, ["negative, LABEL_1"]),
        ("sst2", {}, ["positive", "neutral"], ["positive, neutral", "negative, positive"]),
        ("sst2", {}, ["positive"], ["`teacher_labels` lists positive"]),
        ("squad", {}, None, ["BertForSequenceClassification", "ForQuestionAnswering"]),
        ("sst2", {"problem_type": "multi_label_classification"}, None, ["multi_label", "classify"]),
        ("sst2", {"problem_type": "regression"}, None, ["trained for regression", "classify"]),
        ("mnli", {"id2label": {0: "entailment", 1: "neutral", 7: "x"}}, None, ["neutral, LABEL_2"]),
    ],
)
def test_incompatible_checkpoints_are_errors(
    task: str, config: dict, given: Any, parts: list[str], save_checkpoint: Callable[..., Path]
) -> None:
    place = save_checkpoint("Bert", **config)
    with pytest.raises(UserError) as error:
        CheckpointRef.of(str(place), place, task_of(task), given)
    assert all(part in str(error.value) for part in parts), error.value


def test_a_bin_checkpoint_gives_the_same_logits_as_safetensors(
    save_checkpoint: Callable[..., Path], cached_on_hub: Callable[..., None]
) -> None:
    task = task_of("sst2")
    place = save_checkpoint("Bert", **NAMED)
    rows = rows_of(task)
    expected = plain_logits(place, rows)[:, ::-1]
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    cached_on_hub("some/checkpoint", place)
    hub = checkpoint_directory("some/checkpoint")
    assert hub is not None and hub != place
    for where in (place, hub):
        ref = CheckpointRef.of(str(where), where, task)
        model = ref.load(None)
        found = predict_logits(model, task, Encoded.encode(rows, model.tokeniser))
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert ref.digest == CheckpointRef.of("again", place, task).digest
    torch.save({"classifier.bias": torch.ones(2)}, place / "pytorch_model.bin")
    assert CheckpointRef.of("changed", place, task).digest != ref.digest


def test_missing_weights_and_heads_are_rejected(save_checkpoint: Callable[..., Path]) -> None:
    task = task_of("sst2")
    place = save_checkpoint("Bert")
    (place / "model.safetensors").rename(place / "weights.h5")
    with pytest.raises(UserError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        CheckpointRef.of("x", place, task)

    index = {"metadata": {}, "weight_map": {"classifier.weight": "model-00001-of-00002.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model-00001-of-00002\.safetensors is missing, which .*index\.json"):
        CheckpointRef.of("x", place, task)
    (place / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(UserError, match=r"model\.safetensors is a Git LFS pointer") as error:
        CheckpointRef.of("x", place, task)
    assert "`git lfs pull`" in str(error.value.hint)

    place = save_checkpoint("Bert", "headless")
    weights = load_file(place / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"has no weights for classifier\.weight"):
        CheckpointRef.of("x", place, task).load(None)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("config.json", "num_hidden_layers", 1, r"have bert\.encoder\.layer\.1\..*config\.json has 1 layer"),
        ("config.json", "max_position_embeddings", 9, r"do not fit its config\.json: .*, not \(9, "),
        ("config.json", "model_type", "roberta", r"'roberta' contradicts architectures = \['BertForSeq"),
        (
            "config.json",
            "auto_map",
            {"AutoModel": "code.Model"},
            r"config\.json: auto_map = .* is not allowed",
        ),
        ("config.json", "hidden_size", "16", r"Validation error for field 'hidden_size': \w"),
        ("tokenizer_config.json", "model_max_length", "x", "model_max_length = 'x' is not valid"),
    ],
)
def test_files_of_another_model_are_rejected(
    file: str, key: str, value: Any, message: str, save_checkpoint: Callable[..., Path]
) -> None:
    place = save_checkpoint("Bert")
    values = json.loads((place / file).read_text())
    (place / file).write_text(json.dumps(values | {key: value}))
    with pytest.raises(UserError, match=message):
        CheckpointRef.of("x", place, task_of("sst2")).load(None)


def test_a_tokeniser_that_pads_on_the_left_is_rejected(save_checkpoint: Callable[..., Path]) -> None:
    place = save_checkpoint("Roberta")
    file = place / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": "left"}))
    with pytest.raises(UserError, match="pads on the left"):
        CheckpointRef.of("x", place, task_of("sst2")).tokeniser()
