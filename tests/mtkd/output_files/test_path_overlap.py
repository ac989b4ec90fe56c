"""An output must not be an input, contain one, or be inside a model."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtkd.output_files.path_overlap import files_of_toml, named_paths, refuse_overlap
from tasks.common.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run/model").mkdir(parents=True)
    Path("run/run.json").write_text("{}")
    Path("run/model/model.json").write_text("{}")
    Path("data/rte").mkdir(parents=True)
    Path("data/rte/train.jsonl").write_text("{}\n")
    Path("link").symlink_to("run")
    Path("rte").mkdir()
    Path("run[1]").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("out", "inputs", "relation"),
    [
        ("run", {"teacher": "run"}, "is the path of the teacher"),
        ("run/", {"teacher": ["other", "rte=./run"]}, "is the path of the teacher"),
        ("link", {"model": Path("run")}, "is run, the path of the model|is the path of the model"),
        ("run", {"teacher": {"rte": [SimpleNamespace(path=Path("run"))]}}, "is the path of the teacher"),
        ("run[1]", {"model": "run[1]"}, "is the path of the model"),
        ("run", {"model": Path("link")}, "is the path of the model"),
        ("run", {"model": "run/model"}, "contains run/model, the path of the model"),
        ("run", {"init": "a,run/model"}, "contains run/model"),
        (".", {"data": "data"}, "contains data, the path of the data"),
        ("run/onnx", {"model": "run"}, "lies inside run, the path of the model"),
        ("run/model/model.json", {"model": "run"}, "lies inside run"),
        ("link/model/x", {"teacher": "run/model"}, "lies inside run/model"),
        ("data/rte/train.jsonl", {"data": ["pocket", "data"]}, "is a file of rows inside data"),
        ("data/rte/train.jsonl", {"unlabelled": {"rte": "data/*/train.jsonl"}}, "is the path of the unl"),
    ],
)
def test_an_output_that_overlaps_an_input_is_rejected(
    out: str, inputs: dict[str, Any], relation: str
) -> None:
    with pytest.raises(UserError, match=relation):
        refuse_overlap("out", Path(out), inputs)


@pytest.mark.parametrize(
    ("out", "inputs"),
    [
        ("run-2", {"teacher": "run", "data": "data"}),
        ("student", {"data": "."}),  # outputs may be beside the rows
        ("data/scores.json", {"data": "data"}),
        ("rte", {"tasks": "rte"}),  # a name on the hub, not a directory
        ("rte", {"settings": {"student.kind": "rte"}, "unlabelled": {"sst2": "rte"}}),
        ("pocket", {"data": "pocket"}),
        ("report.html", {"runs": ["."]}),
        ("runs", {"model": object(), "data": None}),
    ],
)
def test_outputs_that_do_not_overlap_are_accepted(out: str, inputs: dict[str, Any]) -> None:
    Path(out).mkdir(exist_ok=True) if "." not in out else Path(out).touch()
    refuse_overlap("out", Path(out), inputs)


def test_an_output_that_replaces_nothing_may_contain_inputs() -> None:
    refuse_overlap("out", Path(), {"teacher": "run"}, may_contain=True)
    for out, relation in (("run", "`out='run'` is the path of"), ("run/table", "lies inside run")):
        with pytest.raises(UserError, match=relation):
            refuse_overlap("out", Path(out), {"teacher": "run"}, may_contain=True)


def test_a_hard_link_counts_as_the_file_itself() -> None:
    os.link("data/rte/train.jsonl", "rows.jsonl")
    with pytest.raises(UserError, match="is the path of the source"):
        refuse_overlap("out", Path("rows.jsonl"), {"source": "data/rte/train.jsonl"})


def test_files_named_in_toml_files_are_inputs(here: Path) -> None:
    Path("jobs").mkdir()
    Path("jobs/rows.csv").write_text("")
    Path("jobs/task.toml").write_text('[files]\ntrain = "rows.csv"\ntest = "missing.csv"\n')
    Path("jobs/job.toml").write_text('tasks = ["task.toml"]\n[steps.a]\nout = "jobs/job.toml"\n')
    found = {path.resolve().relative_to(here).as_posix() for path in files_of_toml(Path("jobs/job.toml"))}
    assert found == {"jobs/task.toml", "jobs/rows.csv", "jobs/job.toml"}
    assert list(files_of_toml(Path("jobs/rows.csv"))) == []


def test_paths_are_found_in_arguments() -> None:
    assert list(named_paths("teacher", "a=run,b=link")) == [Path("run"), Path("link")]
    assert list(named_paths("tasks", "rte,sst2")) == []
    assert list(named_paths("model", "a\0b")) == []
