"""The directory of a run: what is rejected, resumed, overwritten and kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mtkd.run_record import TrialResult, read_run_record
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.common.records import read_record, write_record

SETTINGS = {"settings": {"train": {"lr": 1e-4, "seed": 0}}, "limit": None}
OTHER = {"settings": {"train": {"lr": 1e-4, "seed": 1}}, "limit": None}


RESULTS: dict[str, Any] = {
    "parameters": {"total": 3, "embeddings": 2, "without_embeddings": 1},
    "training": {"steps": 1},
}


def unfinished(path: Path, identity: dict[str, Any] = SETTINGS) -> Path:
    with RunDirectory(path, identity).open(data="digest"):
        for name in ("model/model.json", "checkpoints/step-1/position.json", "lr-0.1/result.json", "own.csv"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("{}")
    return path


def test_inspecting_writes_nothing(tmp_path: Path) -> None:
    assert not RunDirectory(tmp_path / "run", SETTINGS).resuming
    with pytest.raises(UserError, match="there is no run"):
        RunDirectory(tmp_path / "run", SETTINGS, resume=True)
    assert not list(tmp_path.iterdir())


def test_the_same_run_is_resumed_with_the_same_inputs(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "run")
    run = RunDirectory(path, SETTINGS, resume=True)
    assert run.resuming and not run.finished
    run.check_inputs(data="digest")
    with pytest.raises(UserError, match="the data has changed"):
        run.check_inputs(data="another")
    with run.open(data="digest"):
        assert (path / "checkpoints/step-1").is_dir()
        with pytest.raises(UserError, match="another process is writing"), run.open():
            pass
        run.finish(scores={}, **RESULTS)
    assert RunDirectory(path, SETTINGS).finished and not (path / "checkpoints").exists()


def test_another_run_is_rejected_or_overwritten_but_not_the_files_beside_it(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"holds another run: it differs in settings\.train\.seed \(0, now 1\)"
    ):
        RunDirectory(path, OTHER)
    for name in ("own.csv", "model/thesis.tex"):
        (path / name).write_text("work of years")
        with pytest.raises(UserError, match=f"do not belong to a run: {name}\n"):
            RunDirectory(path, OTHER, overwrite=True)
        assert RunDirectory(path, SETTINGS).resuming, "callbacks may write files, too"
        (path / name).unlink()
    run = RunDirectory(path, OTHER, overwrite=True)
    assert not run.resuming and (path / "model/model.json").is_file()
    with run.open():
        assert sorted(file.name for file in path.iterdir()) == [".mtkd.json", ".mtkd.lock", "run.json"]
        assert json.loads((path / "run.json").read_text())["identity"] == OTHER


def test_the_error_for_another_run_shows_no_digests_and_no_long_values(tmp_path: Path) -> None:
    student = {"class": "GRU", "code": "0123456789abcdef", "weights": "00" * 8}
    identity = SETTINGS | {"student": student, "notes": "a" * 50}
    path = unfinished(tmp_path / "run", identity)
    changed = student | {"code": "fedcba9876543210"}
    for other, difference in (
        (identity | {"student": changed, "notes": "b" * 50}, "notes, student.code"),
        (identity | {"student": changed | {"class": "LSTM"}}, "student.class ('GRU', now 'LSTM')"),
        (SETTINGS | {"notes": "a" * 50}, "student (GRU, now that of the recipe)"),
    ):
        with pytest.raises(UserError) as error:
            RunDirectory(path, other)
        assert error.value.problem.endswith(f"holds another run: it differs in {difference}")


def test_predictions_that_a_finished_run_does_not_list_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = RunDirectory(path, SETTINGS)
    scores = {"task": "rte", "split": "validation", "rows": 1, "metrics": {}, "primary": 0.0, "majority": 0.0}
    with run.open():
        run.finish(scores={"rte/validation": scores | {"loss": 0.0}}, **RESULTS)
    for name in ("validation", "mine"):
        (path / "predictions/rte").mkdir(parents=True, exist_ok=True)
        (path / f"predictions/rte/{name}.parquet").touch()
    with pytest.raises(UserError, match=r"do not belong to a run: predictions/rte/mine\.parquet\n"):
        RunDirectory(path, OTHER, overwrite=True)
    (path / "predictions/rte/mine.parquet").unlink()
    with RunDirectory(path, OTHER, overwrite=True).open():
        assert not (path / "predictions").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "model/model.json", "run.json"])
def test_a_directory_without_a_run_is_rejected(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps({"identity": SETTINGS, "status": "finished"}))
    with pytest.raises(UserError, match=f"do not belong to a run: {name}"):
        RunDirectory(tmp_path, SETTINGS, overwrite=overwrite)
    with pytest.raises(UserError, match="is a file"):
        RunDirectory(tmp_path / name, SETTINGS, overwrite=overwrite)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"steps": "3"}, "training.steps = '3' is not valid"),
        ({"history": [{"loss": 1.0}]}, "lacks the key 'training.history.0.epoch'"),
        ({"seconds": None}, "training.seconds = None is not valid"),
    ],
)
def test_a_result_with_wrong_values_is_rejected(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    training = {"steps": 3, "epochs": 1, "best": None, "seconds": 1.0, "history": [{"epoch": 1, "loss": 0.5}]}
    result = {"value": 0.5, "scores": {}, "training": training}
    write_record(tmp_path / "result.json", result)
    assert read_record(tmp_path / "result.json", TrialResult) == result
    write_record(tmp_path / "result.json", result | {"training": training | change})
    with pytest.raises(UserError, match=re.escape(problem)):
        read_record(tmp_path / "result.json", TrialResult)


def test_a_run_whose_record_has_wrong_values_is_rejected(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "run")
    record = json.loads((path / "run.json").read_text())
    (path / ".mtkd.json").unlink()
    write_record(path / "run.json", record | {"identity": {"settings": 3}})
    with pytest.raises(UserError, match=r"run\.json: identity\.settings = 3 is not valid"):
        RunDirectory(path, SETTINGS)


@pytest.mark.parametrize("missing", ["parameters", "machine", "training", "scores"])
def test_the_record_of_a_finished_run_is_complete(tmp_path: Path, missing: str) -> None:
    run = RunDirectory(tmp_path / "run", SETTINGS)
    with run.open():
        run.finish(scores={}, **RESULTS)
    file = tmp_path / "run/run.json"
    record = json.loads(file.read_text())
    del record["check"]
    file.write_text(json.dumps(record))
    assert read_run_record(file)["status"] == "finished"
    *parents, key = missing.split(".")
    part = record
    for parent in parents:
        part = part[parent]
    del part[key]
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match=key):
        read_run_record(file)
