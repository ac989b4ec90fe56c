"""Grids: what they run, what a failed cell does, going on, and the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from mtkd.grids import grid_names, load_grid
from mtkd.jobs.compare import GridInputs, Job, Row, Table, jobs
from tasks.errors import UserError

GRID = """
title = "Heads"
recipe = "mlkd-bert-4"
tasks = ["rte"]

[set]
"student.max_length" = 24
"student.transformer.layers" = 2
"student.transformer.hidden_size" = 12
"student.transformer.intermediate_size" = 16

[cells.two]
set = { "student.transformer.heads" = 2 }

[cells.broken]
set = { "student.transformer.heads" = 2, "terms.mha.splits" = 5 }

[bench]
seq_len = 16
batches = [2]
rounds = 1
"""
HERE = GridInputs(
    "pocket",
    "teach/{task}",
    Path("out"),
    Path("text.txt"),
    "base",
    more=("--limit", "9"),
    corpus="copies/{task}",
)


@pytest.fixture
def started(processes: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of the runs that a comparison starts; each runs in a forked process."""
    commands: list[list[str]] = []

    def popen(words: list[str], stdout: IO[str], stderr: int) -> SimpleNamespace:
        assert words[:3] == [sys.executable, "-m", "mtkd.cli.main"] and stderr == subprocess.STDOUT
        commands.append(words)
        answered = processes.run(*words[3:])
        stdout.write(answered.out + answered.err)
        return SimpleNamespace(wait=lambda: answered.code)

    monkeypatch.setattr(subprocess, "Popen", popen)
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    return commands


@pytest.mark.slow(reason="a process per cell of the grid")
def test_a_failed_cell_does_not_stop_the_rest_and_what_is_finished_stays(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, started: list[list[str]]
) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(GRID, encoding="utf-8")
    words = ["compare", file, "--data", "pocket", "--teacher", tiny_teacher, "--out", out]
    words += ["--limit", 16, "--eval-limit", 16, "--epochs", 1, "--set", "train.batch_size=8"]
    first = mtkd(*words)
    assert first.code == 1, "a cell failed"
    assert "failed: broken, rte, seed 0: error: the term 'mha' splits vectors into 5" in first.out
    found = json.loads((out / "compare.json").read_text())
    two, broken = found["rows"]
    assert two["scores"]["rte"][0] > 0 and two["speed"] == {"2": 1.0} and two["parameters"] > 0
    assert broken["scores"] == {} and broken["average"] is None
    assert "| two | " in (out / "compare.md").read_text()

    file.write_text(GRID.replace(', "terms.mha.splits" = 5', ""), encoding="utf-8")
    started.clear()
    again = mtkd(*words)
    assert again.code == 0, again.out + again.err
    assert len(started) == 1 and any("broken" in word for word in started[0]), "only the mended cell runs"


@pytest.mark.parametrize("name", grid_names())
def test_the_grids_that_ship_load(name: str) -> None:
    grid = load_grid(name, {}, {})
    planned = list(jobs(grid, HERE))
    runs = sum(len(cell.tasks or grid.tasks) for cell in grid.cells.values())
    assert len(planned) == runs * len(grid.seeds)
    assert len({chain[-1].out for *_, chain in planned}) == len(planned)


def test_a_grid_as_commands() -> None:
    grid = load_grid("minilmv2-table-8", {"tasks": ["rte", "sst2,rte"], "seeds": [3]}, {"train.epochs": 2})
    name, spec, seed, (first, last) = list(jobs(grid, HERE))[1]
    assert (name, spec, seed) == ("6 relation heads", "sst2,rte", 3)
    assert first.words[:6] == ("distill", "minilmv2-6x384", "--text", "text.txt", "--teacher", "base")
    assert "terms.relation.splits=6" in first.words and "train.epochs=2" not in first.words
    assert last.words[-2:] == ("--init", str(first.out)) and "train.epochs=2" in last.words
    assert "teach/sst2,rte" in last.words and last.words[10:12] == ("--limit", "9")
    assert next(iter(jobs(grid, HERE)))[3][0] == first, "cells that start alike share the start"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("recipe = 'mlkd'", "cell 'two': unknown distill recipe 'mlkd'"),
        ("[cells.two]\nset = {'terms.mha.splitz' = 2}", r"cell 'two': unknown setting 'terms.mha.splitz'"),
        ("taks = ['rte']", "unknown setting 'taks'"),
        ("recipe = ", "is not valid TOML"),
    ],
)
def test_a_grid_that_is_wrong(change: str, complaint: str, tmp_path: Path) -> None:
    whole = {"title": "''", "recipe": "'mlkd-bert-4'", "tasks": "['rte']"}
    key = change.split(" = ")[0]
    lines = [f"{name} = {value}" for name, value in whole.items() if name != key]
    cells = "" if change.startswith("[cells") else "\n[cells.two]\n"
    (tmp_path / "grid.toml").write_text("\n".join([*lines, change, cells]), encoding="utf-8")
    with pytest.raises(UserError, match=complaint):
        load_grid(str(tmp_path / "grid.toml"), {}, {})


def test_the_table_holds_mean_and_spread_over_seeds() -> None:
    row = Row(
        "a", {"rte": [0.5, 0.6], "stsb": [0.2]}, parameters=4_000_000, seconds=[10.0, 20.0], speed={64: 1.5}
    )
    grid = load_grid("mlkd-table-8", {}, {})
    lines = Table(grid, ["rte", "stsb"], [row, Row("b")], {}).lines()
    assert lines == [
        ["a", "55.0 ± 7.1", "20.0", "37.5", "4.0M", "15 s", "1.50x"],
        ["b", "-", "-", "-", "-", "-", "-"],
    ]


def test_another_command_is_not_taken_for_finished(tmp_path: Path) -> None:
    job = Job(("distill", "x"), tmp_path / "run")
    assert not job.finished
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"status": "finished"}')
    (tmp_path / "run.command.json").write_text('["distill", "x"]')
    assert job.finished and not Job(("distill", "y"), tmp_path / "run").finished


def test_a_store_stands_in_for_the_teacher(tmp_path: Path) -> None:
    grid = load_grid("hsk-tinybert-4-grid", {"tasks": ["rte"]}, {})
    inputs = GridInputs("pocket", None, tmp_path, store="stores/{task}")
    words = next(jobs(grid, inputs))[3][-1].words
    assert "--teacher" not in words and words[words.index("--store") + 1] == "stores/rte"
    assert len(grid.cells) == 103, "100 configurations, predictions alone, and everything twice"
