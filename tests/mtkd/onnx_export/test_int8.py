"""int8 exports: what is quantised, how close the predictions are, and what happens if a score drops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exportable_models import bi_encoder, bilstm, cross_encoder, model_of, slow_export, static

import mtkd
from mtkd.jobs import export_int8
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.onnx_export.graphs import trace
from mtkd.onnx_export.int8 import KEPT, quantise
from mtkd.runtime import OnnxModel
from tasks.common.errors import UserError

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
SCORES = {
    "task": "rte",
    "split": "validation",
    "metrics": {"accuracy": 0.512},
    "primary": 0.512,
    "loss": 0.7,
    "rows": 9,
    "majority": 0.5,
}
WORDS = ["the", "film", "play", "was", "not", "very", "good", "bad", "dull", "long", "and", "of"]


def rows_of(model: MultiTaskModel, head: str, columns: Sequence[str], number: int = 300) -> dict[str, Any]:
    """Return rows of random words, labelled with the predictions of the model."""
    random = np.random.default_rng(0)
    texts = [
        {name: " ".join(random.choice(WORDS, random.integers(1, 12))) for name in columns}
        for _ in range(number)
    ]
    predicted = mtkd.Model(model).predict(head, texts)
    labelled = [row | {"label": found["prediction_id"]} for row, found in zip(texts, predicted, strict=True)]
    return {head: {"validation": labelled}}


@pytest.mark.parametrize("build", [bilstm, *map(slow_export, (static, bi_encoder))])
def test_int8_predictions_are_close_to_those_of_the_model(
    build: Callable[[Path], AnyEncoder], tiny_encoder: Path, tmp_path: Path
) -> None:
    model = model_of(build(tiny_encoder), tiny_encoder, "rte,sst2")
    data = rows_of(model, "rte", ("sentence1", "sentence2")) | rows_of(model, "sst2", ("sentence",))
    model.info.scores = {"rte/validation": SCORES}
    found = mtkd.export(mtkd.Model(model), out=tmp_path / "x", int8=True, max_drop=5, data=data)
    card = (tmp_path / "x" / "README.md").read_text(encoding="utf-8")
    assert "validation scores of the fp32 model, in percent |" in card and "accuracy 51.2" in card
    assert f"| rte | {100 * found.scores['rte'].score:.1f} | 100.0 |" in card
    assert "model-index" not in card  # the metadata identifies the scored model only by its name
    assert found.int8 and found.scores["rte"].score > 0.9 and found.scores["sst2"].score > 0.9
    size = 4 * sum(weight.numel() for weight in model.parameters())
    assert (tmp_path / "x" / "weights.bin").stat().st_size < 0.4 * size  # rows of 8 units have many scales


@pytest.fixture(scope="module")
def traced(tiny_encoder: Path, build_once: Callable[..., Path]) -> tuple[MultiTaskModel, Any]:
    """A cross-encoder with one very long and one empty token vector, and its graph."""
    model = model_of(cross_encoder(tiny_encoder), tiny_encoder, "rte,mrpc")
    table = next(p for name, p in model.named_parameters() if name.endswith("word_embeddings.weight"))
    table.data[7] *= 1000
    table.data[9] = 0

    def make(place: Path) -> None:
        place.mkdir()
        onnx.save(trace(model)[None], place / "graph.onnx")

    return model, onnx.load(build_once("traced", make) / "graph.onnx")


def test_each_row_of_an_embedding_matrix_has_its_own_scale(traced: tuple[MultiTaskModel, Any]) -> None:
    model, original = traced
    table = next(p for name, p in model.named_parameters() if name.endswith("word_embeddings.weight"))
    graph = quantise(original, (), reduce_range=False).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (name,) = (name.removesuffix(".int8") for name in arrays if name.endswith("word_embeddings.weight.int8"))
    restored = arrays[f"{name}.int8"].astype(np.float32) * arrays[f"{name}.scales"]
    expected = table.detach().numpy()
    bound = np.abs(expected).max(1, keepdims=True) / 127 / 2
    assert (np.abs(restored - expected) <= 1.001 * bound).all()


@pytest.mark.parametrize("kind", ["bilstm", "cross-encoder"])
def test_given_parts_stay_in_fp32(kind: str, traced: tuple[MultiTaskModel, Any], tiny_encoder: Path) -> None:
    model, graph = traced
    if kind == "bilstm":
        model = model_of(bilstm(tiny_encoder), tiny_encoder, "rte,mrpc")
        (graph,) = trace(model).values()
    counts = []
    for kept in KEPT:
        nodes = [node.op_type for node in quantise(graph, kept, reduce_range=False).graph.node]
        counts.append(nodes.count("MatMulIntegerToFloat") + nodes.count("DynamicQuantizeLSTM"))
    assert counts[0] - counts[1] >= len(model.heads)  # at least one matrix per head
    assert counts[1] > counts[2] > 0


def test_reduced_range_uses_seven_bits(traced: tuple[MultiTaskModel, Any]) -> None:
    graph = traced[1]
    for reduce_range, largest in ((False, 127), (True, 64)):
        made = quantise(graph, (), reduce_range=reduce_range).graph
        read = {name for node in made.node if node.op_type == "MatMulIntegerToFloat" for name in node.input}
        weights = [
            onnx.numpy_helper.to_array(t) for t in made.initializer if t.name in read and len(t.dims) == 2
        ]
        assert max(np.abs(weight.astype(int)).max() for weight in weights) == largest


def test_the_int8_logits_of_a_row_do_not_depend_on_the_other_rows(traced: tuple[MultiTaskModel, Any]) -> None:
    graph = quantise(traced[1], (), reduce_range=False)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.array(
        [[2, 11, 12, 3], [2, 7, 7, 3], [2, 9, 9, 3]]
    )  # 7 has the very long vector, 9 the empty one
    rows = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    together = session.run(None, rows)
    for number in range(len(ids)):
        alone = session.run(None, {name: values[number : number + 1] for name, values in rows.items()})
        for one, among_others in zip(alone, together, strict=True):
            np.testing.assert_allclose(one[0], among_others[number], atol=1e-6)


@pytest.mark.slow(reason="exports a model")
def test_a_part_whose_quantisation_lowers_the_score_too_much_stays_in_fp32(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(static(tiny_encoder), tiny_encoder, "sst2")
    data = rows_of(model, "sst2", ("sentence",))
    working: list[tuple[str, ...]] = [KEPT[1]]

    def damaging(graph: Any, kept: tuple[str, ...], *, reduce_range: bool) -> Any:
        """Negate the outputs unless these parts stay in fp32."""
        made = quantise(graph, kept, reduce_range=reduce_range)
        if kept not in working:
            (last,) = (node for node in made.graph.node if "logits_sst2" in node.output)
            last.output[0] = "right"
            made.graph.node.append(onnx.helper.make_node("Neg", ["right"], ["logits_sst2"]))
        return made

    monkeypatch.setattr(export_int8, "quantise", damaging)
    found = mtkd.export(mtkd.Model(model), out=tmp_path / "x", int8=True, data=data, max_drop=5)
    assert found.kept == ("heads",)
    assert OnnxModel(tmp_path / "x").record["int8"]["kept"] == ["heads"]
    working.clear()
    with pytest.raises(UserError, match=r"lower on sst2: -\d") as raised:
        mtkd.export(mtkd.Model(model), out=tmp_path / "y", int8=True, data=data, max_drop=5)
    assert "`max_drop`" in str(raised.value.hint)
    assert not (tmp_path / "y").exists()


def test_unmet_requirements_of_int8_are_errors(tiny_teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checked on labelled rows"):
        mtkd.export(tiny_teacher, out=tmp_path / "x", int8=True)
    with pytest.raises(UserError, match="max_drop=-1"):
        mtkd.export(tiny_teacher, out=tmp_path / "x", int8=True, data="pocket", max_drop=-1)
