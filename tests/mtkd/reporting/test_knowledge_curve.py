"""Score against hidden-state knowledge: points of hand-made runs, curves, plots, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_records import finished_record

from mtkd.recipes import load_settings
from mtkd.reporting.knowledge_curve import Point, curve, plot_knowledge, read_points, whole_points
from tasks.common.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(
    place: Path, score: float, depth: int | None, tokens: int | None, width: float, **more: Any
) -> None:
    """Write a finished run of hsk-tinybert-4: a student of 2 layers that reads 24 tokens."""
    kept = {"terms.hidden.depth": depth, "terms.hidden.tokens": tokens, "terms.hidden.width": width}
    settings = load_settings("hsk-tinybert-4", "distill", {**kept, "student.max_length": 24, **more})
    values = {"metrics": {"accuracy": score}, "primary": score, "majority": 0.5, "loss": 1.0, "rows": 8}
    scores = {"rte/validation": {"task": "rte", "split": "validation", **values}}
    record = finished_record(identity={"settings": settings.model_dump(mode="json")}, scores=scores)
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(record))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a grid with runs of several sizes, and an unfinished one."""
    saved = SimpleNamespace(config=SimpleNamespace(spec=SimpleNamespace(layers=2)))
    monkeypatch.setattr("mtkd.reporting.knowledge_curve.read_saved", lambda place: saved)
    write_run(tmp_path / "runs" / "a", 0.60, 1, 4, 0.5)
    write_run(tmp_path / "runs" / "b", 0.70, 2, 2, 0.5)
    write_run(tmp_path / "runs" / "deep" / "c", 0.75, None, None, 1.0)
    write_run(tmp_path / "runs" / "d", 0.80, 1, None, 1.0)
    write_run(tmp_path / "runs" / "e", 0.40, 1, 4, 0.5, **{"terms.hidden.weight": 0})
    write_run(tmp_path / "runs" / "f", 0.99, 3, 24, 1.0)
    record = json.loads((tmp_path / "runs" / "f" / "run.json").read_text())
    (tmp_path / "runs" / "f" / "run.json").write_text(json.dumps({**record, "status": "running"}))
    return tmp_path / "runs"


def test_each_run_becomes_a_point(runs: Path) -> None:
    found = {Path(point.run).name: point for point in read_points([runs])}
    assert found.keys() == set("abcde"), "the unfinished run has none"
    # The full set: the embeddings and 2 layers, 24 tokens each, of which c keeps everything.
    assert {name: (p.depth, p.tokens, p.width) for name, p in found.items()} == {
        "a": (1, 4, 0.5),
        "b": (2, 2, 0.5),
        "c": (3, 24, 1.0),
        "d": (1, 24, 1.0),
        "e": (0, 4, 0.5),
    }
    assert {name: p.ahsk for name, p in found.items()} == {"a": 2, "b": 2, "c": 72, "d": 24, "e": 0}
    assert found["d"].share == pytest.approx(1 / 3) and found["c"].whole == (True, True, True)
    assert {p.model for p in found.values()} == {"hsk-tinybert-4, 2 layers"}
    with pytest.raises(UserError, match=r"no finished run with hidden-state knowledge in .*deep"):
        read_points([runs / "deep" / "nothing"])


def test_a_curve_has_mean_best_and_count_sorted_by_amount(runs: Path) -> None:
    points = [point for point in read_points([runs]) if point.depth]
    assert curve(points, "ahsk") == [
        (2.0, pytest.approx(0.65), 0.70, 2),
        (24.0, pytest.approx(0.80), 0.80, 1),
        (72.0, pytest.approx(0.75), 0.75, 1),
    ]


def point(depth: int, tokens: int, width: float, score: float) -> Point:
    return Point("r", "rte", "m", depth, tokens, width, (3, 24), None, "att", "magnitude", score)


def test_the_star_marks_the_uniform_layer_map() -> None:
    upper, uniform = (replace(point(3, 24, 1.0, score), top=top) for score, top in ((0.7, 10), (0.6, None)))
    assert whole_points([point(3, 12, 1.0, 0.5), upper]) == [upper]
    assert whole_points([point(0, 24, 1.0, 0.5), upper, uniform]) == [uniform]


def test_a_panel_shows_the_dimension_that_varies_while_the_others_are_complete(tmp_path: Path) -> None:
    along_depth = [point(1, 24, 1.0, 0.5), point(2, 24, 1.0, 0.6)]
    files = plot_knowledge([*along_depth, point(3, 5, 0.5, 0.7)], tmp_path / "one")
    assert [file.name for file in files] == ["joint.png", "depth.png"]
    files = plot_knowledge(
        [point(3, 24, 1.0, 0.5), point(3, 12, 1.0, 0.5), point(3, 24, 0.5, 0.4)], tmp_path / "two"
    )
    assert [file.name for file in files] == ["joint.png", "length.png", "width.png"]
    assert all(file.read_bytes().startswith(PNG) for file in files)


def test_the_command_prints_the_table_and_writes_the_plots(
    runs: Path, tmp_path: Path, mtkd: Callable
) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / ".joint.png.0123456789abcdef.tmp").touch()  # as a killed process leaves one
    answered = mtkd("report", "knowledge", runs, "--out", tmp_path / "plots")
    assert answered.code == 0, answered.err
    rows = [line.replace("│", " ").split() for line in answered.out.splitlines()]
    (row,) = (row for row in rows if "65.0" in row)
    assert row[-5:] == ["2", "2.78%", "2", "65.0", "70.0"]
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"joint.png", "depth.png"}
    points = json.loads(mtkd("report", "knowledge", runs, "--out", tmp_path / "plots", "--json").out)
    assert [entry["ahsk"] for entry in points] == [2, 2, 24, 72, 0]


def test_plots_are_not_written_to_a_file(runs: Path, tmp_path: Path, mtkd: Callable) -> None:
    (tmp_path / "plots").write_text("mine")
    answered = mtkd("report", "knowledge", runs, "--out", tmp_path / "plots")
    assert answered.code == 2 and (tmp_path / "plots").read_text() == "mine"
    expected = "\n  expected: a directory\n  hint: choose another --out\n"
    assert answered.err == f"error: {tmp_path}/plots is a file{expected}"


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], r": identity.settings.terms = \[\] is not valid"),
        ({"hidden": {}}, " lacks the key 'identity.settings.terms.hidden.loss'"),
        (
            {"hidden": {"loss": "hidden_knowledge", "depth": "x"}},
            ", identity.settings: terms.hidden.depth = 'x'",
        ),
    ],
)
def test_damaged_settings_name_the_file(runs: Path, terms: Any, message: str) -> None:
    file = runs / "a" / "run.json"
    record = json.loads(file.read_text())
    record["identity"]["settings"]["terms"] = terms
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"{file}{message}"):
        read_points([runs])
