"""`mtkd.compare_models`: models with one and with several seeds, compared on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mtkd
from tasks.common.errors import UserError

ROWS: dict[str, Any] = {"data": "pocket", "limit": 40}


@pytest.fixture(scope="module")
def runs(tiny_teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[mtkd.Model]]:
    """Two short runs from labels with different seeds, and two from the teacher."""
    place = tmp_path_factory.mktemp("runs")
    made: dict[str, list[mtkd.Model]] = {}
    for name, supervision in (("labels", "labels"), ("distilled", "teacher")):
        made[name] = [
            mtkd.distill(
                "mkd-transformer", teacher=tiny_teacher, data="pocket", tasks="rte,sst2", limit=24, steps=3,
                eval_limit=8, seed=seed, out=place / f"{name}-{seed}",
                settings={"supervision": supervision, "student.max_length": 24},
            )
            for seed in (0, 1)
        ]  # fmt: skip
    return made


@pytest.mark.filterwarnings("ignore::tasks.common.errors.MtkdWarning")
def test_models_with_one_seed_are_compared_as_evaluate_does(runs: dict[str, list[mtkd.Model]]) -> None:
    models = {name: seeds[0] for name, seeds in runs.items()}
    found = mtkd.compare_models(models, **ROWS)
    expected = models["distilled"].evaluate(**ROWS, against=models["labels"])
    (differences,) = expected.differences.values()
    assert found.reference == "labels" and found.differences == {"distilled": differences}
    assert found.scores["distilled"] == {name: [expected[name].primary] for name in ("rte", "sst2")}
    text = str(found)
    assert "against labels, in points:" in text and "average" in text


@pytest.mark.filterwarnings("ignore::tasks.common.errors.MtkdWarning")
def test_models_with_several_seeds(runs: dict[str, list[mtkd.Model]]) -> None:
    """The interval is that of a bootstrap written out here: one seed and all rows are drawn per sample."""
    found = mtkd.compare_models(dict(runs), tasks="sst2", reference="labels", **ROWS)
    correct = {
        name: np.array([model.evaluate(tasks="sst2", **ROWS)["sst2"].primary for model in seeds])
        for name, seeds in runs.items()
    }
    assert {name: by_task["sst2"] for name, by_task in found.scores.items()} == {
        name: pytest.approx(scores) for name, scores in correct.items()
    }
    difference = found.differences["distilled"]["sst2"]
    assert difference.difference == pytest.approx(correct["distilled"].mean() - correct["labels"].mean())

    hits = {}
    for name, seeds in runs.items():
        rows = [model.evaluate(tasks="sst2", **ROWS).scores[0].predictions for model in seeds]
        hits[name] = np.array([part.predictions == part.labels for part in rows if part is not None])
    rng = np.random.default_rng(0)
    sampled = []
    for _ in range(4000):
        seed, drawn = rng.integers(2), rng.integers(40, size=40)
        sampled.append(hits["distilled"][seed, drawn].mean() - hits["labels"][seed, drawn].mean())
    low, high = np.quantile(sampled, [0.025, 0.975])
    assert (difference.low, difference.high) == pytest.approx((low, high), abs=0.03)
    assert list(found.to_frame()["score"][:2]) == pytest.approx(correct["labels"])
    frame = found.differences_to_frame()
    assert list(frame["model"]) == ["distilled"] and frame["low"][0] == difference.low
    assert (
        frame["verdict"][0]
        == difference.verdict
        == found.to_json()["differences"]["distilled"]["sst2"]["verdict"]
    )


def test_invalid_comparisons_are_rejected(runs: dict[str, list[mtkd.Model]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`models` is empty"):
        mtkd.compare_models({}, **ROWS)
    with pytest.raises(UserError, match="'distilled' in `models` stands for no model"):
        mtkd.compare_models({"distilled": []}, **ROWS)
    with pytest.raises(UserError, match=r"unknown reference 'label'.*did you mean 'labels'"):
        mtkd.compare_models(dict(runs), reference="label", **ROWS)
    with (
        pytest.warns(UserWarning, match="'distilled' and 'labels' have different numbers of models"),
        pytest.warns(UserWarning, match=r"labels\[0\]: "),
    ):
        mtkd.compare_models(dict(runs) | {"distilled": tuple(runs["distilled"][:1])}, tasks="sst2", **ROWS)
    with pytest.raises(UserError, match="there is no directory"):
        mtkd.compare_models({"a": tmp_path / "missing"}, **ROWS)
