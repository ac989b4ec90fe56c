"""Which models, tasks and settings a term refuses before any weight is loaded, and what it warns of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mtkd.losses.loss_registry import loss_class
from mtkd.losses.loss_term import LossTerm, ModelPair
from mtkd.outputs import BY_LAYER, EncoderSpec, OutputSpec
from mtkd.setting_errors import validate
from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.task import Task


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
def test_embeddings_of_another_width_are_compared_by_themselves(
    loss: str, settings: dict[str, Any], who: str
) -> None:
    """One projection, or none, cannot serve vectors of two widths."""
    models = {"student": STUDENT, "teacher": TEACHER}
    models[who] = replace(models[who], embedding_size=5)
    built(loss, **settings)
    with pytest.raises(
        UserError, match=rf"'t' compares the embeddings of the {who} \(bert\), of width 5, .*width (12|24)"
    ):
        built(loss, **models, **settings)
    alone: Any = built("hidden_mse", **models, layer_map=[[0, 0]])
    assert alone.projection.maps["all"].weight.shape == ((24, 5) if who == "student" else (5, 12))
