"""Exports of every kind of model give the predictions of the model, with and without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from exportable_models import KINDS, bilstm, cross_encoder, model_of, static

import mtkd
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.onnx_export import parity
from mtkd.runtime import OnnxModel, disable_telemetry
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_file

pytest.importorskip("onnxruntime")
PAIRS = [("A man sleeps.", "Nobody is awake."), ("The dog ran home to its owner.", "A cat."), ("", "x")]
TEXTS = ["a fine film", "dreadful, and much too long for what little it has to say", ""]


@pytest.mark.parametrize("build", KINDS)
def test_an_export_and_its_model_give_the_same_predictions(
    build: Callable[[Path], AnyEncoder], tiny_encoder: Path, tmp_path: Path
) -> None:
    info = {"pair_head": "san"} if build is cross_encoder else {}
    model = mtkd.Model(model_of(build(tiny_encoder), tiny_encoder, "rte,sst2,stsb", **info))
    found = mtkd.export(model, out=tmp_path / "x")
    # The export has compared all logits. With a SAN head, they are far above 1, so their errors are larger.
    assert found.difference <= 10 * parity.TOLERANCE and list(model.module.heads) == ["rte", "sst2", "stsb"]
    exported, again = OnnxModel(tmp_path / "x"), mtkd.load(tmp_path / "x")
    for task, rows in (("rte", PAIRS), ("stsb", PAIRS), ("sst2", TEXTS)):
        expected = model.predict(task, rows)
        assert_equal(exported.predict(task, rows), expected)
        assert_equal(exported.predict(task, rows, batch=1), expected)
        assert_equal(again.predict(task, rows), expected)


def assert_equal(made: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert flat(one) == pytest.approx(flat(other), abs=2e-4)


def flat(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "probabilities"} | answer.get(
        "probabilities", {}
    )


@pytest.mark.slow(reason="exports a Transformer")
def test_an_exported_span_model_gives_the_same_answers(span_teacher: Path, tmp_path: Path) -> None:
    teacher = mtkd.load(span_teacher)
    mtkd.export(span_teacher, out=tmp_path / "x")
    context = "A man sleeps in the big house. " * 9
    rows = [("Who sleeps?", context), ("?", "A")]
    made = OnnxModel(tmp_path / "x").predict("squad_v2", rows)
    for one, other in zip(made, teacher.predict("squad_v2", rows), strict=True):
        assert (one["prediction"], one["start"]) == (other["prediction"], other["start"])
        assert one["no_answer_score"] == pytest.approx(other["no_answer_score"], abs=1e-3)


@pytest.fixture(scope="module")
def exported(tiny_teacher: Path, build_once: Callable[..., Path]) -> Path:
    """A teacher that was exported for two of its tasks, and evaluated."""

    def make(place: Path) -> None:
        found = mtkd.export(tiny_teacher, out=place, tasks="rte,sst2", data="pocket", limit=40)
        assert found.bytes == bytes_of(place)
        assert found.scores.keys() >= {"rte", "sst2"}
        for score in found.scores.values():
            assert score.score == pytest.approx(score.reference)

    return build_once("exported", make)


def bytes_of(export: Path) -> int:
    """The size of the graphs and the weights."""
    return sum((export / name).stat().st_size for name in ("model.onnx", "weights.bin"))


@pytest.mark.slow(reason="exports a Transformer")
def test_commands_accept_an_export(
    exported: Path, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    place = exported
    scores = mtkd.evaluate(place, data="pocket", limit=40, against=tiny_teacher)
    assert scores["sst2"].primary == pytest.approx(
        mtkd.evaluate(tiny_teacher, data="pocket", limit=40)["sst2"].primary
    )
    times = mtkd.bench_inference([tiny_teacher, place], seq_len=16, batch=4, rounds=1, warmup=0)
    assert times[0].parameters.embeddings == times[1].parameters.embeddings
    assert times[1].disk_bytes == bytes_of(place)
    with pytest.raises(UserError, match="is an exported model, which cannot be fine-tuned"):
        mtkd.finetune(place, task="rte", data="pocket", limit=8, epochs=1, out=tmp_path / "f")
    with pytest.raises(UserError, match="logits only"):
        mtkd.load(place).encode(["a text"])
    with pytest.raises(UserError, match="cannot be a teacher"):
        mtkd.distill("mkd-lstm", teacher=place, tasks="rte", data="pocket", out=tmp_path / "d")
    with pytest.raises(UserError, match="already an export"):
        mtkd.export(place, out=tmp_path / "y")
    with pytest.raises(UserError, match="stsb"):
        mtkd.load(place).predict("stsb", PAIRS)
    with pytest.raises(UserError, match="already holds an export"):
        mtkd.export(tiny_teacher, out=place)


def test_graphs_for_single_texts_and_pairs_share_their_weights(tiny_encoder: Path, tmp_path: Path) -> None:
    model = mtkd.Model(model_of(bilstm(tiny_encoder), tiny_encoder, "rte,sst2"))
    found = mtkd.export(model, out=tmp_path / "x")
    both = sum(file.stat().st_size for file in (tmp_path / "x").glob("model-*.onnx"))
    assert len(list((tmp_path / "x").glob("model-*.onnx"))) == 2
    weights = sum(weight.numel() for weight in model.module.parameters())
    assert found.bytes - both < 1.1 * 4 * weights


def test_an_export_predicts_frames_and_task_objects_like_its_model(exported: Path) -> None:
    model, loaded = OnnxModel(exported), mtkd.load(exported)
    frame = pandas.DataFrame({"sentence": TEXTS, "n": range(3)})
    for rows in (frame, frame[:0]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mtkd.MtkdWarning)  # of an empty text
            found, expected = model.predict("sst2", rows), loaded.predict("sst2", rows)
        assert list(found) == list(expected) and found["prediction"].equals(expected["prediction"])
    with pytest.raises(UserError, match="already has the column 'prediction'"):
        model.predict("sst2", found)
    assert list(model.predict("sst2", found, replace=True)) == list(found)
    own = replace(loaded.task("rte"), name="own", columns=("one", "two"))
    rows = [{"one": one, "two": two} for one, two in PAIRS[:2]]
    assert model.predict(own, rows) == model.predict("rte", PAIRS[:2])
    assert model.predict("rte", rows, columns=["one", "two"]) == model.predict("rte", PAIRS[:2])
    with pytest.raises(UserError, match="the model has no head for the task 'mrpc'"):
        model.predict("mrpc", PAIRS)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda export, run, options: mtkd.distill("layerwise-3", teacher=export, **options),
            "{} is an exported model, which cannot be a teacher",
        ),
        (
            lambda export, run, options: mtkd.distill("layerwise-3", teacher=run, init=export, **options),
            "{} is an exported model, which cannot be trained further, or be the start of a student",
        ),
        (
            lambda export, run, options: mtkd.distill(
                "layerwise-3", teacher=run, student=mtkd.load(export), **options
            ),
            "`student` is an exported model, which cannot be trained",
        ),
        (
            lambda export, run, options: mtkd.refine(export, **options),
            "{} is an exported model, which cannot be trained further, or be the start of a student",
        ),
        (
            lambda export, run, options: mtkd.finetune(export, task=options.pop("tasks"), **options),
            "{} is an exported model, which cannot be fine-tuned",
        ),
    ],
)
def test_an_export_is_not_a_model_to_train_or_to_learn_from(
    exported: Path, tiny_teacher: Path, tmp_path: Path, use: Callable[..., Any], message: str
) -> None:
    options = {"data": "pocket", "tasks": "rte", "out": tmp_path / "run"}
    with pytest.raises(mtkd.UserError) as error:
        use(exported, tiny_teacher, options)
    assert error.value.problem == message.format(exported)
    assert error.value.hint == "use the run that it was exported from"


def test_a_student_is_no_path(tiny_teacher: Path, tmp_path: Path) -> None:
    options: Any = {"data": "pocket", "tasks": "rte", "out": tmp_path / "run", "teacher": tiny_teacher}
    with pytest.raises(mtkd.UserError, match=r"mtkd.load\('DIR'\) \(not an export.*`init='DIR'`"):
        mtkd.distill("layerwise-3", student=str(tiny_teacher), **options)


def test_an_export_runs_without_torch(exported: Path, tiny_teacher: Path) -> None:
    code = (
        "import sys; blocked = ('torch', 'transformers', 'datasets', 'sklearn', 'scipy');"
        "sys.modules.update(dict.fromkeys(blocked)); from mtkd.runtime import OnnxModel; import json;"
        f"print(json.dumps(OnnxModel({str(exported)!r}).predict('rte', {PAIRS!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert_equal(json.loads(done.stdout), mtkd.load(tiny_teacher).predict("rte", PAIRS))


@pytest.mark.parametrize(
    "code",
    [
        "from mtkd.runtime import OnnxModel; OnnxModel({place!r}).predict('sst2', ['a fine film'])",
        pytest.param(
            "from mtkd.onnx_export.graphs import require_exporter; require_exporter()",
            marks=pytest.mark.slow(reason="imports the exporter in a new process"),
        ),
    ],
)
def test_onnxruntime_sends_no_usage_data(code: str, tiny_encoder: Path, tmp_path: Path) -> None:
    model = mtkd.Model(model_of(static(tiny_encoder), tiny_encoder, "sst2"))
    mtkd.export(model, out=tmp_path / "x")
    home = tmp_path / "home"  # where onnxruntime keeps the id of the machine, and the data to send
    home.mkdir()
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(home))
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    code = code.format(place=str(tmp_path / "x"))
    subprocess.run([sys.executable, "-c", code], env=environment | places, check=True)
    assert [str(path) for path in home.rglob("*")] == []


def test_the_user_can_allow_usage_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    disable_telemetry()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_a_damaged_export_is_rejected(exported: Path, tiny_teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "x")
    weights = tmp_path / "x" / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"weights\.bin is damaged: it has changed"):
        OnnxModel(tmp_path / "x")
    for damage in ('{"format": 1}', "{}"):
        (tmp_path / "x" / "export.json").write_text(damage)
        with pytest.raises(UserError, match=r"export\.json lacks the key"):
            mtkd.load(tmp_path / "x").predict("rte", PAIRS)
    (tmp_path / "x" / "export.json").unlink()
    with pytest.raises(UserError, match=r"lacks model\.json or export\.json"):
        mtkd.load(tmp_path / "x")
    with pytest.raises(UserError, match="1 or more"):
        OnnxModel(exported).predict("rte", PAIRS, batch=0)
    with pytest.raises(UserError, match="has no effect without"):
        mtkd.export(tiny_teacher, out=tmp_path / "z", limit=5)
    with pytest.raises(UserError, match="no task is named"):
        mtkd.export(tiny_teacher, out=tmp_path / "z", tasks=[])
    with pytest.raises(UserError, match="is not an mtkd export"):
        OnnxModel(tiny_teacher)


def test_an_export_whose_outputs_differ_is_not_written(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OnnxModel.run
    monkeypatch.setattr(OnnxModel, "run", lambda *given: run(*given) + np.float32(0.1))
    model = mtkd.Model(model_of(bilstm(tiny_encoder), tiny_encoder, "rte"))
    with pytest.raises(UserError, match=r"its logits differ by up to 0\.1 "):
        mtkd.export(model, out=tmp_path / "x")
    monkeypatch.setattr(OnnxModel, "run", lambda *given: run(*given) * np.float32(np.nan))
    with pytest.raises(UserError, match="its logits differ by up to nan"):
        mtkd.export(model, out=tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_the_tolerance_grows_with_the_largest_logit(tiny_encoder: Path, tmp_path: Path) -> None:
    model = mtkd.Model(model_of(static(tiny_encoder), tiny_encoder, "rte"))
    for weight in model.module.head_modules.parameters():
        weight.data *= 1e3
    found = mtkd.export(model, out=tmp_path / "x")
    assert found.difference > parity.TOLERANCE


def changed(place: Path, copy: Path, file: str, change: Callable[[Any], Any]) -> Path:
    """Return a copy of an export with a changed file and its updated digest."""
    shutil.copytree(place, copy)
    path = copy / file
    if path.suffix == ".json":
        values = json.loads(path.read_text())
        values.pop("check", None)
        path.write_text(json.dumps(change(values)))
    else:
        path.write_bytes(change(path.read_bytes()))
    record = json.loads((copy / "export.json").read_text())
    record.pop("check")
    record["files"][file] = digest_file(path)
    (copy / "export.json").write_text(json.dumps(record))
    return copy


def tasks_with(**fields: Any) -> Callable[[Any], Any]:
    return lambda values: {**values, "tasks": [{**task, **fields} for task in values["tasks"]]}


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("tokenizer.json", lambda values: {}, "tokenizer.json' cannot be used"),
        ("tokenizer.json", lambda values: [], "tokenizer.json' cannot be used"),
        ("tokenizer.json", lambda values: {**values, "version": "9"}, "tokenizer.json' cannot be used"),
        ("tokenizer.json", lambda values: {**values, "model": {"type": "Evil"}}, "cannot be used"),
        (
            "tokenizer.json",
            lambda values: {**values, "model": {**values["model"], "vocab": {}}, "added_tokens": []},
            "has no unk token",
        ),
        ("model.json", tasks_with(head="zz"), "has no output for the head 'zz'"),
        ("model.json", tasks_with(labels=["a", "b", "c"]), "but its task needs 3"),
        ("weights.bin", lambda raw: b"\xff" * len(raw), "gives logits that are not finite"),
        ("model.onnx", lambda raw: b"\xff" * 99, "model.onnx cannot be run"),
    ],
)
def test_a_damaged_file_whose_digest_was_updated_is_one_error(
    exported: Path, file: str, change: Callable[[Any], Any], problem: str, tmp_path: Path
) -> None:
    place = changed(exported, tmp_path / "x", file, change)
    with pytest.raises(UserError, match=problem):
        OnnxModel(place).predict("rte", PAIRS)


def test_an_export_without_its_tokeniser_or_its_graph_is_one_error(exported: Path, tmp_path: Path) -> None:
    def without(values: Any) -> Any:
        return {**values, "files": {f: d for f, d in values["files"].items() if f != "tokenizer.json"}}

    place = changed(exported, tmp_path / "x", "model.json", lambda values: values)
    record = json.loads((place / "export.json").read_text())
    (place / "export.json").write_text(json.dumps(without(record)))
    (place / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json' cannot be used"):
        OnnxModel(place)
    (place / "export.json").write_text(json.dumps(record | {"graphs": []}))
    shutil.copy(exported / "tokenizer.json", place)
    with pytest.raises(UserError, match="has no graph for tasks of 2 texts"):
        OnnxModel(place)
