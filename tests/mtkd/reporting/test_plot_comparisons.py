"""One plot of several comparisons: its points match the numbers in their files; invalid files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import mtkd as library
from mtkd.evaluation.baselines import CONSTANT
from tasks.common.errors import UserError

# Row -> average score, milliseconds at batches of 8 and 64, weights, seconds of each run.
FEW = {"wide": (0.61, 4.0, 30.0, 8_000_000, [60.0, 180.0]), "narrow": (0.52, 1.0, 8.0, 1_000_000, [30.0])}
FULL = {"wide": (0.72, 5.0, 33.0, 8_000_000, [600.0]), "deep": (0.7, 9.0, 80.0, 9_000_000, [900.0])}


def row(name: str, values: tuple[Any, ...]) -> dict[str, Any]:
    average, small, large, parameters, seconds = values
    ms = {"8": small, "64": large}
    return {"name": name, "average": average, "ms": ms, "parameters": parameters, "seconds": seconds}


def write(folder: Path, title: str, values_by_row: dict[str, tuple[Any, ...]], **changes: Any) -> Path:
    """Write a compare.json with trained models, baselines, and a model not scored on all tasks."""
    untrained = {"ms": {}, "parameters": None, "seconds": []}
    listed = [row(name, values) for name, values in values_by_row.items()]
    listed.append(row("failed", (None, 1.0, 1.0, 5, [1.0])))
    listed += [{"name": name, "average": 0.4, **untrained} for name in (CONSTANT, "frozen encoder + linear")]
    content = {"title": title, "tasks": ["rte", "sst2"], "rows": listed, "bench": {"seq_len": 128}}
    folder.mkdir(exist_ok=True)
    file = folder / "compare.json"
    file.write_text(json.dumps({key: value for key, value in (content | changes).items() if value}))
    return file


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def kept(figure: Figure, *given: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, *given, **options)

    monkeypatch.setattr(Figure, "savefig", kept)
    return saved


def points(figure: Figure, panel: int) -> dict[str, tuple[float, float]]:
    """Label -> x and y of the markers of a panel."""
    lines = figure.axes[panel].lines
    found = {}
    for line in lines:
        if not str(line.get_label()).startswith("_"):
            (x,), (y,) = line.get_xdata(), line.get_ydata()
            found[str(line.get_label())] = (float(x), float(y))
    return found


def test_the_plot_has_the_points_of_all_comparisons(tmp_path: Path, figures: list[Figure]) -> None:
    few = write(tmp_path / "few", "Few labels", FEW)
    write(tmp_path / "full", "All labels", FULL, tasks=["sst2", "rte"])
    (tmp_path / ".all.png.0123456789abcdef.tmp").touch()  # as a killed process leaves one
    out = library.report_plot([few, tmp_path / "full"], tmp_path / "all.png")
    assert out.read_bytes().startswith(b"\x89PNG") and sorted(p.name for p in tmp_path.iterdir()) == [
        "all.png", "few", "full",
    ]  # fmt: skip
    (figure,) = figures
    scores = {"wide (Few labels)": 61, "narrow": 52, "wide (All labels)": 72, "deep": 70}
    expected = [
        {"wide (Few labels)": 4.0, "narrow": 1.0, "wide (All labels)": 5.0, "deep": 9.0},
        {"wide (Few labels)": 8, "narrow": 1, "wide (All labels)": 8, "deep": 9},
        {"wide (Few labels)": 2, "narrow": 0.5, "wide (All labels)": 10, "deep": 15},
    ]
    for panel, costs in enumerate(expected):
        assert points(figure, panel) == {name: pytest.approx((costs[name], scores[name])) for name in scores}
        unnamed = [line for line in figure.axes[panel].lines if str(line.get_label()).startswith("_")]
        front, constant = unnamed
        assert [*constant.get_ydata()] == [40, 40], "equal baselines are drawn once"
        # "wide" with all labels beats "deep" everywhere, and "wide" with few labels in size.
        better = ["narrow", *(["wide (Few labels)"] if panel != 1 else []), "wide (All labels)"]
        assert [*front.get_ydata()] == pytest.approx([scores[name] for name in better])
    assert figure.axes[0].get_xlabel() == "inference, ms for 8 rows of 128 tokens"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {*scores}


def test_equal_titles_are_told_apart_by_directories_and_old_files_have_no_length(
    tmp_path: Path, figures: list[Figure]
) -> None:
    files = [write(tmp_path / name, "Rates", FEW, bench=None) for name in ("one", "two")]
    library.report_plot(files, tmp_path / "all.svg")
    assert "<svg" in (tmp_path / "all.svg").read_text()
    names = {f"{row} (Rates, {folder})" for row in FEW for folder in ("one", "two")}
    assert {*points(figures[0], 0)} == names
    assert figures[0].axes[0].get_xlabel() == "inference, ms for 8 rows"


def test_the_first_batch_size_that_all_have_is_plotted(tmp_path: Path, figures: list[Figure]) -> None:
    few = write(tmp_path / "few", "Few labels", FEW)
    other = row("deep", FULL["deep"])
    del other["ms"]["8"]
    full = write(tmp_path / "full", "All labels", {}, rows=[other])
    library.report_plot([few, full], tmp_path / "all.png")
    costs = {name: x for name, (x, _) in points(figures[0], 0).items()}
    assert costs == {"wide": 30, "narrow": 8, "deep": 80}
    other["ms"] = {"32": 7.0}
    full.write_text(json.dumps(json.loads(full.read_text()) | {"rows": [other]}))
    with pytest.raises(UserError, match=r"timed at different batch sizes: 8, 64 in .*few.*; 32 in .*full"):
        library.report_plot([few, full], tmp_path / "no.png")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["rte"]}, ["compare.json compares scores on rte\n", "the same tasks as", "rte, sst2"]),
        ({"bench": {"seq_len": 64}}, ["128 in", "64 in", "expected: one length"]),
        ({"rows": None}, ["lacks the key 'rows'", "hint: name a compare.json"]),
        ({"rows": [row("long", (0.5, 1.0, 2.0, 5, [1e300]))]}, ["rows.0.seconds.0 = 1e+300"]),
        ({"rows": [row("slow", (0.5, 1.0, 1e300, 5, [1.0]))]}, ["rows.0.ms.64 = 1e+300"]),
    ],
)  # fmt: skip
def test_incompatible_comparisons_are_errors(
    changes: dict[str, Any], message: list[str], mtkd: Callable, tmp_path: Path
) -> None:
    few, full = write(tmp_path / "few", "Few", FEW), write(tmp_path / "full", "Full", FULL, **changes)
    refused = mtkd("report", "plot", few, full, "--out", tmp_path / "all.png")
    assert refused.code == 2 and all(words in refused.err for words in message), refused.err
    assert not (tmp_path / "all.png").exists()


def test_files_that_cannot_be_plotted_are_errors(mtkd: Callable, tmp_path: Path) -> None:
    few = write(tmp_path / "few", "Few", FEW)
    out = tmp_path / "all.png"
    lone = write(tmp_path / "lone", "Lone", {"wide": FEW["wide"]})
    for words, message in (
        ([few, few], "is given 2 times"),
        ([few, tmp_path], "has no compare.json"),
        ([tmp_path / "none.json"], "none.json"),
        ([lone], "fewer than two rows"),
    ):
        refused = mtkd("report", "plot", *words, "--out", out)
        assert refused.code == 2 and message in refused.err and not out.exists(), refused.err
    refused = mtkd("report", "plot", few, "--out", tmp_path / "all.txt")
    assert refused.code == 2 and "ends in .png, .svg, .pdf" in refused.err
    assert mtkd("report", "plot", few, "--out", out).code == 0, "one comparison can be plotted, too"
    refused = mtkd("report", "plot", few, "--out", out)
    assert refused.code == 2 and "already exists" in refused.err and "--overwrite" in refused.err
    assert mtkd("report", "plot", few, "--out", out, "--overwrite").code == 0
