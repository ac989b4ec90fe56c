"""Models, tasks and settings that a term rejects before any weight is loaded, and warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mtkd.losses.contrastive import sample_contrastive
from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm, ModelPair, TermInput
from mtkd.outputs import BY_LAYER, EncoderSpec, ModelOutput, OutputSpec
from mtkd.setting_errors import validate
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.task import Task
from tasks.tokens.batching import Batch


def spec(layers: int, width: int) -> EncoderSpec:
    every = dict.fromkeys(BY_LAYER, frozenset(range(layers + 1)))
    return EncoderSpec("bert", layers, width, width, 2, width, OutputSpec(True, True, True, **every))


STUDENT, TEACHER = spec(2, 12), spec(4, 24)


def built(
    loss: str,
    student: EncoderSpec = STUDENT,
    teacher: EncoderSpec = TEACHER,
    task: Task = TASKS["rte"],
    **settings: Any,
) -> LossTerm:
    """The term `t` with these settings."""
    given = validate(loss_class(loss).Settings, {"loss": loss, **settings})
    return loss_class(loss).from_settings("t", given, ModelPair(student, teacher, (task,)))


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("hidden_mse", {"layer_map": [[0, 0], [1, 2]], "projection": "per-layer"}),
        ("hidden_cosine", {"layer_map": [[0, 0], [2, 4]], "projection": "shared"}),
        ("cls_mse", {"layer_map": [[0, 0], [1, 2]], "projection": "shared"}),
        ("hidden_knowledge", {}),
    ],
)
@pytest.mark.parametrize("who", ["student", "teacher"])
def test_embeddings_of_a_different_width_need_a_term_of_their_own(
    loss: str, settings: dict[str, Any], who: str
) -> None:
    """A single projection, or none, does not work for vectors of two widths."""
    models = {"student": STUDENT, "teacher": TEACHER}
    models[who] = replace(models[who], embedding_size=5)
    built(loss, **settings)
    with pytest.raises(
        UserError, match=rf"'t' compares the embeddings of the {who} \(bert\), of width 5, .*width (12|24)"
    ):
        built(loss, **models, **settings)
    alone: Any = built("hidden_mse", **models, layer_map=[[0, 0]])
    assert alone.projection.maps["all"].weight.shape == ((24, 5) if who == "student" else (5, 12))


@pytest.mark.parametrize("bins", [2, 5])
def test_binning_scores_requires_their_range(bins: int) -> None:
    """Without the range, each distinct score would be a separate class."""
    unbounded = replace(TASKS["stsb"], name="mine", range=None)
    built("sample_contrastive", task=TASKS["stsb"], bins=bins)
    built("sample_contrastive", task=unbounded, bins=bins, task_types=["classify"])
    with pytest.raises(UserError, match=rf"terms.t.bins={bins} .* task 'mine' declares no range") as refused:
        built("sample_contrastive", task=unbounded, bins=bins)
    assert "range = [lowest, highest]" in str(refused.value)
    with pytest.raises(UserError, match="scores of 'mine' cannot be sorted into classes: the task declares"):
        unbounded.type.row_classes(unbounded, torch.tensor([0.5]), bins)
    with pytest.raises(UserError, match="no number of bins"):
        TASKS["stsb"].type.row_classes(TASKS["stsb"], torch.tensor([0.5]), None)


@pytest.mark.parametrize("row_vector", ["cls", "pooled"])
def test_rows_of_equal_width_can_be_contrasted_without_a_projection(row_vector: str) -> None:
    same = replace(TEACHER, hidden_size=12, pooled_size=12)
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 12), torch.randn(4, 12)
    outputs = (ModelOutput(pooled=rows, cls={2: rows, 4: rows}) for rows in (student, teacher))
    batch = Batch("rte", np.arange(4), torch.tensor([0.0, 1.0, 0.0, 1.0]), None, None, None)  # type: ignore[arg-type]
    term = built("sample_contrastive", teacher=same, row_vector=row_vector, projection=None)
    assert not list(term.parameters())
    inputs = TermInput(TASKS["rte"], batch, *outputs, num_items=4)
    expected = 4 * sample_contrastive(student, teacher, batch.labels)
    assert term(inputs).item() == pytest.approx(expected.item())
    shared: Any = built("sample_contrastive", row_vector=row_vector)
    assert shared.projection.maps["all"].weight.shape == (24, 12)
    with pytest.raises(UserError, match=r"width 12 \(student\) and 24 \(teacher\) without a projection"):
        built("sample_contrastive", row_vector=row_vector, projection="none")
    with pytest.raises(UserError, match="projection"):
        built("sample_contrastive", projection="per-layer")


@pytest.mark.parametrize("loss", ["relation", "hidden_cosine"])
def test_the_former_name_of_a_layer_map_still_works(loss: str) -> None:
    settings = loss_class(loss).Settings
    old, new = (validate(settings, {"loss": loss, "layer_map": name}) for name in ("auto", "minilmv2"))
    assert old == new and old.layer_map == "minilmv2"
    with pytest.raises(UserError) as refused:
        validate(settings, {"loss": loss, "layer_map": "automatic"})
    assert "last-only, minilmv2, emd" in str(refused.value) and "auto," not in str(refused.value)
