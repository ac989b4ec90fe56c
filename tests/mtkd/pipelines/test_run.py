"""`mtkd run`: which steps run or are repeated and why, and errors before the first step."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import mtkd
import mtkd as library
from mtkd.cli.flags import as_options
from mtkd.models.multitask import MultiTaskModel
from mtkd.pipelines import pipeline_runner
from mtkd.pipelines.inputs import at_current_paths
from mtkd.pipelines.pipeline_file import load_steps, output_directory
from mtkd.pipelines.step import Step
from mtkd.teachers.teacher_names import parse_labels

FILE = """
out = "out"
data = "pocket"
tasks = "rte"
limit = 16
eval-limit = 8
seed = 3

[steps.student]                      # before its teacher in the file
command = "distill"
recipe = "mkd-lstm"
teacher = "@teacher"
steps = 2
set.student.max_length = 24
set.student.head_hidden_size = 8
set.student.bilstm = { embeddings = "teacher", hidden_size = 8, projection_size = 8, output_size = 8 }

[steps.teacher]
command = "refine"
encoder = "ENCODER"
epochs = 1
set.max_length = 24

[steps.tuned]
command = "finetune"
title = "tuned on {task}"
model = "@teacher/model"
steps = "@student"
lr = 1e-3

[steps.scores]
command = "evaluate"
model = "@student"
against = "@tuned/rte"
"""


@pytest.fixture
def file(tmp_path: Path, tiny_encoder: Path) -> Path:
    path = tmp_path / "job" / "pipeline.toml"
    path.parent.mkdir()
    path.write_text(FILE.replace("ENCODER", str(tiny_encoder)), encoding="utf-8")
    return path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of a pipeline, replaced by one that only writes the outputs that later steps need."""
    ran: list[list[str]] = []

    def execute(command: str, words: list[str]) -> None:
        ran.append(words)
        key = "--json" if command == "evaluate" else "--out"
        out = Path(words[words.index(key) + 1])
        out.parent.mkdir(parents=True, exist_ok=True)
        if command == "evaluate":
            out.write_text("{}")
        else:
            out.mkdir(exist_ok=True)
            (out / "run.json").write_text(json.dumps({"training": {"steps": 2, "seconds": 1}}))

    monkeypatch.setattr(pipeline_runner, "execute", execute)
    return ran


def names(results: list[pipeline_runner.StepResult]) -> list[str]:
    return [result.name for result in results if result.reason]


def overwriting_commands(commands: list[list[str]]) -> list[bool]:
    return ["--overwrite" in words for words in commands]


ALL = ["teacher", "student", "tuned/rte", "scores"]


def test_all_steps_run_in_order_and_a_second_run_does_nothing(file: Path, mtkd: Callable) -> None:
    estimates = {one.name: one for one in library.run_pipeline(file, estimate=True)}
    assert not (file.parent / "out").exists()
    done = mtkd("run", file, "--json")
    assert done.code == 0, done.err
    out = file.parent / "out"
    records = {name: json.loads((out / name / "run.json").read_text()) for name in ALL[:3]}
    assert {record["status"] for record in records.values()} == {"finished"}
    assert records["student"]["identity"]["settings"]["train"]["seed"] == 3
    assert records["tuned/rte"]["command_line"].startswith("mtkd finetune ")
    assert records["tuned/rte"]["training"]["steps"] == records["student"]["training"]["steps"] == 2
    assert records["student"]["rows"]["rte"]["train"] == 16
    scores = json.loads((out / "scores.json").read_text())
    assert scores["scores"]["rte/validation"]["rows"] == 8 and scores["differences"]
    titles = [line.split(" (")[0] for line in done.err.splitlines() if line.startswith("== ")]
    assert titles == ["== 1/4 teacher", "== 2/4 student", "== 3/4 tuned on rte", "== 4/4 scores"]
    results = json.loads(done.out)
    assert [result["name"] for result in results] == ALL
    assert all(result["seconds"] > 0 and result["bytes"] > 0 for result in results)
    for result in results:
        estimate = estimates[result["name"]]
        assert estimate.estimated and estimate.seconds
        assert estimate.bytes == pytest.approx(result["bytes"], rel=0.3), "tiny models, so records count"
    assert not any(one.estimated for one in library.run_pipeline(file, estimate=True)), "all have run"

    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = mtkd("run", file)
    assert again.code == 0 and "$ mtkd" not in again.err and again.err.count("finished before") == 4
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_an_estimate_extrapolates_from_a_few_steps_and_rows(
    file: Path, mtkd: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = MultiTaskModel.forward

    def slow(self: MultiTaskModel, *given: Any) -> Any:
        time.sleep(0.02)
        return forward(self, *given)

    monkeypatch.setattr(MultiTaskModel, "forward", slow)
    settings = {"steps.teacher.epochs": 300, "limit": 32, "steps.student.steps": 200, "steps.tuned.steps": 5}
    teacher, student, *_ = library.run_pipeline(file, settings=settings, estimate=True)
    # 32 rows are a batch; after each epoch, a batch of validation rows
    assert teacher.seconds is not None and 300 * (0.02 + 0.02) < teacher.seconds < 100 * 300 * 0.04
    assert student.seconds is not None and 200 * 0.02 < student.seconds < 100 * 400 * 0.02
    shown = mtkd("run", file, "--set", "steps.tuned.steps=2", "--estimate").out
    assert "about" in shown and "would run" in shown


def test_a_change_repeats_its_step_and_those_that_depend_on_it(
    file: Path, commands: list[list[str]], mtkd: Callable
) -> None:

    assert names(library.run_pipeline(file)) == ALL and not any(overwriting_commands(commands))
    commands.clear()
    changed = {"steps.student.lr": 0.01}
    planned = library.run_pipeline(file, settings=changed, dry_run=True)
    reasons = {result.name: result.reason for result in planned}
    assert reasons == {
        "teacher": None,
        "student": "changed: now --lr 0.01",
        "tuned/rte": "'student' runs again",
        "scores": "'student' runs again; 'tuned/rte' runs again",
    }
    assert "--steps N " in planned[2].command and not commands
    assert planned[2].note and planned[2].note.startswith("N is the number of steps that 'student' takes")
    assert planned[1].note is None and "@" not in "".join(result.command for result in planned)
    shown = mtkd("run", file, "--set", "steps.student.lr=0.01", "--dry-run").out
    assert "the steps that would run take about 0 s" in shown
    assert f"({planned[2].note})\n" in shown
    assert "2/4 student: changed: now --lr 0.01\n" in shown and "1/4 teacher: finished\n" in shown
    assert names(library.run_pipeline(file, settings=changed)) == ALL[1:]
    assert ["--overwrite" in words for words in commands] == [True, True, False], (
        "evaluate has no such option"
    )
    assert names(library.run_pipeline(file, settings=changed)) == []
    back = library.run_pipeline(file, settings={"steps.student.lr": 0.02}, dry_run=True)[1].reason
    assert back == "changed: now --lr 0.02; the last run had --lr 0.01"
    record = file.parent / "out" / "pipeline.json"
    record.write_text(record.read_text().replace("bilstm", "bilsum", 1))
    assert library.verify(file.parent / "out").damaged[str(record)]
    with pytest.raises(library.UserError, match=r"pipeline\.json has changed since it was written"):
        library.run_pipeline(file, settings=changed)
    assert names(library.run_pipeline(file, overwrite=True, settings=changed)) == ALL
    shutil.rmtree(file.parent / "out" / "student")
    missing = library.run_pipeline(file, settings=changed, dry_run=True)
    assert missing[1].reason == "out/student is missing" and names(missing) == ALL[1:]


def test_a_table_changes_only_the_settings_that_it_names(file: Path, mtkd: Callable) -> None:
    table = "steps.student.set.student={max_length=16, bilstm={hidden_size=4}}"
    shown = mtkd("run", file, "--set", table, "--dry-run").out
    for setting in ("max_length=16", "head_hidden_size=8", "bilstm.hidden_size=4", "bilstm.output_size=8"):
        assert f" --set student.{setting} " in shown
    terms = {"steps.student.set.terms.logits": {"weight": 0.5}, "steps": {"scores": {"limit": 4}}}
    student, scores = library.run_pipeline(file, settings=terms, dry_run=True)[1::2]
    assert "--set terms.logits.weight=0.5" in student.command and "--limit 4" in scores.command
    assert "--against" in scores.command
    table = {"steps.student.teacher": {"rte": "@teacher"}}  # in place of a string
    assert "--teacher rte=out/teacher " in library.run_pipeline(file, settings=table, dry_run=True)[1].command
    for empty in ({"steps": {}}, {"steps.student.set": {}}):
        planned = library.run_pipeline(file, settings=empty, dry_run=True)
        assert "student.max_length=24" in planned[1].command, "an empty table changes nothing"
    text = file.read_text().replace('teacher = "@teacher"', 'teacher = { sst2 = "elsewhere" }')
    file.write_text(text)
    assert "sst2=" not in library.run_pipeline(file, settings=table, dry_run=True)[1].command


def test_options_can_name_files_inside_the_output_of_another_step(file: Path) -> None:
    export = {"command": "export", "model": "@teacher"}
    more = {"steps.ready": {**export, "format": "transformers"}, "steps.student.teacher": "@ready"}
    assert "--teacher out/ready " in library.run_pipeline(file, settings=more, dry_run=True)[2].command
    for within in ("teacher/model", "student/stages/one/model", "tuned/rte/model"):
        step = {"command": "evaluate", "model": f"@{within}", "data": "pocket"}
        planned = library.run_pipeline(file, settings={"steps.more": step}, dry_run=True)
        assert f"--model out/{within} " in planned[-1].command
    with pytest.raises(mtkd.UserError, match=r"teacher = '@ready' is written by `mtkd export`"):
        library.run_pipeline(file, settings=more | {"steps.ready": export}, dry_run=True)


def test_a_step_that_copies_the_number_of_steps_is_evaluated_as_often(
    file: Path, commands: list[list[str]]
) -> None:
    library.run_pipeline(file)
    assert not any("steps_per_epoch" in word for words in commands for word in words)
    history = [{"epoch": epoch, "scores": {}} for epoch in (1, 2, 3)]
    training = {"steps": 10, "seconds": 1, "history": history}
    (file.parent / "out/student/run.json").write_text(json.dumps({"training": training}))
    tuned = library.run_pipeline(file, dry_run=True)[2]
    assert tuned.reason is not None and "--set train.steps_per_epoch=4" in tuned.reason
    assert "--steps 10" in tuned.command and tuned.command.endswith("--set train.steps_per_epoch=4")
    library.run_pipeline(file)
    assert commands[-2][-2:] == ["train.steps_per_epoch=4", "--overwrite"]
    again = library.run_pipeline(file, settings={"steps.student.lr": 0.1}, dry_run=True)[2]
    assert again.reason == "'student' runs again"


def test_a_student_that_differs_from_its_control_is_a_warning(file: Path) -> None:
    student = file.read_text().partition("[steps.student]")[2].partition("[steps.teacher]")[0]
    control = student.replace("steps = 2", 'steps = "@student"')
    file.write_text(f"{file.read_text()}[steps.control]{control}")
    sizes = "steps.control.set.student.bilstm"
    library.run_pipeline(file, settings={f"{sizes}.embeddings": "random"}, dry_run=True)  # no warning
    with pytest.warns(UserWarning, match=r"differ in student.bilstm.hidden_size \(8, 9\)\. If"):
        library.run_pipeline(file, settings={f"{sizes}.hidden_size": 9}, dry_run=True)
    other = re.sub("set.student.(head|bilstm).*", "", control).replace("mkd-lstm", "layerwise-3")
    file.write_text(file.read_text().replace(control, other))
    with pytest.warns(UserWarning, match=r"student.kind \('bilstm-biattention', 'transformer'\)\. If"):
        library.run_pipeline(file, dry_run=True)


def test_labels_with_commas_are_not_split() -> None:
    options = {"recipe": "static", "teacher-labels": {"x": ["spam, or junk", "ham"], "y": ["a", "b"]}}
    words = Step.of("s", "s", "distill", options, "out").argv()
    given = [words[n + 1] for n, word in enumerate(words) if word == "--teacher-labels"]
    assert parse_labels(given) == options["teacher-labels"] and given[1] == "y=a,b"


def test_a_changed_file_is_detected(
    file: Path, commands: list[list[str]], write_task: Callable, tmp_path: Path
) -> None:
    rows = [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(4)]
    task = write_task(file.parent, "classify", ["a", "b"], train=rows, validation=rows)
    data = file.parent / "data" / "topics" / "test.csv"
    data.parent.mkdir(parents=True)
    data.write_text("text\nmore\n")
    settings = {"tasks": task.name, "data": "data", "steps.scores.against": "@tuned/topics"}

    def reason(number: int) -> str | None:
        mtkd.run_pipeline(file, settings=settings)
        return mtkd.run_pipeline(file, settings=settings, dry_run=True)[number].reason

    assert reason(0) is None
    train = file.parent / "train.jsonl"
    os.utime(train, (1, 1))
    assert mtkd.run_pipeline(file, settings=settings, dry_run=True)[0].reason is None, (
        "the bytes are the same"
    )
    for changed in (train, data, task):
        changed.write_text(changed.read_text() + "\n")
        planned = mtkd.run_pipeline(file, settings=settings, dry_run=True)
        assert names(planned) == ["teacher", "student", "tuned/topics", "scores"]
        assert planned[0].reason is not None and planned[0].reason.endswith(f"{changed.name} has changed")
        assert reason(0) is None


def test_a_job_can_be_moved(
    file: Path, commands: list[list[str]], write_task: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(4)]
    (file.parent.parent / "more.jsonl").write_text('{"text": "a text"}\n')
    task = write_task(file.parent, "classify", ["a", "b"], train=rows, validation=rows, test="../more.jsonl")
    settings = {"tasks": task.name, "steps.scores.against": "@tuned/topics"}
    mtkd.run_pipeline(file, settings=settings)
    place = file.parent.parent / "elsewhere" / "renamed"
    file.parent.parent.joinpath("elsewhere").mkdir()
    file = file.parent.rename(place) / file.name
    shutil.move(place.parent.parent / "more.jsonl", place.parent)
    commands.clear()
    assert names(mtkd.run_pipeline(file, settings=settings)) == [] and not commands
    train = place / "train.jsonl"
    train.write_text(train.read_text() + "\n")
    (changed, *_) = mtkd.run_pipeline(file, settings=settings, dry_run=True)
    assert changed.reason == f"{train} has changed"

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline_runner, "execute", interrupted)
        mtkd.run_pipeline(file, settings=settings)
    file = place.rename(place.with_name("again")) / file.name
    (restarted, *_) = mtkd.run_pipeline(file, settings=settings)
    assert restarted.reason == "it was interrupted, and starts over, since the job was moved"
    assert overwriting_commands(commands)[0], "an interrupted run records the paths of its data"


def test_files_that_were_swapped_in_a_moved_job_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (str(tmp_path / folder / "rows.csv") for folder in "ab")
    recorded = {"/old/a/rows.csv": "1", "/old/b/rows.csv": "2"}
    assert at_current_paths(recorded, {first: "1", second: "2"}) == {first: "1", second: "2"}
    assert at_current_paths(recorded, {first: "2", second: "1"}) == {first: "1", second: "2"}
    assert at_current_paths(recorded, {"/other/rows.csv": "1"}) == recorded


@pytest.mark.parametrize("killed", range(4))
def test_a_pipeline_that_was_interrupted_resumes(
    killed: int, file: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = pipeline_runner.execute

    def interrupted(command: str, words: list[str]) -> None:
        if len(commands) == killed:
            raise KeyboardInterrupt
        execute(command, words)

    monkeypatch.setattr(pipeline_runner, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mtkd.run_pipeline(file)
    monkeypatch.setattr(pipeline_runner, "execute", execute)
    commands.clear()
    results = mtkd.run_pipeline(file)
    assert names(results) == ALL[killed:] and results[killed].reason == "it was interrupted, and resumes"
    assert not any(overwriting_commands(commands)), "the output of the step is kept"
    assert names(mtkd.run_pipeline(file)) == []


def test_a_step_that_was_interrupted_and_then_changed_starts_over(
    file: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = pipeline_runner.execute
    monkeypatch.setattr(pipeline_runner, "execute", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mtkd.run_pipeline(file)
    monkeypatch.setattr(pipeline_runner, "execute", execute)
    mtkd.run_pipeline(file, settings={"steps.teacher.epochs": 2})
    assert overwriting_commands(commands) == [True, False, False, False]


@pytest.mark.parametrize("written", [False, True])
def test_the_old_output_is_replaced_if_the_new_one_was_interrupted_before_it_began(
    written: bool, file: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mtkd.run_pipeline(file)
    execute, changed = pipeline_runner.execute, {"steps.tuned.lr": 0.01}

    def interrupted(command: str, words: list[str]) -> None:
        if written:
            execute(command, words)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_runner, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mtkd.run_pipeline(file, settings=changed)
    monkeypatch.setattr(pipeline_runner, "execute", execute)
    commands.clear()
    mtkd.run_pipeline(file, settings=changed)
    assert overwriting_commands(commands) == [not written, False]


def test_a_second_pipeline_does_not_replace_the_output_of_the_first(
    file: Path, commands: list[list[str]]
) -> None:
    mtkd.run_pipeline(file)
    second = file.with_name("second.toml")
    second.write_text(file.read_text())
    assert names(mtkd.run_pipeline(second)) == [], "the same steps"
    second.write_text(file.read_text().replace("seed = 3", "seed = 4"))
    refused = r"step 'teacher': out/teacher is the output of the pipeline pipeline.toml"
    for dry_run in (True, False):
        with pytest.raises(mtkd.UserError, match=refused) as caught:
            mtkd.run_pipeline(second, dry_run=dry_run)
    assert caught.value.hint == "set another out = '...' in second.toml, or replace it with `overwrite=True`"
    assert names(mtkd.run_pipeline(second, settings={"out": "other"})) == ALL
    assert names(mtkd.run_pipeline(second, overwrite=True)) == ALL
    with pytest.raises(mtkd.UserError, match=r"the output of the pipeline second.toml"):
        mtkd.run_pipeline(file)
    second.unlink()
    assert names(mtkd.run_pipeline(file)) == ALL, "a pipeline that was renamed is not another one"


def test_a_killed_pipeline_resumes_at_its_current_step(file: Path, processes: Any) -> None:
    killed = processes.run("run", file, kill_at="*/student/run.json")
    assert killed.code == -9
    done = processes.run("run", file)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("== ")]
    assert lines[0] == "== 1/4 teacher (finished before)"
    assert lines[1] == "== 2/4 student (it was interrupted, and resumes)"


def test_the_error_of_a_step_names_it_and_other_outputs_are_kept(file: Path, tmp_path: Path) -> None:
    (file.parent / "out" / "teacher").mkdir(parents=True)
    (file.parent / "out" / "teacher" / "notes.txt").write_text("mine")
    with pytest.raises(mtkd.UserError, match=r"step 'teacher': out/teacher holds files that do not belong"):
        mtkd.run_pipeline(file)
    assert (file.parent / "out" / "teacher" / "notes.txt").read_text() == "mine"


def test_a_command_that_fails_ends_the_pipeline(file: Path) -> None:
    data = file.parent / "rows" / "rte" / "train.jsonl"
    data.parent.mkdir(parents=True)
    row = {"sentence1": "a cat sleeps", "sentence2": "a cat rests", "label": 7}
    data.write_text(json.dumps(row) + "\n")
    only = {"steps": {"checked": {"command": "data check", "data": "rows"}}}
    with pytest.raises(mtkd.UserError, match=r"step 'checked': `mtkd data check` failed with exit code 2"):
        mtkd.run_pipeline(file, settings=only)
    for split in ("train", "validation"):
        data.with_name(f"{split}.jsonl").write_text(json.dumps(row | {"label": 1}) + "\n")
    assert names(mtkd.run_pipeline(file, settings=only)) == ["checked"]
    assert (file.parent / "out" / "checked.json").is_file()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"taks": "rte"}, ["unknown key of a pipeline 'taks'", "'tasks'"]),
        ({"steps.more": {"epochs": 1}}, ["step 'more'", "no command"]),
        ({"steps.more": {"command": "refne"}}, ["step 'more'", "'refne'", "'refine'"]),
        ({"steps.more": {"command": "augment"}}, ["'augment' is not one command", "augment mask"]),
        ({"steps.more": {"command": "augment msk"}}, ["'augment msk'", "'augment mask'"]),
        ({"steps.more": {"command": "run"}}, ["unknown command 'run'"]),
        ({"steps.more": {"command": "evaluate", "model": "@scores"}}, ["'more'", "`mtkd evaluate`"]),
        ({"steps.more": {"command": "report html", "runs": ["@scores"]}}, ["runs = '@scores' is"]),
        ({"steps.more": {"command": "verify", "place": "@scores/x"}}, ["the step 'scores' writes one file"]),
        ({"steps.student.teacher": "@teacher/modle"}, ["'@teacher/modle'", "did you mean 'model'"]),
        ({"steps.student.teacher": "@tuned/rt"}, ["unknown step 'tuned/rt' (did you mean 'tuned/rte'?)"]),
        ({"steps.student.data": "@teacher"}, ["data = '@teacher' is", "no output of a step"]),
        ({"steps.student.unlabelled": {"rte": "@teacher"}}, ["'@teacher' is", "of `mtkd predict`"]),
        ({"steps.student.corpus": "@teacher"}, ["corpus = '@teacher' is", "`mtkd augment mask`"]),
        ({"steps.student.unlabelled": {"sst2": "test"}}, ["step 'student'", "names the task 'sst2'"]),
        ({"steps.student.unlabelled": {"rte": ["test", 3]}}, ["step 'student'", "holds a number", '"3"']),
        ({f"steps.{'a' * 300}": {"command": "refine"}}, ["step 'aaa", "is not a valid name", "up to 100"]),
        ({"steps.a b": {"command": "refine"}}, ["'a b' is not a valid name"]),
        ({"steps.teacher.epoch": 1}, ["step 'teacher'", "'epoch' (did you mean 'epochs'?)"]),
        ({"steps.teacher.overwrite": True}, ["'overwrite'", "mtkd run"]),
        ({"steps.teacher.epochs": 0}, ["step 'teacher'", "--epochs 0 is not valid", "1 or more"]),
        ({"steps.teacher.epochs": "2"}, ["epochs = '2' is text", "a number", "without quotes: 2"]),
        ({"steps.teacher.epochs": [1, 2]}, ["step 'teacher'", "epochs = [1, 2]", "one value"]),
        ({"steps.teacher.set.train.leer": 1}, ["step 'teacher'", "'train.leer' (did you mean 'train.lr'?)"]),
        ({"steps.teacher.set": 3}, ["step 'teacher'", "set = 3", "a table"]),
        ({"steps.student.recipe": "mkd-lstn"}, ["step 'student'", "'mkd-lstn' (did you mean 'mkd-lstm'?)"]),
        ({"steps.student.recipe": None}, ["step 'student'", "the argument RECIPE is missing"]),
        ({"steps.scores.report": "yes"}, ["step 'scores'", "report = 'yes'", "true or false"]),
        ({"steps.student.teacher": "@techer"}, ["step 'student'", "'techer' (did you mean 'teacher'?)"]),
        ({"steps.tuned.steps": "@scores"}, ["step 'tuned/rte'", "unknown step that trains", "'scores'"]),
        ({"steps.student.steps": "@scores"}, ["step 'student'", "expected: teacher, tuned/"]),
        ({"steps.teacher.encoder": "@scores"}, ["refer to each other in a circle: 'student' -> "]),
        ({"steps.scores.json": "out/teacher"}, ["step 'scores'", "writes out/teacher", "'teacher'"]),
        ({"steps.student.corpus": "corpora/a"}, ["step 'student'", "--corpus corpora/a", "no such file"]),
        ({"steps.scores.model": "./nowhere"}, ["step 'scores'", "--model ./nowhere", "no such file"]),
        ({"steps.teacher.encoder": "./nowhere"}, ["step 'teacher'", "--encoder ./nowhere", "no such file"]),
        ({"steps.student.unlabelled": {"rte": "more.csv"}}, ["step 'student'", "more.csv", "no such file"]),
        ({"steps.student.set.student.bilstm.embeddings": "v.txt"}, ["'student'", "v.txt does not exist"]),
        ({"data": math.nan}, ["data: nan is not valid", "expected: text", 'in quotes: data = "nan"']),
        ({"data": "nowhere"}, ["step 'teacher'", "'nowhere' does not exist"]),
        ({"tasks": "rtee"}, ["unknown task 'rtee'", "'rte'"]),
        ({"tasks": "own.toml"}, ["no such file: own.toml"]),
        ({"steps.studnt.steps": 3}, ["step 'studnt'", "it has no command (did you mean 'student'?)"]),
        ({"steps.student.out": "out"}, ["step 'teacher'", "lies inside out, the output of the step"]),
        ({"steps.teacher.out": "."}, ["step 'teacher'", "--out . contains pipeline.toml"]),
        ({"steps.teacher.out": "pipeline.toml"}, ["step 'teacher'", "the path of the pipeline"]),
        ({"out": "a\0b"}, ["step 'teacher'", "NUL"]),
        ({"steps.teacher.set": {"train.lr": date(1979, 5, 27)}}, ["step 'teacher'", "set.train.lr = "]),
        ({"steps.teacher.device": "gpu"}, ["step 'teacher'", "unknown device 'gpu' (did you mean 'cuda'?)"]),
        ({"steps.student.teacher": ""}, ["step 'student'", "teacher = ''", "leave out this line"]),
        ({"steps.student.teacher": math.nan}, ["step 'student': teacher = nan is not", "quotes"]),
        ({"steps.student.teacher": {"rte": math.inf}}, ["step 'student': teacher = ", "quotes"]),
        ({"steps.student.tasks": " "}, ["step 'student'", "tasks = ' '", "leave out this line"]),
        ({"steps.teacher.set": {"train.lr": {}}}, ["step 'teacher'", "set.train.lr = {} is not valid"]),
    ],
)  # fmt: skip
def test_invalid_pipelines_are_errors_before_the_first_step(
    changes: dict[str, Any], parts: list[str], file: Path, commands: list[list[str]]
) -> None:
    with pytest.raises(mtkd.UserError) as caught:
        mtkd.run_pipeline(file, settings=changes)
    for part in parts:
        assert part in as_options(str(caught.value))
    assert not commands and not (file.parent / "out").exists()


def test_a_file_without_steps_is_an_error() -> None:
    with pytest.raises(mtkd.UserError, match="the pipeline has no steps"):
        load_steps({"title": "nothing"}, {}, "x")


def test_a_long_chain_of_steps_is_put_in_order() -> None:
    step = {"command": "finetune", "task": "rte", "data": "pocket"}
    steps = {f"s{n}": step | {"model": f"@s{n + 1}"} for n in range(1500)}
    ordered, _ = load_steps({"steps": steps | {"s1500": step | {"model": "m"}}}, {}, "x")
    assert [one.name for one in ordered] == [f"s{n}" for n in range(1500, -1, -1)]


def test_the_output_may_be_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    assert output_directory({"out": "~/runs"}, "job") == "/home/anna/runs"


def test_the_limit_is_passed_to_an_export_only_if_it_scores_rows() -> None:
    step = '[steps.x]\ncommand = "export"\nmodel = "m"\n'
    for data, limited in (("", False), ('data = "pocket"\n', True)):
        values = tomllib.loads(f"{data}eval-limit = 8\n{step}")
        (found,) = load_steps(values, {}, "x")[0]
        assert ("--limit" in found.argv()) == limited


def test_a_seed_among_the_settings_of_a_step_replaces_the_common_one() -> None:
    step = {"command": "refine", "tasks": "rte", "set": {"train": {"seed": 5}}}
    (found,) = load_steps({"seed": 3, "steps": {"x": step}}, {}, "x")[0]
    assert "train.seed=5" in found.argv() and "--seed" not in found.argv()


def test_a_model_may_be_a_name_on_the_hub(file: Path) -> None:
    planned = mtkd.run_pipeline(file, settings={"steps.scores.against": "someone/model"}, dry_run=True)
    assert planned[-1].name == "scores" and "--against someone/model" in planned[-1].command


def test_files_that_are_not_pipelines_are_errors(tmp_path: Path, mtkd: Callable) -> None:
    (tmp_path / "broken.toml").write_text("[steps")
    broken = mtkd("run", tmp_path / "broken.toml")
    assert broken.code == 2 and "is not valid TOML" in broken.err
    missing = mtkd("run", tmp_path / "nothing.toml")
    assert missing.code == 2 and "there is no pipeline" in missing.err and "demo" in missing.err
