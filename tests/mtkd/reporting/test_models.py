"""The runs that a report shows: grids, stages, runs on plain text, and invalid requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from report_runs import ROWS, numbers, predicted, read, write_run

import mtkd as library
from mtkd.evaluation.baselines import CONSTANT
from mtkd.reporting.models import gather
from tasks.common.errors import MtkdWarning, UserError
from tasks.task import Task


def test_the_runs_of_a_grid_cell_share_a_line(task: Task, tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    commands: dict[str, list[str]] = {}
    for cell, right in (("wide", 0.9), ("small one", 0.6)):
        for seed in (0, 1):
            place = f"grid/runs/{cell[:5]}/topics-{seed}"
            write_run(tmp_path / place, task, predicted(task, right, seed), seed=seed)
            commands.setdefault(cell, []).append(f"mtkd distill some-recipe --out moved/{place}")
    write_run(grid / "teacher" / "topics", task, predicted(task, 0.5, 7), "refine")
    commands["wide"].append("mtkd refine --out moved/grid/teacher/topics")
    commands["wide"][0] += " --teacher moved/grid/teacher/topics"
    rows = [{"name": "wide", "ms": {"8": 12.5}}, {"name": "small one", "ms": {"8": 2.5}}]
    content = {"title": "A <grid>", "reference": "small one", "rows": rows, "commands": commands}
    (grid / "compare.json").write_text(json.dumps(content))
    write_run(grid / "runs" / "broken" / "topics-0", task, None, status="running")
    with pytest.warns(library.MtkdWarning, match=r"broken/topics-0 is not finished, so it is left out"):
        page, _ = read(library.report_html([grid], tmp_path / "grid.html"))
    shutil.rmtree(grid / "runs" / "broken")
    table = page.named("topics")
    assert set(table) == {"wide student", "small one student", CONSTANT}, "the teacher is only read"
    both = [json.loads((grid / f"runs/wide/topics-{n}/run.json").read_text()) for n in (0, 1)]
    mean = np.mean([record["scores"]["topics/validation"]["primary"] for record in both])
    assert numbers(table["wide student"]["topics"])[0] == pytest.approx(100 * mean, abs=0.051)
    assert (
        "Differences from small one" in page.text and "A <grid>" in page.text and "and the seeds" in page.text
    )
    assert page.named("ms per batch")["small one student"]["ms per batch"] == "2.5"
    assert "wide, topics, seed 1" in page.text

    write_run(tmp_path / "wide", task, predicted(task, 0.4, 5))  # a run of the same name beside the grid
    page, _ = read(library.report_html([grid, tmp_path / "wide"], tmp_path / "both.html"))
    expected = {"grid/wide", "grid/small", "wide", "best"}
    assert {name.split()[0] for name in page.named("topics")} == expected and "A <grid>" not in page.text
    del content["reference"]
    (grid / "compare.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="lacks the key 'reference'"):
        library.report_html([tmp_path], tmp_path / "old.html")


def test_a_cell_with_the_steps_of_another_cell_shows_only_its_own_run(task: Task, tmp_path: Path) -> None:
    """The commands of such a cell include the run whose steps it takes."""
    small, large = ({"total": size, "embeddings": 1, "without_embeddings": size - 1} for size in (10, 90))
    grid, runs = tmp_path / "grid", {"full": (0.6, small), "ablated": (0.9, large)}
    commands: dict[str, list[str]] = {"full": [], "ablated": []}
    for seed in (0, 1):
        for cell, (right, parameters) in runs.items():
            place = grid / "runs" / cell / f"topics-{seed}"
            write_run(place, task, predicted(task, right, seed), seed=seed, parameters=parameters)
        lines = {cell: f"mtkd distill x --seed {seed} --out grid/runs/{cell}/topics-{seed}" for cell in runs}
        commands["full"].append(lines["full"])
        commands["ablated"] += [lines["full"], f"{lines['ablated']} --steps 40"]
    scored = {cell: [f"runs/{cell}/topics-{seed}" for seed in (0, 1)] for cell in runs}
    rows = [{"name": cell, "ms": {}} for cell in runs]
    content = {"title": "Steps", "reference": "full", "rows": rows, "commands": commands}
    (grid / "compare.json").write_text(json.dumps({**content, "scored_runs": scored}))
    gathered = gather([grid])
    assert [model.name for model in gathered.models] == ["full", "ablated"]
    for model in gathered.models:
        paths = [grid / path for path in scored[model.name]]
        assert [run.path for run in model.runs] == paths
        assert model.parameters == runs[model.name][1]
        primary = [json.loads((path / "run.json").read_text())["scores"] for path in paths]
        mean = np.mean([scores["topics/validation"]["primary"] for scores in primary])
        assert model.scores()["topics"] == pytest.approx(mean)
    names = [run.name for run in gathered.runs]
    assert names == [f"{cell}, topics, seed {seed}" for cell in runs for seed in (0, 1)]
    table = read(library.report_html([grid], tmp_path / "a.html"))[0].named("topics")
    assert numbers(table["full student"]["topics"])[0] + 20 < numbers(table["ablated student"]["topics"])[0]

    del scored["ablated"][1]  # the run with this seed has failed
    (grid / "compare.json").write_text(json.dumps({**content, "scored_runs": scored}))
    ablated = gather([grid]).models[1]
    assert [(run.seed, run.name) for run in ablated.runs] == [(0, "ablated")]

    (grid / "compare.json").write_text(json.dumps({**content, "scored_runs": {}}))
    with pytest.raises(UserError, match="has no run with scores"):
        gather([grid])
    for file in grid.glob("runs/*/*/run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "status": "running"}))
    with pytest.warns(MtkdWarning), pytest.raises(UserError, match=r"no run in .* is finished"):
        gather([grid])


def test_a_comparison_of_an_earlier_version_shows_the_runs_that_no_command_reads(
    task: Task, tmp_path: Path
) -> None:
    place = write_run(tmp_path / "grid" / "runs" / "a" / "topics-0", task, None)
    write_run(tmp_path / "grid" / "first" / "x-1", task, None, primary=0.9)
    command = "mtkd distill x --init grid/first/x-1 --out grid/runs/a/topics-0"
    commands = {"a": ["mtkd distill y --out grid/first/x-1", command]}
    content = {"title": "Old", "reference": "a", "rows": [], "commands": commands}
    (tmp_path / "grid" / "compare.json").write_text(json.dumps(content))
    (model,) = gather([tmp_path / "grid"]).models
    assert [run.path for run in model.runs] == [place]
    content["rows"] = [{"name": "a", "ms": {"64": 1e300}}]
    (tmp_path / "grid" / "compare.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"rows.0.ms.64 = 1e\+300"):
        gather([tmp_path / "grid"])


def test_the_error_for_an_unknown_reference_lists_the_runs(
    task: Task, runs: Path, tmp_path: Path, mtkd: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("student", "control"):
        write_run(tmp_path / "some" / name, task, None)
    monkeypatch.chdir(tmp_path)
    words = ("report", "html", "some", "--out", "page.html", "--reference")
    misspelt = mtkd(*words, "some/contrl")
    assert misspelt.code == 2 and "(did you mean 'some/control'?)" in misspelt.err
    assert "one of them: some/control, some/student" in misspelt.err
    named = mtkd(*words, "student")
    assert named.code == 2 and "for the model 'student': --reference some/student" in named.err


def test_invalid_requests_are_rejected_before_anything_is_written(
    task: Task, runs: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    out = tmp_path / "page.html"
    (tmp_path / "empty").mkdir()
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "nowhere"], "there is no directory"),
        ([tmp_path / "empty"], "no run in"),
        ([runs, "--reference", tmp_path / "empty"], "--reference"),
    ]
    for name, change, message in (
        ("running", {"status": "running"}, "is running, not finished"),
        ("damaged", {"identity": {}}, "lacks the key"),
    ):
        write_run(tmp_path / name, task, None, **change)
        cases.append(([tmp_path / name], f"{name} {message}" if name == "running" else message))
    (write_run(tmp_path / "cut", task, None) / "run.json").write_text("{")
    (write_run(tmp_path / "log", task, None) / "log.jsonl").write_text("no json")
    shutil.rmtree(write_run(tmp_path / "bare", task, None) / "model")
    cases += [([tmp_path / name], str(tmp_path / name)) for name in ("cut", "log", "bare")]
    for words, message in cases:
        answered = mtkd("report", "html", *words, "--out", out)
        assert answered.code == 2 and message in answered.err, answered.err
        assert not out.exists()
    out.write_text("mine")
    answered = mtkd("report", "html", runs / "student", "--out", out)
    assert answered.code == 2 and "--overwrite" in answered.err and out.read_text() == "mine"
    with pytest.raises(UserError, match="is a directory"):
        library.report_html([runs], tmp_path, overwrite=True)
    with pytest.raises(UserError, match=r"a.pdf'` is not the name of a page"):
        library.report_html([runs], tmp_path / "a.pdf")
    with pytest.raises(UserError, match="no run is named"):
        library.report_html([], tmp_path / "a.html")
    assert mtkd("report", "html", runs / "student", "--out", out, "--overwrite").code == 0
    assert "Report of 1 run" in read(out)[0].text


def test_runs_on_plain_text_have_no_scores(task: Task, tmp_path: Path) -> None:
    write_run(tmp_path / "text", task, None, scores={}, data="some-digest", teacher="other-digest")
    page, html = read(library.report_html([tmp_path / "text"], tmp_path / "a.html"))
    assert "Scores" not in html and "loss: 0.025 at step 40" in html
    assert "some-digest" in page.text and "other-digest" in page.text


def test_the_curves_of_stages_follow_each_other(task: Task, tmp_path: Path) -> None:
    place = write_run(
        tmp_path / "run", task, None, training={"layers": {"steps": 40}, "logits": {"steps": 40}}
    )
    for name in ("layers", "logits"):
        (place / "stages" / name).mkdir(parents=True)
        shutil.copy(place / "log.jsonl", place / "stages" / name)
    (place / "log.jsonl").unlink()
    _, html = read(library.report_html([place], tmp_path / "a.html"))
    assert "loss: 0.025 at step 80" in html and ">logits</text>" in html


def test_models_scored_on_different_rows_are_not_compared(task: Task, tmp_path: Path) -> None:
    """Row ids decide whether two models were scored on the same rows."""
    rows = predicted(task, 0.8, 1)
    write_run(tmp_path / "runs" / "one", task, rows)
    others = replace(rows, uids=pa.array([f"x{n}" for n in range(ROWS)]))
    write_run(tmp_path / "runs" / "other", task, others)
    page, html = read(library.report_html([tmp_path / "runs"], tmp_path / "a.html"))
    tables = [table for table in page.tables if table[0] == ["model", "topics"]]
    compared = [[row[0].split()[0] for row in table[1:]] for table in tables]
    assert compared == [["one", "other", "best"], ["best"], ["one"]] and "disagree" not in html
