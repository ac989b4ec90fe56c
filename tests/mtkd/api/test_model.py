"""`mtkd.Model`: its files, its module in memory, and models as arguments of functions."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_students import SMALL_LSTM

import mtkd
from mtkd.models.capture import ATTENTION

FILM = ["a fine film ."]
FEW: dict[str, Any] = {"data": "pocket", "limit": 8, "eval_limit": 8, "steps": 2}


def distil(teacher: Any, out: Path, **more: Any) -> mtkd.Model:
    given = FEW | {"tasks": "sst2", "settings": SMALL_LSTM} | more
    return mtkd.distill("mkd-lstm", teacher=teacher, out=out, **given)


def finetune(model: Any, out: Path, **more: Any) -> mtkd.Model:
    return mtkd.finetune(model, task="sst2", out=out, lr=1e-3, **FEW, **more)


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def change(model: mtkd.Model) -> None:
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(0.5)


def weights_of(model: mtkd.Model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def teacher(tiny_teacher: Path, tmp_path: Path) -> mtkd.Model:
    """A model with a directory of its own, which tests may change."""
    return mtkd.load(shutil.copytree(tiny_teacher, tmp_path / "teacher"))


@pytest.fixture(scope="module")
def student(tiny_teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `distill` on sst2, which tests must not change."""
    out = tmp_path_factory.mktemp("student") / "run"
    distil(tiny_teacher, out)
    return out


@pytest.mark.parametrize(
    "call",
    [
        lambda model, path: finetune(model, path, overwrite=True),
        lambda model, path: distil(model, path, overwrite=True),
        lambda model, path: distil(model, path / "student"),
        lambda model, path: distil({"sst2": [model]}, path.parent, overwrite=True),
        lambda model, path: distil(path.parent / "b", path, student=model, overwrite=True),
        lambda model, path: mtkd.export(model, out=path, overwrite=True),
        lambda model, path: model.evaluate("pocket", "sst2", limit=8, predictions=path / "model"),
        lambda model, path: mtkd.evaluate(model, "pocket", "sst2", limit=8, predictions=path / "model"),
        lambda model, path: mtkd.evaluate(
            shutil.copytree(path, path.parent / "b"), "pocket", "sst2", limit=8, against=model,
            predictions=path / "model",
        ),
        lambda model, path: mtkd.build_store("mkd-lstm", data="pocket", tasks="rte", teacher=model, out=path),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_loaded", [False, True])
def test_outputs_may_not_overwrite_a_model_that_is_passed_as_an_object(
    teacher: mtkd.Model, call: Callable[..., Any], is_loaded: bool
) -> None:
    if is_loaded:
        teacher.predict("sst2", FILM)
    assert teacher.path is not None
    before = files_of(teacher.path)
    with pytest.raises(mtkd.UserError, match=r"`(out|predictions)=.* (is|contains|lies inside|belongs to) "):
        call(teacher, teacher.path)
    assert files_of(teacher.path) == before


def test_a_model_is_saved_only_where_it_replaces_nothing_else(
    teacher: mtkd.Model, student: Path, tmp_path: Path
) -> None:
    assert teacher.path is not None
    before = files_of(teacher.path)
    for directory, problem in (
        (teacher.path, "holds a run"),
        (teacher.path / "model", "is a part of the run"),
        (teacher.path / "run.json", "is a file"),
    ):
        with pytest.raises(mtkd.UserError, match=problem):
            mtkd.load(student).save(directory, overwrite=True)
    assert files_of(teacher.path) == before
    saved = teacher.save(tmp_path / "saved")
    times = {file: file.stat().st_mtime_ns for file in saved.iterdir()}
    assert teacher.save(saved) == mtkd.load(saved).save(saved) == saved
    assert {file: file.stat().st_mtime_ns for file in saved.iterdir()} == times
    change(teacher)
    for other in (teacher, mtkd.load(student)):
        with pytest.raises(mtkd.UserError, match=r"holds another model\n  hint: .*`overwrite=True`"):
            other.save(saved)
        other.save(saved, overwrite=True)
        assert mtkd.load(saved).predict("sst2", FILM) == other.predict("sst2", FILM)
    own = mtkd.load(saved)
    change(own)
    own.save(saved, overwrite=True)
    assert own.record == {} and mtkd.load(saved).predict("sst2", FILM) == own.predict("sst2", FILM)


def test_a_copy_with_changed_weights_has_no_scores_of_other_weights(
    teacher: mtkd.Model, tmp_path: Path
) -> None:
    recorded = {"sst2", *teacher.tasks}
    _ = teacher.module
    assert set(mtkd.load(teacher.save(tmp_path / "same")).scores) == recorded
    change(teacher)
    changed = teacher.save(tmp_path / "changed")
    assert teacher.save(changed) == changed, "it is the same copy"
    assert mtkd.load(changed).scores == {} and set(teacher.scores) == recorded
    assert "accuracy" not in (changed / "README.md").read_text()
    own = mtkd.load(tmp_path / "same")
    change(own)
    own.save(tmp_path / "same", overwrite=True)
    assert own.scores == mtkd.load(tmp_path / "same").scores == {}
    given = mtkd.Model(mtkd.load(teacher.path or "").module)
    change(given)
    assert mtkd.load(given.save(tmp_path / "given")).scores == {}


def test_a_model_whose_files_were_replaced_is_an_error_unless_it_is_loaded(
    teacher: mtkd.Model, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    loaded = distil(teacher, out, seed=1)
    expected, replaced = loaded.predict("sst2", FILM), mtkd.load(out)
    last = distil(teacher, out, seed=2, overwrite=True)
    for use in (
        lambda: replaced.predict("sst2", FILM),
        lambda: replaced.record,
        lambda: finetune(replaced, tmp_path / "tuned"),
        lambda: last.evaluate("pocket", "sst2", limit=8, against=replaced),
    ):
        with pytest.raises(
            mtkd.UserError, match=r"run are no longer those of this model: they were replaced"
        ):
            use()
    assert loaded.predict("sst2", FILM) == expected != last.predict("sst2", FILM)
    assert mtkd.load(loaded.save(tmp_path / "saved")).predict("sst2", FILM) == expected
    shutil.rmtree(out)
    with pytest.raises(mtkd.UserError, match=r"no longer those of this model: .* or removed"):
        _ = replaced.module
    shutil.copytree(tmp_path / "saved", out)
    assert replaced.predict("sst2", FILM) == expected


def test_a_relative_path_still_leads_to_the_model_in_another_directory(
    teacher: mtkd.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = mtkd.load("teacher")
    assert model.path == Path("teacher")  # as records of runs name it
    monkeypatch.chdir("/")
    assert model.path == teacher.path and model.record == teacher.record
    assert model.predict("sst2", FILM) == teacher.predict("sst2", FILM)


def test_a_changed_module_is_used_by_all_functions(teacher: mtkd.Model, tmp_path: Path) -> None:
    _ = teacher.module
    unchanged = distil(teacher, tmp_path / "unchanged")
    assert unchanged.record["identity"]["teacher"] == str(teacher.path)
    change(teacher)
    changed = distil(teacher, tmp_path / "changed")
    assert not same_weights(weights_of(changed), weights_of(unchanged))
    saved = distil(teacher.save(tmp_path / "saved"), tmp_path / "saved-student")
    assert same_weights(weights_of(changed), weights_of(saved))
    tuned = finetune(teacher, tmp_path / "tuned")
    assert tuned.record["identity"]["model"] == "MultiTaskModel"  # not the directory, whose weights differ
    with pytest.raises(
        mtkd.UserError, match=r"`teacher` is a model whose weights .* in memory\n.*\n.*save it"
    ):
        mtkd.build_store("mkd-lstm", data="pocket", tasks="sst2", teacher=teacher, out=tmp_path / "store")


def test_a_copy_of_a_student_is_trained_so_that_the_same_call_returns_the_finished_run(
    teacher: mtkd.Model, student: Path, tmp_path: Path
) -> None:
    start = mtkd.load(student)
    before = start.predict("sst2", FILM)
    for name, given in (("model", start), ("encoder", start.module.encoder)):
        made = distil(teacher, tmp_path / name, student=given, tasks="rte", settings={})
        assert list(made.tasks) == ["rte"] and made.module.encoder is not start.module.encoder
        assert start.predict("sst2", FILM) == before
        again = distil(teacher, tmp_path / name, student=given, tasks="rte", settings={})
        assert again.record == made.record and same_weights(weights_of(again), weights_of(made))


def test_a_model_that_has_been_used_is_pickled_for_other_processes(
    teacher: mtkd.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    change(teacher)
    expected, pickled = teacher.predict("sst2", FILM), pickle.dumps(teacher)
    for interface in (AttentionInterface, AttentionMaskInterface):  # as in a new process
        monkeypatch.delitem(interface._global_mapping, ATTENTION)
    assert pickle.loads(pickled).predict("sst2", FILM) == expected


def test_models_are_accepted_where_their_directories_are(
    teacher: mtkd.Model, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mtkd.verify(teacher).files == mtkd.verify(str(teacher.path)).files
    report = mtkd.report_html([mtkd.load(student)], tmp_path / "report.html")
    assert str(student) in report.read_text()
    received: dict[str, Any] = {}
    monkeypatch.setattr(
        "mtkd.jobs.suggest.suggest", lambda teacher, *rest, **more: received.update(suggest=teacher)
    )
    monkeypatch.setattr(
        "mtkd.jobs.grid.compare.run_grid", lambda grid, inputs, *rest: received.update(compare=inputs.teacher)
    )
    mtkd.suggest_students(teacher)
    mtkd.compare("mlkd-table-7", data="pocket", teacher=teacher, out=tmp_path / "table")
    assert received == {"suggest": str(teacher.path), "compare": str(teacher.path)}
    in_memory = mtkd.Model(teacher.module)
    for argument, call in (
        ("place", lambda: mtkd.verify(in_memory)),
        ("teacher", lambda: mtkd.suggest_students(in_memory)),
        ("teacher", lambda: mtkd.augment.filter_questions(tmp_path, in_memory, tmp_path / "out")),
        ("teacher", lambda: mtkd.plan_store("mkd-lstm", data="pocket", tasks="sst2", teacher=in_memory)),
    ):
        with pytest.raises(
            mtkd.UserError, match=rf"`{argument}` is a model whose .*\n.*\n.*{argument}=model.save"
        ):
            call()


def test_a_model_to_compare_with_has_the_name_of_its_directory(
    teacher: mtkd.Model, student: Path, tiny_encoder: Path
) -> None:
    other = mtkd.load(student)
    other.predict("sst2", FILM)
    found = teacher.evaluate("pocket", "sst2", limit=8, against=other, baselines=True, encoder=tiny_encoder)
    assert str(student) in found.differences
    with pytest.raises(mtkd.UserError, match=r"`against='xxx.*\n  expected: a path whose parts"):
        teacher.evaluate("pocket", "sst2", against="x" * 5000)
