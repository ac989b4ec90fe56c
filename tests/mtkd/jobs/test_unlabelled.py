"""Rows without labels: the student learns from them as from any other row of its teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from mtkd.jobs.common import Request
from mtkd.jobs.distill import distill
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from mtkd.training.run_directory import RunDirectory
from tasks.errors import UserError
from tasks.glue import TASKS
from tasks.sources import PocketSource
from tasks.tables import TableSource
from tasks.unlabelled import UnlabelledRequest

SMALL = {
    "student.bilstm.embedding_size": 8,
    "student.bilstm.projection_size": 8,
    "student.bilstm.hidden_size": 8,
    "student.bilstm.output_size": 8,
    "student.head_hidden": 8,
    "student.max_length": 24,
    "train.epochs": 2,
    "train.batch_size": 16,
}
SST2 = TASKS["sst2"]


def settings_of(**changes: object) -> Any:
    return load_settings("mkd-lstm", "distill", {**SMALL, **changes})


def pocket(split: str = "train") -> pa.Table:
    return PocketSource().table(SST2, split)


def run(
    out: Path, teacher: Path | None, data: Any, given: Any = None, limit: int | None = None, **changes: object
) -> RunDirectory:
    unlabelled = UnlabelledRequest({} if given is None else {"sst2": given}, limit)
    request = Request(data, "sst2", out, eval_limit=16)
    return distill(
        request,
        settings_of(**changes),
        teacher and str(teacher),
        unlabelled=unlabelled,
        warn=lambda text: None,
    )


def weights(made: RunDirectory) -> dict[str, torch.Tensor]:
    return made.model().state_dict()


def assert_same(one: RunDirectory, other: RunDirectory) -> None:
    assert weights(one).keys() == weights(other).keys()
    assert all(torch.equal(weights(one)[name], weights(other)[name]) for name in weights(one))


def test_half_of_the_rows_without_labels_changes_nothing_if_only_logits_count(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    """The same 48 rows, in the same order, with the labels of the last 24 removed."""
    rows, validation = pocket().slice(0, 48), pocket("validation")
    whole = TableSource({"sst2": {"train": rows, "validation": validation}})
    half = {"train": rows.slice(0, 24), "validation": validation}
    bare = rows.slice(24).select(["sentence"])
    named = TableSource({"sst2": half | {"unlabelled": bare}})
    live = {"teacher.cache_logits": False}
    expected = run(tmp_path / "whole", tiny_teacher, whole, **live)
    found = run(tmp_path / "half", tiny_teacher, named, **live)
    assert_same(expected, found)
    assert found.record["rows"]["sst2"]["unlabelled"] == 24
    with_null_labels = bare.append_column("label", pa.nulls(24, pa.int64())).to_pandas()
    source = TableSource({"sst2": half})
    cached = run(tmp_path / "cached", tiny_teacher, source, with_null_labels)
    for name, value in weights(expected).items():  # the teacher reads other batches: equal but for rounding
        torch.testing.assert_close(weights(cached)[name], value, atol=1e-4, rtol=1e-3)
    fewer = run(tmp_path / "fewer", tiny_teacher, named, limit=0)
    assert fewer.record["rows"]["sst2"] == {"train": 24, "unlabelled": 0, "validation": 16}


def test_rows_without_labels_need_a_loss_that_can_use_them(tiny_teacher: Path, tmp_path: Path) -> None:
    source = TableSource({"sst2": {split: pocket(split).slice(0, 16) for split in ("train", "validation")}})
    rows = ["a fine film", "a dull film"]
    with pytest.raises(UserError, match="every loss of this run needs labels"):
        run(tmp_path / "run", None, source, rows, supervision="labels")
    with pytest.raises(UserError, match="unknown task of `unlabelled` 'rte'"):
        request = Request(source, "sst2", tmp_path / "run")
        distill(request, settings_of(), str(tiny_teacher), unlabelled=UnlabelledRequest({"rte": rows}))
    with pytest.raises(UserError, match="holds 1, but rows without labels"):
        run(tmp_path / "run", tiny_teacher, source, {"sentence": rows, "label": [None, 1]})
    with pytest.raises(UserError, match="no column 'sentence'"):
        run(tmp_path / "run", tiny_teacher, source, {"sentences": rows})
    assert not (tmp_path / "run").exists()
    splits = {split: pocket(split).slice(0, 16) for split in ("train", "validation")}
    source = TableSource({"sst2": splits | {"unlabelled": {"sentence": rows}}})
    made = run(tmp_path / "labels", None, source, supervision="labels")
    assert made.record["warnings"] == [
        "rows without labels are not used, since every loss of this run needs labels"
    ]


def test_a_killed_run_does_not_label_the_same_rows_again(
    processes: Any, tiny_teacher: Path, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_teacher, teacher, ignore=shutil.ignore_patterns("logits-*"))
    file = tmp_path / "more.csv"
    texts = pocket().column("sentence").to_pylist()
    file.write_text("sentence\n" + "".join(f'"{texts[n % 200]} {n}"\n' for n in range(9000)))
    sets = {name: value for name, value in SMALL.items() if name != "train.epochs"} | {"train.steps": 20}
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "sst2", "--teacher", teacher]
    words += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    words += ["--limit", 32, "--eval-limit", 16, "--unlabelled", f"sst2={file}", "--device", "cpu", "--quiet"]
    words += ["--set", "train.checkpoint_steps=5"]
    out = tmp_path / "run"
    killed = processes.run(*words, "--out", out, kill_at="*/sst2-unlabelled-*/000000000.safetensors")
    assert killed.code != 0
    made = {path: path.stat().st_mtime_ns for path in teacher.glob("logits-*/*/*.safetensors")}
    assert len(made) == 2, "that of the 32 rows, and the first of the two of the 9,000"
    killed = processes.run(*words, "--out", out, kill_at="*/checkpoints/step-000000010")
    assert killed.code != 0
    resumed = processes.run(*words, "--out", out)
    assert resumed.code == 0, resumed.err
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert len(list(teacher.glob("logits-*/*/*.safetensors"))) == 3
    whole = processes.run(*words, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    one, other = (MultiTaskModel.load(place).state_dict() for place in (out, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    record = json.loads((out / "run.json").read_text())
    assert record["rows"]["sst2"]["unlabelled"] == 9000
    assert record["identity"]["unlabelled"] == {"sst2": str(file)}


def test_a_store_holds_them_for_runs_with_fewer(mtkd: Any, tiny_teacher: Path, tmp_path: Path) -> None:
    words = ["--data", "pocket", "--tasks", "sst2", "--limit", 16, "--unlabelled", "sst2=unlabelled"]
    words.append("--quiet")
    store = tmp_path / "store"
    made = mtkd(
        *("store", "build", "--recipe", "mkd-lstm", *words, "--unlabelled-limit", 40),
        *("--teacher", tiny_teacher, "--set", "student.max_length=24", "--out", store),
    )
    assert made.code == 0, made.err
    sets = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    run = ["distill", "mkd-lstm", *words, "--eval-limit", 16, *sets]
    stored = mtkd(*run, "--unlabelled-limit", 20, "--store", store, "--out", tmp_path / "stored")
    assert stored.code == 0, stored.err
    live = mtkd(*run, "--unlabelled-limit", 20, "--teacher", tiny_teacher, "--out", tmp_path / "live")
    assert live.code == 0, live.err
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("stored", "live")]
    assert [record["rows"]["sst2"]["unlabelled"] for record in records] == [20, 20]
    one, other = (MultiTaskModel.load(tmp_path / name).state_dict() for name in ("stored", "live"))
    for name, value in one.items():  # logits in the store are float16
        torch.testing.assert_close(other[name], value, atol=2e-3, rtol=2e-2)
    more = mtkd(*run, "--unlabelled-limit", 60, "--store", store, "--out", tmp_path / "more")
    assert more.code == 2 and "was built from other sst2 rows" in more.err
