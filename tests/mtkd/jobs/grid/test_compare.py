"""Grids: their runs, failed cells, resuming, and the table."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import click
import pytest
from run_records import finished_record

import mtkd as api
from mtkd.api.grid_runs import compare, plan_grid
from mtkd.cli.main import cli
from mtkd.evaluation.baselines import CONSTANT, COSINE, LINEAR
from mtkd.evaluation.scoring import read_predictions
from mtkd.grids import TEACHER, grid_names, load_grid
from mtkd.jobs.grid import compare_times
from mtkd.jobs.grid.compare import _steps_note
from mtkd.jobs.grid.compare_plot import pareto_front, plot_table
from mtkd.jobs.grid.compare_table import Table
from mtkd.jobs.grid.compare_times import add_times
from mtkd.jobs.grid.comparison_directory import check_comparison_directory
from mtkd.jobs.grid.finished_inputs import check_finished_inputs, check_same_commands
from mtkd.jobs.grid.grid_checks import check_paths
from mtkd.jobs.grid.grid_jobs import GridInputs, Job
from mtkd.jobs.grid.grid_plan import plan_runs
from mtkd.jobs.grid.grid_scheduler import run_jobs
from mtkd.jobs.grid.kept_speeds import keep_speeds
from mtkd.jobs.grid.table_row import TableRow
from mtkd.recipes import load_settings, parse_set
from mtkd.reporting.models import gather
from mtkd.reporting.runs import CONTROL, STUDENT
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.training.interrupts import PARENT
from tasks.common.errors import UserError
from tasks.common.records import write_record

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
set = { "student.transformer.heads" = 2, "terms.mha.relation_heads" = 5 }

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
    "encoder",
    limit=9,
    corpus="copies/{task}",
)


class EndedProcess:
    """A process that has already ended."""

    def __init__(self, code: int):
        self.code = code

    def wait(self) -> int:
        return self.code

    def terminate(self) -> None:
        pass


@pytest.fixture
def started(processes: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of the runs that a comparison starts, each in a forked process."""
    commands: list[list[str]] = []
    one_at_a_time = threading.Lock()  # the fork server answers one request at a time
    real_popen = subprocess.Popen

    def popen(words: list[str], *given: Any, **options: Any) -> Any:
        if words[:3] == [sys.executable, "-m", "mtkd.cli.main"]:
            return run(words, **options)
        return real_popen(
            words, *given, **options
        )  # matplotlib lists the fonts when it is first used on a machine

    def run(words: list[str], stdin: int, stdout: IO[str], stderr: int, env: dict[str, str]) -> EndedProcess:
        assert stderr == subprocess.STDOUT
        assert stat.S_ISFIFO(os.fstat(stdin).st_mode) and env[PARENT]
        with one_at_a_time:
            commands.append(words)
            answered = processes.run(*words[3:])
        stdout.write(answered.out + answered.err)
        return EndedProcess(answered.code)

    monkeypatch.setattr(subprocess, "Popen", popen)
    # Peak memory is measured in processes of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    return commands


def compare_command(file: Path, out: Path, *given: object) -> list[object]:
    words = ["compare", file, "--data", "pocket", *given, "--out", out]
    return [*words, "--limit", 16, "--eval-limit", 16, "--epochs", 2, "--set", "train.batch_size=8"]


def test_a_failed_cell_does_not_stop_the_others_and_finished_runs_are_kept(
    mtkd: Callable,
    tiny_teacher: Path,
    tmp_path: Path,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(GRID, encoding="utf-8")
    words = compare_command(file, out, "--teacher", tiny_teacher)
    first = mtkd(*words, "--columns", "all")
    assert first.code == 1, "a cell failed"
    assert "failed: broken, rte, seed 0: error: the term 'mha' has 5 relation heads" in first.out
    assert "rte acc" in first.out and "the best `train.metric`" in first.out
    found = json.loads((out / "compare.json").read_text())
    teacher, two, broken, constant, *encoder = found["rows"]
    assert teacher["name"] == "teacher" and teacher["parameters"] > 0 and teacher["steps"] == []
    assert teacher["differences"]["rte"]["reference"] == two["mean"]["rte"]
    gains = [row["mean"]["rte"] - constant["mean"]["rte"] for row in (two, teacher)]
    assert two["share_of_teacher_gain"] == (pytest.approx(gains[0] / gains[1]) if gains[1] > 0 else None)
    assert f"scoring the teacher {tiny_teacher} on rte" in first.err
    assert two["scores"]["rte"][0] > 0 and two["parameters"] > 0
    assert teacher["speed"] == {"2": 1.0} and two["speed"]["2"] > 0, "relative to the teacher"
    assert (
        two["steps"] == [4] and two["kept"] == "best" and two["metrics"] == {"rte acc": two["scores"]["rte"]}
    )
    assert broken["scores"] == {} and broken["average"] is None
    assert [row["name"] for row in (constant, *encoder)] == [CONSTANT, LINEAR, COSINE]
    assert all(row["differences"]["rte"]["reference"] == two["mean"]["rte"] for row in (constant, *encoder))
    written = read_predictions(out / "runs/two/rte-0/predictions")["rte"]["validation"]
    assert (written.labels == written.predictions).mean() == pytest.approx(two["mean"]["rte"])
    assert len(list((out / "features").glob("*.safetensors"))) == 4, (
        "two texts of training and validation rows"
    )
    assert "| two | " in (out / "compare.md").read_text()

    file.write_text(GRID.replace(', "terms.mha.relation_heads" = 5', ""), encoding="utf-8")
    started.clear()
    again = mtkd(*words)
    assert again.code == 0, again.out + again.err
    assert len(started) == 1 and any("broken" in word for word in started[0]), "only the mended cell runs"
    assert "scoring the teacher" not in again.err, "its predictions are kept"
    rows = json.loads((out / "compare.json").read_text())["rows"]
    table = (out / "compare.md").read_text()
    other = mtkd(*words, "--set", "train.lr=1e-3")
    assert other.code == 2 and "a run with other options" in other.err and "another --out" in other.err
    assert (out / "compare.md").read_text() == table and len(started) == 1
    assert rows[0]["scores"] == teacher["scores"] and rows[0]["model"] == teacher["model"]
    tie = rows[2]["differences"]["rte"]
    assert (tie["low"], tie["high"], tie["verdict"]) == (0, 0, "tied"), "the same settings, so the same model"

    words = compare_command(file, out.rename(tmp_path / "moved"), "--teacher", tiny_teacher)
    moved = mtkd(*words, "--reference", LINEAR)
    assert moved.code == 0 and len(started) == 1, "finished runs stay finished in another directory"
    teacher, two, *_, linear, _ = json.loads((tmp_path / "moved" / "compare.json").read_text())["rows"]
    assert two["mean"] == rows[1]["mean"] and linear["name"] == LINEAR and not linear["differences"]
    assert two["differences"]["rte"]["reference"] == linear["mean"]["rte"]
    assert mtkd(*words, "--reference", "teacher", "--no-bench").code == 0 and len(started) == 1
    timed = two["ms"], two["speed"], teacher["ms"]
    teacher, two, *_ = json.loads((tmp_path / "moved" / "compare.json").read_text())["rows"]
    assert two["differences"]["rte"]["reference"] == teacher["mean"]["rte"] and not teacher["differences"]
    assert (two["ms"], two["speed"], teacher["ms"]) == timed, "these models were timed before"
    table = (tmp_path / "moved" / "compare.md").read_text()
    assert "1.00x" in table and "measured by an earlier call, for the same models.\n" in table

    (tmp_path / "moved" / "compare.md").unlink()
    monkeypatch.setattr(compare_times, "time_each_shape", _interrupted)
    assert mtkd(*words).code != 0
    written = (tmp_path / "moved" / "compare.md").read_text()
    assert "| two | " in written and "1.00x" in written, "written before the timing, with the earlier times"
    for name in ("compare.md", "compare.json"):
        (tmp_path / "moved" / name).unlink()
    assert mtkd(*words).code != 0
    written = (tmp_path / "moved" / "compare.md").read_text()
    assert "| two | " in written and "1.00x" not in written, "the scores are written before the timing"
    assert mtkd(*words, "--no-bench").code == 0
    assert "1.00x" not in (tmp_path / "moved" / "compare.md").read_text()


def test_only_models_that_have_not_changed_keep_their_speeds(tmp_path: Path) -> None:
    def row(name: str, model: str | None, **times: dict[int, float]) -> TableRow:
        return TableRow(name, {"rte": [0.5]}, model=model, **times)  # type: ignore[arg-type]

    grid = load_grid("mkd-table-2", {}, {})
    earlier = [
        row("first", "a", ms={64: 9.0}, speed={64: 1.0}),
        row("same", "b", ms={64: 3.0}, speed={64: 3.0}),
        row("fast", "c", ms={64: 1.0}, speed={64: 9.0}),
    ]
    file = tmp_path / "compare.json"
    assert keep_speeds(file, {}) is None
    write_record(file, Table(grid, ["rte"], earlier, {}).to_json())
    rows = {name: row(name, model) for name, model in (("first", "x"), ("same", "b"), ("fast", "c"))}
    rows[CONSTANT] = row(CONSTANT, None)
    kept = keep_speeds(file, rows)
    assert kept and kept[0] == grid.bench and kept[1].endswith("are new or have changed: first.")
    assert [of.ms for of in rows.values()] == [{}, {64: 3.0}, {64: 1.0}, {}]
    assert [of.speed for of in rows.values()] == [{}, {64: 1.0}, {64: 3.0}, {}], "relative to the first one"
    assert keep_speeds(file, {"first": row("first", "x")}) is None
    file.write_text("{}")
    assert keep_speeds(file, rows) is None


def test_a_teacher_that_cannot_be_timed_does_not_keep_the_students_from_it(
    tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(models: dict[str, Path], settings: object) -> dict[str, SimpleNamespace]:
        if TEACHER in models or not models["cell"].exists():
            raise UserError("it cannot be timed")
        return dict.fromkeys(models, SimpleNamespace(speed=1.0, ms=2.0))

    monkeypatch.setattr(compare_times, "time_each_shape", timed)
    teacher = TeacherRef.find(str(tiny_teacher), heads=True)
    grid = load_grid("mkd-table-2", {}, {})
    for model, done, notes in ((tiny_teacher, True, 1), (Path("missing"), False, 2)):
        table = Table(grid, ["rte"], [TableRow(TEACHER), TableRow("cell", ms={64: 9.0})], {})
        assert add_times(table, {"cell": model}, teacher) == done and len(table.notes) == notes
        assert table.notes[0] == "The teacher was not timed: it cannot be timed."
        assert list(table.rows[1].ms.values()) == ([2.0] if done else [9.0]), "earlier times are kept"


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


SAME_STEPS = """
title = "Same steps"
recipe = "mkd-transformer"
tasks = ["rte"]
[set]
"student.max_length" = 24
"student.transformer.layers" = 1
"student.transformer.hidden_size" = 8
"student.transformer.heads" = 2
"student.transformer.intermediate_size" = 8
"student.transformer.init" = "random"
[cells.narrow]
"""


@pytest.mark.parametrize(
    ("cells", "epochs", "roles"),
    [
        (
            '[cells.deep]\nset = { "student.transformer.layers" = 2 }\nsteps_of = "narrow"',
            (),
            {"narrow": STUDENT, "deep": STUDENT},
        ),
        (
            "control = true\n[cells.deep]\nset = { student.transformer.layers = 2, train.batch_size = 4 }",
            ("--epochs", 1),
            {"narrow": STUDENT, "narrow, labels": CONTROL, "deep": STUDENT},
        ),
    ],
)
def test_a_report_of_cells_that_take_the_steps_of_others_agrees_with_their_table(
    cells: str,
    epochs: tuple[object, ...],
    roles: dict[str, str],
    mtkd: Callable,
    tiny_teacher: Path,
    tmp_path: Path,
    started: list[list[str]],
) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(f"{SAME_STEPS}{cells}\n", encoding="utf-8")
    words = ("compare", file, "--data", "pocket", "--teacher", tiny_teacher, "--out", out)
    limits = ("--limit", 16, "--eval-limit", 16, "--no-bench", "--no-baselines")
    done = mtkd(*words, *limits, *(epochs or ("--set", "train.epochs=1")))
    assert done.code == 0, done.out + done.err
    table = json.loads((out / "compare.json").read_text())
    folders = {cell: "narrow--labels-*" if cell == "narrow, labels" else cell for cell in roles}
    gathered = gather([out])
    models = {model.name: model for model in gathered.models}
    assert {name: model.role for name, model in models.items()} == roles
    assert sorted(run.name for run in gathered.runs) == sorted(roles)
    for row in table["rows"]:
        if model := models.get(row["name"]):
            (path,) = (out / "runs").glob(f"{folders[model.name]}/rte-0")
            assert [run.path for run in model.runs] == [path]
            assert table["scored_runs"][model.name] == [path.relative_to(out).as_posix()]
            assert model.scores() == row["mean"] and model.parameters["total"] == row["parameters"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", '{"status": "finished"}'),
        ("rte/train.jsonl", "{}"),
        ("teacher/model/model.json", "{}"),
        ("compare.json", '{"prices": [1, 2]}'),
        ("runs/notes.log.txt", "text"),
    ],
)
def test_a_directory_with_other_files_is_rejected_before_anything_is_written(
    file: str, text: str, mtkd: Callable, tiny_teacher: Path, tmp_path: Path, started: list[list[str]]
) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID, encoding="utf-8")
    (out / file).parent.mkdir(parents=True)
    (out / file).write_text(text)
    before = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    refused = mtkd(*compare_command(grid, out, "--teacher", tiny_teacher))
    assert refused.code == 2 and not started
    assert refused.err.startswith(f"error: {out} holds files that do not belong to a comparison: {file}\n")
    assert "an empty or new directory with --out" in refused.err
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == before


@pytest.mark.parametrize(
    "files",
    [
        {".mtkd.lock": ""},
        {"runs/two/rte-0.log.txt": ""},
        {
            "runs/two/rte-0-then-rte.log.txt": "",
            "runs/two/rte-0/run.json": "{}",
            "report.html": "a user's file",
        },
        {"teacher/rte.log.txt": "", "teacher/rte/run.json": "{}"},
        {"first/minilm-6-0123456789ab.log.txt": "", "first/minilm-6-0123456789ab/log.jsonl": ""},
        {"compare.json": '{"rows": [], "commands": {}}', "compare.md": "", "report.html": "page"},
    ],
)
def test_the_directory_of_an_interrupted_or_finished_comparison_is_accepted(
    files: dict[str, str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    check_comparison_directory(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == files.keys(), "nothing is written or removed"


CHAIN = """
title = "Chain"
recipe = "mkd-transformer"
tasks = ["rte"]
seeds = [0, 1]
[set]
"student.max_length" = 24
"student.transformer.layers" = 2
"student.transformer.hidden_size" = 8
"student.transformer.heads" = 2
"student.transformer.intermediate_size" = 8
"student.transformer.init" = "random"
[refine]
set = { max_length = 24, "train.epochs" = 1 }
[cells.distilled]
then = { recipe = "finetune", set = { learning_rates = [1e-3], "train.epochs" = 1 } }
[cells.labels]
set = { supervision = "labels" }
steps_of = "distilled"
[bench]
seq_len = 16
batches = [2]
rounds = 1
"""


@pytest.mark.slow(reason="trains many models")
def test_parallel_and_interrupted_runs_give_the_same_table(
    mtkd: Callable,
    tiny_encoder: Path,
    tmp_path: Path,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "grid.toml").write_text(CHAIN, encoding="utf-8")

    def table() -> list[dict[str, Any]]:
        rows = json.loads((tmp_path / "out/compare.json").read_text())["rows"]
        for row in rows:
            for cost in ("seconds", "speed", "ms", "gpu_speed", "gpu_ms"):
                row.pop(cost)
        return rows

    words = compare_command(tmp_path / "grid.toml", tmp_path / "out", "--encoder", tiny_encoder)
    assert mtkd(*words, "--jobs", 2).code == 0
    assert len(started) == 1 + 3 * 2, "a teacher; for each seed a student, its fine-tuning and its control"
    rows = table()
    assert [row["name"] for row in rows] == ["teacher", "distilled", "labels", CONSTANT, LINEAR, COSINE]
    distilled, labels = rows[1:3]
    steps = json.loads((tmp_path / "out/runs/distilled/rte-0/run.json").read_text())["training"]["steps"]
    assert labels["steps"] == [steps, steps] == [4, 4] and distilled["steps"] > labels["steps"]

    # All runs of one seed once more, one after the other, and with an interruption.
    popen = subprocess.Popen
    started.clear()
    for place in [tmp_path / "out/compare.json", *(tmp_path / "out/runs").glob("*/*-1*")]:
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    def interrupted(*given: Any, **more: Any) -> Any:
        return EndedProcess(143) if len(started) == 2 else popen(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert mtkd(*words).code == 130 and not (tmp_path / "out/compare.json").exists()
    monkeypatch.setattr(subprocess, "Popen", popen)
    assert mtkd(*words).code == 0 and len(started) == 3, "what was finished is not run again"
    assert table() == rows


def test_a_command_is_killed_when_its_comparison_is_killed() -> None:
    code = "from mtkd.training.interrupts import die_with_parent as d; d(); print('up', flush=True)"
    words = [sys.executable, "-c", f"{code}; __import__('time').sleep(99)"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), PARENT: "1"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **streams) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n" and process.poll() is None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL


def replace_commands(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace every command by this Python code, which gets the words of the command as its arguments."""
    popen = subprocess.Popen

    def start(words: list[str], **more: Any) -> Any:
        return popen([sys.executable, "-c", code, *words[3:]], **more)

    monkeypatch.setattr(subprocess, "Popen", start)


MEET = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / sys.argv[2]).write_text(os.environ["OMP_NUM_THREADS"])
if sys.argv[2] == "bad":
    sys.exit("error: bad luck")
deadline = time.monotonic() + 60
while not (here / "a").exists() or not (here / "b").exists():
    assert time.monotonic() < deadline, "the other one never started"
    time.sleep(0.01)
"""


def test_jobs_run_in_parallel_after_their_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_commands(monkeypatch, MEET)
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    bad, a, b = (Job((str(tmp_path), name), tmp_path / "runs" / name) for name in ("bad", "a", "b"))
    late = Job((str(tmp_path), "late"), tmp_path / "runs/late", (a, b))
    never = Job((str(tmp_path), "never"), tmp_path / "runs/never", (bad,))
    printed: list[str] = []
    broken = run_jobs([bad, never, late, a, b, a], 2, printed.append)
    assert broken == {bad.out: "error: bad luck", never.out: "error: bad luck"}
    assert [line.split()[-1] for line in printed if line.startswith("[")] == ["bad", "a", "b", "late"]
    assert (tmp_path / "a").read_text() == "3", "half of the threads each"
    assert not (tmp_path / "never").exists()


def test_a_teacher_of_a_different_task_is_rejected_before_the_first_run(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, started: list[list[str]]
) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(GRID.replace('"rte"', '"cola"'), encoding="utf-8")
    done = mtkd(*compare_command(file, out, "--teacher", tiny_teacher))
    assert done.code == 2 and "has no head for the task 'cola'" in done.err
    assert not started and not out.exists()


@pytest.mark.parametrize(
    ("recipe", "key", "value", "message"),
    [
        ("mkd-lstm", "bilstm.embeddings", "v.txt", "student.bilstm.embeddings=v.txt does not exist"),
        ("tinybert-4", "transformer.init", "./none", "there is no directory './none'"),
        ("minilmv2-6x384", "max_length", 64, "cannot load the encoder of 'owner/none'"),
    ],
)
def test_encoders_and_teachers_are_checked_before_the_first_run(
    recipe: str, key: str, value: Any, message: str, mtkd: Callable, started: list, tmp_path: Path
) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    lines = (
        "title = 'x'",
        f"recipe = '{recipe}'",
        "tasks = ['rte']",
        f"[cells.x.set]\nstudent.{key} = {value!r}",
    )
    file.write_text("\n".join(lines))
    words = ("compare", file, "--data", "pocket", "--teacher", "owner/none", "--out", out)
    refused = mtkd(*words)
    assert refused.code == 2 and message in refused.err and ("cell 'x'" in refused.err or key == "max_length")
    assert not started and not out.exists()


def test_a_checkpoint_with_wrong_or_missing_labels_is_rejected_before_the_first_run(
    mtkd: Callable, tmp_path: Path, started: list[list[str]]
) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=64, id2label={0: "bad", 1: "good"}, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "checkpoint")
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(GRID, encoding="utf-8")
    done = mtkd(*compare_command(file, out, "--teacher", tmp_path / "checkpoint"))
    assert done.code == 2 and "are named bad, good, but the labels of the task 'rte' are" in done.err
    assert "in the order of the outputs: --teacher-labels rte=FIRST,SECOND" in done.err
    file.write_text(GRID.replace('"rte"', '"rte,sst2"'), encoding="utf-8")
    done = mtkd(*compare_command(file, out, "--teacher", tmp_path / "checkpoint"))
    assert done.code == 2 and "is for one task" in done.err
    done = mtkd(*compare_command(file, out, "--teacher", "no-such-checkpoint"))
    assert done.code == 2 and "cannot load the model of 'no-such-checkpoint'" in done.err
    assert not started and not out.exists()


def test_the_label_order_of_a_checkpoint_is_passed_to_its_students(
    mtkd: Callable, save_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "grid.toml").write_text(MORE, encoding="utf-8")
    places = {
        task: save_checkpoint("Bert", f"teach/{task}", id2label={0: "x", 1: "y"}) for task in ("rte", "sst2")
    }
    words = ("compare", tmp_path / "grid.toml", "--data", "pocket", "--out", tmp_path / "out", "--dry-run")
    words += ("--teacher", tmp_path / "teach/{task}")
    labels = {"rte": "not_entailment,entailment", "sst2": "positive,negative"}
    orders = [word for task in labels for word in ("--teacher-labels", f"{task}={labels[task]}")]
    planned = mtkd(*words, *orders)
    assert planned.code == 0, planned.err
    for command in [shlex.split(line) for line in planned.out.splitlines()]:
        distilled = "runs/distilled/" in command[command.index("--out") + 1]
        given = [command[n + 1] for n, word in enumerate(command) if word == "--teacher-labels"]
        task = next(task for task in labels if str(places[task]) in command)
        assert given == ([f"{task}={labels[task]}"] if distilled else [])
    missing = mtkd(*words, *orders[:2])
    assert missing.code == 2 and "--teacher-labels sst2=" in missing.err
    unknown = mtkd(*words, *orders, "--teacher-labels", "cola=a,b")
    assert unknown.code == 2 and "unknown task in --teacher-labels 'cola'" in unknown.err
    useless = mtkd(*words[:-2], *orders)
    assert useless.code == 2 and "learns from the logits of a given teacher" in useless.err


def test_a_misspelt_grid_or_key_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("seedz = [0]\n" + GRID, encoding="utf-8")
    with pytest.raises(UserError, match=r"there is no grid .* \(did you mean '.*/grid\.toml'\?\)"):
        load_grid(str(tmp_path / "gridd.toml"), {}, {})
    with pytest.raises(UserError, match=r"there is no grid .* \(did you mean '.*/grid\.toml'\?\)"):
        load_grid(str(tmp_path / "grid.tml"), {}, {})
    with pytest.raises(UserError, match=r"(?s)'seedz' \(did you mean 'seeds'\?\).*docs/compare\.md"):
        load_grid(str(tmp_path / "grid.toml"), {}, {})
    with pytest.raises(
        UserError, match=r"there is no grid 'mlkd-table-77' \(did you mean 'mlkd-table-7'\?\)"
    ):
        load_grid("mlkd-table-77", {}, {})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[cells.two]\nset",
            "[cells.two]\nsett",
            "unknown setting 'cells.two.sett' (did you mean 'set'?)\n  expected: recipe, tasks, set, first, ",
        ),
        (
            "[cells.two]",
            '[refine]\nrecip = "refine"\n[cells.two]',
            "unknown setting 'refine.recip' (did you mean 'recipe'?)\n  expected: recipe, encoder, ",
        ),
        ('title = "Heads"', "", "the setting 'title' is missing\n  hint: for example title = "),
        (
            '["rte"]',
            '"sst2,rte"',
            "tasks = 'sst2,rte' is not valid\n  expected: list of text\n  hint: tasks = [\"",
        ),
        ("[set]", "seeds = 2\n[set]", "seeds = 2 is not valid"),
        ("[set]", "seeds = 2\n[set]", "hint: for example seeds = [0, 1]"),
    ],
)
def test_errors_in_a_grid_name_the_file_and_what_to_write(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_grid(str(tmp_path / "grid.toml"), {}, {})
    assert caught.value.problem.startswith(f"{tmp_path / 'grid.toml'}: ")


def test_errors_in_arguments_do_not_name_the_file_of_the_grid(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    with pytest.raises(UserError, match=r"^tasks = \['rte', 'rte'\] is not valid"):
        load_grid(str(tmp_path / "grid.toml"), {"tasks": ["rte", "rte"]}, {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": ["1"]}, r"seeds = \['1'\]"),
        ({"cells": {"a": {"steps_of": ""}}}, r"unknown cell \(steps_of\) ''"),
    ],
)
def test_invalid_seeds_and_unknown_reference_cells_are_errors(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    (tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_grid(str(tmp_path / "grid.toml"), wrong, {})


def test_task_files_are_looked_up_in_the_current_directory_and_then_beside_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "job", tmp_path / "here"
    for file in (folder / "a.toml", folder / "b.toml", here / "b.toml"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    grid = folder / "grid.toml"
    grid.write_text(
        "title = ''\nrecipe = 'mkd-lstm'\ntasks = ['a.toml,rte', 'b.toml', 'c.toml']\n"
        "refine.tasks = 'a.toml'\n[cells.x]\ntasks = ['a.toml']\n"
        "then = { recipe = 'finetune', tasks = 'b.toml,a.toml' }\n[cells.y]\nthen = 'finetune'\n"
    )
    monkeypatch.chdir(here)
    loaded = load_grid("../job/grid.toml", {}, {})
    assert loaded.tasks == ["../job/a.toml,rte", "b.toml", "c.toml"]
    x, y = loaded.cells.values()
    assert x.tasks == ["../job/a.toml"] and x.then and x.then.tasks == "b.toml,../job/a.toml"
    assert y.then and y.then.tasks is None and loaded.refine and loaded.refine.tasks == "../job/a.toml"


def test_recipe_files_are_looked_up_in_the_current_directory_and_then_beside_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "job", tmp_path / "here"
    for file, base in {
        folder / "a.toml": "layerwise-3",
        folder / "b.toml": "layerwise-3",
        here / "b.toml": "static",
        folder / "tune.toml": "finetune",
    }.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"extends = '{base}'\n", encoding="utf-8")
    grid = folder / "grid.toml"
    text = (
        "title = ''\nrecipe = 'a.toml'\ntasks = ['rte']\n"
        "[cells.x]\nthen = 'tune.toml'\n[cells.y]\nrecipe = 'b.toml'\ncontrol = true\n"
    )
    grid.write_text(text, encoding="utf-8")
    monkeypatch.chdir(here)
    loaded = load_grid("../job/grid.toml", {}, {})
    x, y = loaded.cells["x"], loaded.cells["y"]
    assert loaded.recipe == "../job/a.toml" and x.then and x.then.recipe == "../job/tune.toml"
    assert x.recipe is None and y.recipe == "b.toml"
    grid.write_text(text.replace("tune", "tuen"), encoding="utf-8")
    expected = (
        r"(?s)no such file: tuen.toml \(did you mean '../job/tune.toml'\?\).*current directory or to ../job"
    )
    with pytest.raises(UserError, match=expected):
        load_grid("../job/grid.toml", {}, {})


def test_settings_given_with_a_grid_override_those_of_single_cells(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    cells = (
        '[cells.a]\nset = { "train.steps" = 9, "train.lr" = 1e-3 }\n[cells.b]\nset = { "train.lr" = 1e-4 }\n'
    )
    file.write_text(GRID.partition("[cells")[0] + cells, encoding="utf-8")
    grid = load_grid(str(file), {}, {"train.steps": 2})
    assert grid.sets_of("a")["train.steps"] == grid.sets_of("b")["train.steps"] == 2
    assert grid.sets_of("a")["train.lr"] == 1e-3
    with pytest.raises(UserError, match=r"'a' and 'b' would be the same: .* in train\.lr, train\.steps"):
        load_grid(str(file), {}, {"train.lr": 0.1, "train.steps": 2})


def test_a_grid_of_refined_encoders_needs_no_teacher(mtkd: Callable, tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    cells = '[cells.slow]\n[cells.fast]\nset = { "train.lr" = 1e-3 }\n'
    file.write_text('title = "Rates"\nrecipe = "refine"\ntasks = ["rte"]\n' + cells)
    words = ("compare", file, "--data", "pocket", "--out", tmp_path / "out")
    done = mtkd(*words, "--encoder", "minilm", "--dry-run")
    assert done.code == 0 and done.out.count("mtkd refine --recipe refine --tasks rte --encoder minilm") == 2
    assert mtkd(*words, "--dry-run").out == done.out.replace("minilm", "ENCODER")
    done = mtkd(*words)
    assert done.code == 2 and "the grid refines an encoder, but none is given" in done.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_in_python_returns_the_commands(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, notes = tmp_path / "grid.toml", list[str]()
    file.write_text(GRID, encoding="utf-8")
    plan: Any = compare(file, data="pocket", seeds=[0, 1], limit=9, dry_run=True, say=notes.append)
    printed = mtkd("compare", file, "--data", "pocket", "--seeds", "0,1", "--limit", 9, "--dry-run")
    assert list(plan.command) == printed.out.splitlines() and len(plan) == 4
    assert list(plan.cell) == ["two", "broken"] * 2 and list(plan.seed) == [0, 0, 1, 1]
    assert set(plan.tasks) == {"rte"} and not plan.finished.any()
    assert [note.split(":")[0] for note in notes] == [
        "TEACHER is a placeholder", "the directory is named after the grid",
    ]  # fmt: skip
    assert "--" not in "".join(notes) and [*tmp_path.iterdir()] == [file], "a dry run writes nothing"
    with pytest.raises(UserError, match="`out` is missing\n  expected: a directory\n  hint: `dry_run=True`"):
        compare(file, data="pocket")
    with pytest.raises(UserError, match=r"no such file or directory: text\.txt"):
        compare(file, data="pocket", text="text.txt", dry_run=True)


def test_sigterm_also_ends_the_running_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "started"
    replace_commands(monkeypatch, f"import time; open({str(file)!r}, 'w').close(); time.sleep(600)")

    start = time.monotonic()

    def kill() -> None:
        while not file.exists() and time.monotonic() - start < 60:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(SystemExit) as left:
        run_jobs([Job(("x",), tmp_path / "runs/x")], 1, print)
    assert left.value.code == 143 and time.monotonic() - start < 300


@pytest.fixture
def paths_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a dry run treat every path as existing."""
    monkeypatch.setattr("mtkd.jobs.grid.grid_checks.check_given_paths", lambda *_: None)


@pytest.mark.parametrize("name", grid_names())
def test_built_in_grids_print_their_commands(
    name: str, mtkd: Callable, tmp_path: Path, paths_exist: None
) -> None:
    first = load_grid(name, {}, {}).tasks[0]
    grid = load_grid(name, {"tasks": [first], "seeds": [1], "refine": None}, {})  # a teacher is given
    planned = plan_runs(grid, replace(HERE, out=tmp_path / "out"))
    runs = sum(len(cell.tasks or grid.tasks) for cell in grid.cells.values())
    assert len(planned) == runs * len(grid.seeds)
    assert len({run.jobs[-1].out for run in planned}) == len(planned)

    words = ["compare", name, "--dry-run", "--data", "pocket", "--limit", 9, "--out", tmp_path / "out"]
    words += ["--tasks", first, "--seeds", 1]
    words += ["--teacher", HERE.teacher, "--encoder", "encoder"]
    words += ["--corpus", HERE.corpus] if any(cell.corpus for cell in grid.cells.values()) else []
    words += ["--text", "text.txt"] if any(map(grid.first_of, grid.cells)) else []
    printed = mtkd(*words)
    assert printed.code == 0, printed.err
    commands = [shlex.split(line) for line in printed.out.splitlines()]
    assert len(commands) == len({job.out for run in planned for job in run.jobs})
    assert not (tmp_path / "out").exists()
    for program, command, *given in commands[:: 1 + len(commands) // 40]:  # load_grid checked all settings
        given = ["7" if word.startswith("STEPS OF ") else word for word in given]
        parsed = cli.get_command(click.Context(cli), command).make_context(command, given).params
        task = parsed.get("task") or parsed.get("tasks") or ""
        assert load_settings(parsed["recipe"], command, parse_set(parsed["sets"]), task) and program == "mtkd"


# Options that a grid needs, and what a dry run prints about them.
DATA_NEEDED = {"data": "--data DIR, --data pocket or --data hub"}
NEEDS = {
    "mlkd-table-8": DATA_NEEDED
    | {"teacher": "--teacher DIR or the name of a model, or --store DIR, a knowledge store"},
    "mkd-table-2": DATA_NEEDED
    | {
        "encoder": "--encoder NAME",
        "corpus": "--corpus DIR made with mtkd augment, or leave the cell out with --without",
    },
    "minilmv2-table-8": DATA_NEEDED | {"text": "--text FILE", "encoder": "their teacher as --encoder NAME"},
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_dry_run_works_without_options(
    name: str, mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths_exist: None
) -> None:
    monkeypatch.chdir(tmp_path)
    bare = mtkd("compare", name, "--dry-run")
    assert bare.code == 0, bare.err
    values = {option: f"my-{option}" for option in NEEDS[name]}
    options = [word for option, value in values.items() for word in (f"--{option}", value)]
    given = mtkd("compare", name, "--dry-run", *options, "--out", name)
    assert given.code == 0 and given.err == "" and "my-" in given.out
    plain = re.sub(r"first/[\w-]+", "first", bare.out)  # the directory has a digest of the command
    assert plain == re.sub(r"my-(\w+)", lambda m: m[1].upper(), re.sub(r"first/[\w-]+", "first", given.out))
    for option, hint in NEEDS[name].items():
        assert f"{option.upper()} is a placeholder: for a run, pass {hint}" in bare.err
    assert "the directory is named after the grid: for a run, pass --out DIR" in bare.err
    assert not [*tmp_path.iterdir()], "a dry run writes nothing"

    run = mtkd("compare", name, "--out", "out")
    assert run.code == 2 and not [*tmp_path.iterdir()], "a run does need them"
    for option in NEEDS[name]:
        options = [word for other in NEEDS[name] if other != option for word in (f"--{other}", "x")]
        assert f"--{option}" in mtkd("compare", name, "--out", "out", *options).err
    run = mtkd("compare", name, *options)
    assert run.code == 2 and "the option --out is missing" in run.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--data", "none"], "the data directory 'none' does not exist"),
        (["--text", "none"], "no such file or directory: none"),
        (["--store", "none"], "none is not a knowledge store"),
        (["--corpus", "none"], "there is no corpus none"),
        (["--teacher", "./none"], "there is no directory './none'"),
        (["--encoder", "./none"], "there is no directory './none'"),
        (["--unlabelled", "rte=none.csv"], "no file of unlabelled rows of task 'rte': none.csv"),
    ],
)
def test_a_dry_run_rejects_missing_paths(
    given: list[str], message: str, mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = mtkd("compare", "mkd-table-1", "--dry-run", *given)
    assert refused.code == 2 and message in refused.err and not refused.out
    assert mtkd("compare", "mkd-table-1", "--dry-run", "--data", "pocket").code == 0


def test_inputs_that_no_cell_uses_are_refused(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths_exist: None
) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(
        'title = "t"\nrecipe = "layerwise-3"\ntasks = ["rte"]\n[cells.one]\n[cells.two]\n', encoding="utf-8"
    )
    common = ["--data", "pocket", "--teacher", "teach", "--out", tmp_path / "out"]
    for option, message in (
        ("--corpus", "no cell of the grid uses the given augmented corpus"),
        ("--text", "no cell of the grid is first trained on the given plain text"),
    ):
        for dry in ([], ["--dry-run"]):
            refused = mtkd("compare", plain, *common, option, tmp_path, *dry)
            assert refused.code == 2 and message in refused.err
            assert f"hint: leave {option} out" in refused.err and not (tmp_path / "out").exists()
    monkeypatch.setattr("mtkd.grids.grid_names", lambda: ["mkd-table-2", "mlkd-table-8"])
    assert mtkd("compare", "--dry-run", *common[:4], "--corpus", tmp_path).code == 0, "one of them uses it"


def test_the_teacher_is_no_reference_if_a_store_replaces_it() -> None:
    grid = load_grid("mkd-table-1", {"reference": "teacher"}, {}, has_teacher=True)
    inputs = replace(HERE, teacher=None, store="stores/{task}")
    with pytest.raises(UserError, match="the store replaces the teacher, so it has no row"):
        plan_runs(grid, inputs)


def test_a_dry_run_prints_the_step_that_refines_the_teacher(mtkd: Callable, tmp_path: Path) -> None:
    (tmp_path / "teaching.toml").write_text(MORE, encoding="utf-8")
    done = mtkd("compare", tmp_path / "teaching.toml", "--dry-run", "--tasks", "rte")
    assert done.code == 0 and "TEACHER" not in done.out + done.err
    assert done.out.startswith("mtkd refine ") and "--out teaching/teacher/rte" in done.out
    assert "--teacher teaching/teacher/rte" in done.out


def test_a_dry_run_without_a_grid_prints_one_command_per_grid_or_all_commands(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths_exist: None
) -> None:
    few = ["mkd-table-2", "mlkd-table-8", "waldorf-ablation"]
    assert {*few} < {*grid_names()}
    monkeypatch.setattr("mtkd.grids.grid_names", lambda: few)
    words = (
        "compare",
        "--data",
        "pocket",
        "--limit",
        9,
        "--out",
        tmp_path / "out",
        "--tasks",
        "rte",
        "--seeds",
        1,
    )
    models = ("--teacher", HERE.teacher, "--text", "text.txt", "--encoder", "encoder")
    short = mtkd(*words, "--dry-run", *models)
    assert short.code == 0, short.err
    blocks = [block.splitlines() for block in short.out.split("\n\n")]
    assert [lines[0].split(" ")[1].rstrip(":") for lines in blocks] == few
    assert all(len(lines) == 2 for lines in blocks)
    two = shlex.split(next(lines for lines in blocks if "# mkd-table-2" in lines[0])[1])
    assert two[-4:] == ["--corpus", "CORPUS", "--out", f"{tmp_path}/out/mkd-table-2"], "it needs a corpus"
    summary, command = next(lines for lines in blocks if "# mlkd-table-8" in lines[0])
    assert summary.startswith("# mlkd-table-8 (2 runs): Two stages or one (MLKD-BERT table 8); Zhang et al.")
    out = ("--out", f"{tmp_path}/out/mlkd-table-8")
    assert shlex.split(command) == [
        str(word) for word in ("mtkd", "compare", "mlkd-table-8", *words[1:5], *words[7:], *models, *out)
    ]
    printed = mtkd("compare", "all", *words[1:], "--dry-run", *models)
    assert printed.code == 0, printed.err
    heading, *commands = printed.out[printed.out.index("# mlkd-table-8") :].split("\n\n")[0].splitlines()
    assert heading == summary
    one = mtkd("compare", "mlkd-table-8", *words[1:], "--dry-run", "--teacher", HERE.teacher)
    assert len(commands) == len(one.out.splitlines())
    assert commands[0] == one.out.splitlines()[0].replace(f"{tmp_path}/out/", f"{tmp_path}/out/mlkd-table-8/")
    everything = mtkd("compare", "all", "--dry-run", "--tasks", "rte")
    blocks = [block.splitlines() for block in everything.out.split("\n\n")]
    for name, (heading, *commands) in zip(few, blocks, strict=True):
        one = mtkd("compare", name, "--dry-run", "--tasks", "rte")
        assert heading.startswith(f"# {name} ") and commands == one.out.splitlines(), name
    lost = mtkd("compare", "all", *words[1:], "--dry-run", "--set", "train.lrr=1")
    reasons = [line for line in lost.out.splitlines() if line]
    assert lost.code == 2 and "no built-in grid can run with these options" in lost.err
    assert len(reasons) > 9 and all(line.startswith("#") for line in reasons), "it stays a shell script"
    unread = mtkd(*words, "--dry-run", "--reference", "nope", *models)
    assert unread.code == 2 and not unread.out
    assert unread.err.startswith("error: unknown row named as the reference: 'nope'")
    in_json = mtkd(*words, "--dry-run", "--json", *models)
    assert in_json.code == 2 and "--json has no effect with --dry-run" in in_json.err
    empty = mtkd("compare", few[0], *words[1:], "--dry-run", "--reference", "", *models)
    assert empty.code == 2 and "unknown row named as the reference: ''" in empty.err
    unprinted = mtkd("compare", "all", *words[1:], *models)
    assert unprinted.code == 2 and "can only be printed" in unprinted.err and "--dry-run" in unprinted.err
    missing = mtkd(*words)
    assert (
        missing.code == 2 and "the argument GRID is missing" in missing.err and "mkd-table-2" in missing.err
    )


def test_a_grid_expands_to_the_expected_commands() -> None:
    changes = {"tasks": ["rte", "sst2,rte"], "seeds": [3], "recipe": "mkd-transformer"}
    grid = load_grid("minilmv2-table-8", changes, {"train.epochs": 2})
    run = plan_runs(grid, HERE)[1]
    first, last = run.jobs
    assert (run.cell, run.task_spec, run.seed) == ("6 relation heads", "sst2,rte", 3)
    assert first.argv[:6] == ("distill", "minilmv2-6x384", "--text", "text.txt", "--teacher", "encoder")
    assert "terms.relation.relation_heads=6" in first.argv and "train.epochs=2" not in first.argv
    assert last.argv[-2:] == ("--init", str(first.out)) and "train.epochs=2" in last.argv
    assert "teach/sst2,rte" in last.argv and last.argv[last.argv.index("--limit") + 1] == "9"
    assert plan_runs(grid, HERE)[0].jobs[0] == first, "cells that start alike share the start"


def test_cells_share_the_first_run_of_the_grid(tmp_path: Path) -> None:
    first = "[first]\nrecipe = 'minilm-6'\nset = {'train.steps' = 5, 'train.lr' = 1e-3}\n"
    cells = {
        "as the grid": "",
        "another rate": "first = {recipe = 'minilm-6', set = {'train.lr' = 1e-4}}",
        "another recipe": "first = 'minilmv2-6x384'",
        "none": "first = false",
        "a teacher": "recipe = 'refine'",
    }
    toml = "".join(f"[cells.'{name}']\n{lines}\n" for name, lines in cells.items())
    (tmp_path / "grid.toml").write_text(f"title = ''\nrecipe = 'layerwise-3'\ntasks = ['rte']\n{first}{toml}")
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {})
    starts = {run.cell: run.jobs[0].argv[1:2] + run.jobs[0].argv[8:] for run in plan_runs(grid, HERE)}
    same, rate = "train.steps=5", "train.lr=0.001"
    assert starts["as the grid"] == ("minilm-6", "--set", same, "--set", rate, *starts["as the grid"][-2:])
    assert starts["another rate"][:5] == ("minilm-6", "--set", same, "--set", "train.lr=0.0001")
    assert starts["another recipe"][:2] == ("minilmv2-6x384", "--out")
    runs = {run.cell: len(run.jobs) for run in plan_runs(grid, HERE)}
    assert runs == dict.fromkeys(cells, 2) | {"none": 1, "a teacher": 1}


def test_seeds_share_a_first_run_with_its_own_seed(tmp_path: Path) -> None:
    first = "[first]\nrecipe = 'minilm-6'\nseed = 7\n"
    cells = {
        "as the grid": "",
        "its own": "first = {recipe = 'minilm-6', seed = 8}",
        "the grid's": "first = {recipe = 'minilm-6', set = {'train.lr' = 1e-4}}",
        "one per seed": "first = {recipe = 'minilm-6', seed = 'each'}",
    }
    toml = "".join(f'[cells."{name}"]\n{lines}\n' for name, lines in cells.items())
    (tmp_path / "grid.toml").write_text(f"title = ''\nrecipe = 'layerwise-3'\ntasks = ['rte']\n{first}{toml}")
    grid = load_grid(str(tmp_path / "grid.toml"), {"seeds": [1, 2]}, {})
    found: dict[str, list[str | None]] = {}
    for run in plan_runs(grid, HERE):
        assert run.trained[0].option("seed") == str(run.seed)
        found.setdefault(run.cell, []).append(run.jobs[0].option("seed"))
        assert run.jobs[-1].option("init") == str(run.jobs[0].out)
    assert found == dict(zip(cells, (["7", "7"], ["8", "8"], ["7", "7"], ["1", "2"]), strict=True))


def test_a_student_of_plain_text_is_fine_tuned_without_a_teacher(tmp_path: Path) -> None:
    given = {name: parameter.default for name, parameter in signature(compare).parameters.items()}
    given |= {"data": "pocket", "out": tmp_path, "text": "text.txt", "seeds": [3], "encoder": "encoder"}
    changes = {"grid": "minilmv2-table-8", "tasks": ["sst2,cola"]}
    grid, inputs = plan_grid(**given | changes)
    run = plan_runs(grid, inputs)[0]
    first, *tuned = run.jobs
    assert run.scored == tuple(tuned) and all(job.needs == (first,) for job in tuned)
    assert [job.argv[:7] for job in tuned] == [
        ("finetune", "--model", str(first.out), "--task", task, "--recipe", "minilmv2-finetune")
        for task in ("sst2", "cola")
    ]
    with pytest.raises(UserError, match="a grid needs a teacher"):
        plan_runs(*plan_grid(**given | {"grid": "mlkd-table-8", "tasks": []}))


def test_a_given_teacher_replaces_the_one_that_a_grid_refines(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    (tmp_path / "grid.toml").write_text(MORE, encoding="utf-8")
    words = ("compare", tmp_path / "grid.toml", "--data", "pocket", "--out", tmp_path / "out", "--dry-run")
    planned = mtkd(*words, "--teacher", tiny_teacher, "--tasks", "rte")
    assert planned.code == 0, planned.err
    assert f"[refine] is skipped: its cells use the teacher {tiny_teacher}" in planned.err
    commands = [shlex.split(line) for line in planned.out.splitlines()]
    assert [command[1] for command in commands] == ["distill", "distill", "distill", "finetune"]
    assert all(str(tiny_teacher) in command for command in commands)
    other = mtkd(*words, "--teacher", tiny_teacher, "--tasks", "cola")
    assert other.code == 2 and "has no head for the task 'cola'" in other.err
    reference = ("--tasks", "rte", "--reference", "teacher")
    assert mtkd(*words, "--teacher", tiny_teacher, *reference).out == planned.out
    assert "[refine] is skipped" not in mtkd(*words, "--tasks", "rte").err


def test_a_cell_uses_its_own_corpus_or_else_the_given_one(tmp_path: Path) -> None:
    cells = {"none": "false", "given": "true", "own": "'questions/{task}'"}
    toml = "".join(f"[cells.{name}]\ncorpus = {corpus}\n" for name, corpus in cells.items())
    (tmp_path / "grid.toml").write_text(f"title = ''\nrecipe = 'mkd-lstm'\ntasks = ['rte']\n{toml}")
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {})
    words = {run.cell: run.jobs[-1].argv for run in plan_runs(grid, HERE)}
    assert "--corpus" not in words["none"]
    used = {name: words[name][words[name].index("--corpus") + 1] for name in ("given", "own")}
    assert used == {"given": "copies/rte", "own": "questions/rte"}
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {}, without=["given"])
    plan_runs(grid, replace(HERE, corpus=None))  # a cell with its own corpus needs no other corpus


def test_students_can_be_fine_tuned_on_new_tasks() -> None:
    seven = ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    for run in plan_runs(load_grid("mkd-table-3", {"refine": None}, {}), HERE):
        distil, *tuned = run.jobs
        assert distil.argv[:4] == ("distill", "mkd-lstm", "--tasks", run.task_spec)
        assert [job.argv[:5] for job in tuned] == [
            ("finetune", "--model", str(distil.out), "--task", task) for task in seven
        ]
        assert run.scored == tuple(tuned) and len({job.out for job in tuned}) == 7


STEPS = """
title = "Steps"
recipe = "mlkd-bert-4"
tasks = ["rte,stsb"]
reference = "labels"
[set]
"student.max_length" = 24
[refine]
encoder = "minilm"
set = { "train.epochs" = 7 }
[cells.distilled]
then = "finetune"
[cells.labels]
set = { supervision = "labels", "train.epochs" = 9 }
steps_of = "distilled"
[cells."one stage"]
set = { one_stage = true }
steps_of = "distilled"
[cells."one stage, no steps_of"]
set = { one_stage = true }
[cells."another teacher"]
recipe = "refine"
[cells."tuned teacher"]
recipe = "finetune"
"""


def test_a_grid_with_all_kinds_of_runs(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(STEPS, encoding="utf-8")
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {"train.batch_size": 8})
    teacher, *cells = plan_runs(grid, GridInputs("pocket", None, tmp_path, epochs=7))
    by_name = {run.cell: run for run in cells}
    (refine,) = teacher.jobs
    assert refine.argv[0] == "refine" and {"minilm", "train.epochs=7", "rte,stsb"} <= set(refine.argv)
    assert "train.batch_size=8" not in refine.argv, "settings of cells are not those of the teacher"

    start, distill, *tuned = by_name["distilled"].jobs
    assert start == refine and distill.argv[distill.argv.index("--teacher") + 1] == str(refine.out)
    for words in (distill.argv, by_name["one stage, no steps_of"].jobs[-1].argv):
        assert {"stages.layers.train.epochs=4", "stages.prediction.train.epochs=3"} <= set(words), (
            "7 epochs in the proportion 20 to 15"
        )
    assert [job.argv[:5] for job in tuned] == [
        ("finetune", "--model", str(distill.out), "--task", task) for task in ("rte", "stsb")
    ]
    assert by_name["distilled"].scored == tuple(tuned)
    assert all(distill in job.needs and "--epochs" not in job.argv for job in tuned)

    labels = by_name["labels"].jobs[-1]
    assert distill in labels.needs and "--epochs" not in labels.argv
    assert "train.epochs=9" not in labels.argv, "it would take precedence over --steps"
    assert labels.command[-2:] == ["--steps", f"STEPS OF {distill.out}"]
    distill.out.mkdir(parents=True)
    training = {"layers": {"steps": 40}, "prediction": {"steps": 2}}
    (distill.out / "run.json").write_text(json.dumps(finished_record(training=training)))
    assert labels.command[-2:] == ["--steps", "42"]

    # Seven epochs in all; 42 steps in seven epochs are epochs of 6 steps.
    for stage, epochs in (("layers", 5), ("prediction", 2)):
        training[stage] |= {"history": [{"epoch": n + 1, "scores": {}} for n in range(epochs)]}
    (distill.out / "run.json").write_text(json.dumps(finished_record(training=training)))
    assert labels.command[-4:] == ["--set", "train.steps_per_epoch=6", "--steps", "42"]
    own = replace(labels, argv=(*labels.argv, "--set", "train.steps_per_epoch=21"))
    assert own.command == [*own.argv, "--steps", "42"], "its own interval takes precedence"

    merged = by_name["one stage"].jobs[-1]
    assert "train.steps_per_epoch=6" in merged.command
    assert merged.command[-4:] == (
        ["--set", "stages.layers.train.steps=24", "--set", "stages.prediction.train.steps=18"]
    ), "42 steps in the proportion 20 to 15"

    (other,) = by_name["another teacher"].scored
    assert other.argv[0] == "refine" and other.out != refine.out
    assert other.command[-2:] == ["--steps", "42"], "it has no unlabelled rows, so it takes these steps"
    assert [job.argv[:3] for job in by_name["tuned teacher"].scored] == 2 * [
        ("finetune", "--model", str(refine.out))
    ]
    with pytest.raises(UserError, match="less than one epoch for each stage of the cell 'distilled'"):
        plan_runs(grid, GridInputs("pocket", None, tmp_path, epochs=1))


EPOCHS = """
title = "Epochs"
recipe = "mkd-lstm"
tasks = ["rte,sst2"]
reference = "joint"
[cells.alone]
tasks = ["rte", "sst2"]
set = { "train.batch_size" = 4 }
[cells.joint]
set = { "train.batch_size" = 8, "train.steps" = 3 }
[cells.same]
set = { "train.batch_size" = 8 }
[cells."same batches alone"]
tasks = ["rte", "sst2"]
set = { "train.batch_size" = 8 }
[cells."one of them"]
tasks = ["rte"]
set = { "train.batch_size" = 16 }
[cells.more]
tasks = ["rte,sst2,cola"]
set = { "train.batch_size" = 16 }
[cells.stages]
recipe = "mlkd-bert-4"
[cells.labels]
set = { supervision = "labels" }
steps_of = "stages"
[cells.tuned]
recipe = "finetune"
[cells.copies]
corpus = true
set = { "train.batch_size" = 8 }
"""


def test_cells_with_other_batch_sizes_or_rows_train_for_the_steps_of_the_reference(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(EPOCHS, encoding="utf-8")
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {})
    planned = plan_runs(grid, GridInputs("pocket", "teach", tmp_path, corpus="copies", epochs=4))
    jobs = {(run.cell, run.task_spec): run.trained for run in planned}
    (joint,) = jobs["joint", "rte,sst2"]
    for cell, specs in (
        ("joint", ["rte,sst2"]),
        ("same", ["rte,sst2"]),
        ("same batches alone", ["rte", "sst2"]),
        ("more", ["rte,sst2,cola"]),  # the reference says nothing about cola
    ):
        assert all(jobs[cell, spec][0].command[-2:] == ["--epochs", "4"] for spec in specs), cell
    assert jobs["alone", "rte"][0].command[-2:] == ["--steps", f"STEPS OF {joint.out}"]
    joint.out.mkdir(parents=True)
    record = finished_record(
        training={"steps": 40, "history": [{"epoch": n, "scores": {}} for n in range(5)]},
        rows={task: {"train": rows, "unlabelled": 0, "validation": 1} for task, rows in TRAINED.items()},
    )
    (joint.out / "run.json").write_text(json.dumps(record))

    def lengths(cell: str, task_spec: str = "rte,sst2") -> list[list[str]]:
        return [job.command[len(job.argv) :] for job in jobs[cell, task_spec]]

    evaluated = "train.steps_per_epoch="
    assert lengths("alone", "rte") == [["--set", f"{evaluated}4", "--steps", "13"]]
    assert lengths("alone", "sst2") == [["--set", f"{evaluated}7", "--steps", "27"]], "40 steps in all"
    assert lengths("one of them", "rte") == [["--set", f"{evaluated}4", "--steps", "13"]]
    assert lengths("copies") == [["--set", f"{evaluated}10", "--steps", "40"]]
    assert lengths("tuned") == lengths("alone", "rte") + lengths("alone", "sst2")
    stages = [f"stages.{name}.train.steps={steps}" for name, steps in (("layers", 23), ("prediction", 17))]
    assert lengths("stages") == [["--set", f"{evaluated}10", "--set", stages[0], "--set", stages[1]]]
    assert str(jobs["stages", "rte,sst2"][0].out) in lengths("labels")[0][-1]

    rows = {name: TableRow(name, steps=[8, 8]) for name in grid.cells}
    grid = grid.model_copy(
        update={"cells": {name: grid.cells[name] for name in ("alone", "same batches alone")}}
    )
    assert not _steps_note(grid, rows)
    rows["alone"].steps = [3, 5]
    (note,) = _steps_note(grid, rows)
    assert note.endswith(": alone 4 in each of 2 runs, same batches alone 8 in each of 2 runs.")


CONTROLS = """
title = "Controls"
recipe = "layerwise-3"
tasks = ["rte"]
[cells.three]
control = true
limit = 500
corpus = true
set = { "student.transformer.layers" = 2 }
[cells.slow]
recipe = "waldorf"
control = true
steps_of = "three"
"""


def test_a_control_is_the_same_student_on_labels_alone(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(CONTROLS, encoding="utf-8")
    grid = load_grid(str(file), {}, {"train.lr": 1e-3})
    assert list(grid.cells) == ["three", "three, labels", "slow", "slow, labels"]
    three, control, *_ = (run.trained[0] for run in plan_runs(grid, replace(HERE, teacher="teach")))
    settings = {"student.transformer.layers=2", "train.lr=0.001"}
    assert settings <= set(three.argv) and settings <= set(control.argv)
    own = {"supervision='labels'", "student.transformer.init='encoder'"}
    assert {word.replace('"', "'") for word in control.argv} >= own
    assert "--corpus" in three.argv and "--corpus" not in control.argv
    assert control.steps_of == (three,) and control.argv[control.argv.index("--limit") + 1] == "9"
    assert (
        grid.cells["slow, labels"].set["slow_build"] == 0 and grid.cells["slow, labels"].steps_of == "three"
    )
    assert list(load_grid(str(file), {}, {}, ["slow"]).cells) == ["three", "three, labels"]
    assert list(load_grid(str(file), {}, {}, ["slow", "three, labels"]).cells) == ["three"]


def test_a_control_starts_from_the_same_run_on_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(CONTROLS.replace("control = true\nlimit", 'first = "minilm-6"\ncontrol = true\nlimit'))
    inputs = replace(HERE, teacher="teach", encoder="enc", text=tmp_path)
    three, control = (run.jobs[-1] for run in plan_runs(load_grid(str(file), {}, {}, ["slow"]), inputs))
    assert three.option("init") == control.option("init") is not None
    assert "supervision" in " ".join(control.argv) and "transformer.init" not in " ".join(control.argv)


def test_settings_given_with_a_grid_do_not_override_those_that_define_a_control(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(CONTROLS, encoding="utf-8")
    sets = {"supervision": "teacher", "student.transformer.init": "teacher"}
    grid = load_grid(str(file), {}, sets, ["slow"])
    assert sets.items() <= grid.sets_of("three").items()
    control = grid.sets_of("three, labels")
    assert control["supervision"] == "labels" and control["student.transformer.init"] == "encoder"
    with pytest.raises(UserError, match=r"(?s)this one does so itself.*leave the cell 'three, labels' out"):
        load_grid(str(file), {}, {"supervision": "labels"})
    alone = load_grid(str(file), {}, {"supervision": "labels"}, ["slow", "three, labels"])
    assert list(alone.cells) == ["three"]
    message = "(?s)'slow' trains for as many steps as 'three', which is left out.*also leave 'slow' out"
    with pytest.raises(UserError, match=message):
        load_grid(str(file), {}, {}, ["three"])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "[cells.'three, labels']",
            "cell 'three': control adds the cell 'three, labels', which already exists",
        ),
        (
            "[cells.x]\ncontrol = true\nrecipe = 'finetune'",
            "cell 'x': `control` applies only to recipes for mtkd distill",
        ),
        ("[cells.x]\ncontrol = true\nset = { supervision = 'labels' }", "but this one does so itself"),
        ("[cells.x]\ncontrol = true\nset = { 'student.kindd' = 'bilstm' }", "cell 'x': .*student.kindd"),
        (
            "[cells.x]\ncontrol = 'maybe'",
            r"cells.x.control = 'maybe' is not valid\n  expected: true \\| false",
        ),
        ("[cells.x]\nset = 3", r"cells.x.set = 3 is not valid\n  expected: table of anything"),
    ],
)
def test_cells_without_a_possible_control_are_errors(cell: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(f"{CONTROLS}\n{cell}\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_grid(str(tmp_path / "grid.toml"), {}, {})


TRAINED = {"rte": 100, "sst2": 200}


def test_seeds_can_have_their_own_teacher_and_cells_their_own_number_of_rows() -> None:
    changes = {"seeds": [4, 5], "refine": {"encoder": "minilm", "seed": "each"}}
    grid = load_grid("scripts/grids/few_labels.toml", changes, {})
    teachers, students = plan_runs(grid, HERE)[:2], plan_runs(grid, HERE)[2:]
    assert [run.seed for run in teachers] == [4, 5]
    one, other = (run.jobs[0] for run in teachers)
    assert one.out != other.out and one.argv[one.argv.index("--seed") + 1] == "4"
    for run in students:
        refine, words = run.jobs[0], run.jobs[-1].argv
        assert refine == teachers[run.seed - 4].jobs[0]
        assert words[words.index("--teacher") + 1] == str(refine.out)
        rows = "10000" if run.cell.endswith(", distilled") else "9"
        assert words.count("--limit") == 1 and words[words.index("--limit") + 1] == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps_of = 'another'\n", r"(?s)unknown cell \(steps_of\) 'another'.*hint: name a table \[cells"),
        (
            "steps_of = 'distilled'\ntasks = ['rte']\n",
            "(?s)'distilled', which is trained on other.*hint: name",
        ),
        ("then = 'mkd-lstm'\n", "cell 'x': unknown finetune recipe 'mkd-lstm'"),
        ("recipe = 'finetune'\nthen = 'finetune'\n", "`then` cannot be used with a recipe for mtkd finetune"),
        ("recipe = 'refine'\ncorpus = true\n", "`corpus` cannot be used with a recipe for mtkd refine"),
        ("[cells.teacher]\n", "a cell is called 'teacher'"),
    ],
)
def test_incompatible_cells_are_errors(change: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(f"{STEPS}[cells.x]\n{change}", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_grid(str(tmp_path / "grid.toml"), {}, {})
    with pytest.raises(UserError, match=r"unknown row named as the reference: 'y'"):
        load_grid("mlkd-table-8", {"reference": "y"}, {})
    with pytest.raises(UserError, match=r"(?s)'teacher'.*hint: pass `teacher`, which gets a row"):
        load_grid("mlkd-table-8", {"reference": "teacher"}, {})
    load_grid("mlkd-table-8", {"reference": "teacher"}, {}, has_teacher=True)
    with pytest.raises(UserError, match=r"\[refine\] sets train.seed"):
        load_grid("mlkd-table-8", {"refine": {"set": {"train": {"seed": 3}}}}, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("recipe = 'mlkd'", "cell 'two': unknown recipe 'mlkd'"),
        ("[cells.two]\nset = {'terms.mha.splitz' = 2}", r"cell 'two': unknown setting 'terms.mha.splitz'"),
        ("taks = ['rte']", "unknown setting 'taks'"),
        ("recipe = ", "is not valid TOML"),
        (
            "[cells.two]\nsteps_of = 'one'\n[cells.one]\nsteps_of = 'two'",
            "steps_of names 'one', which does not choose its number of steps itself",
        ),
        ("refine = { seed = 'x' }", r"refine.seed = 'x' is not valid\n  expected: integer >= 0.* \| each"),
        ("bench = { seq_len = 65_537 }", r"bench.seq_len = 65537 .*\n  expected: .*65,?536"),
        ("bench = { batches = [8_193] }", r"bench.batches.0 = 8193 .*\n  expected: .*8,?192"),
        ("bench = { batches = [64, 64] }", r"batches = \[64, 64\] .*\n  expected: a list without repeated"),
        ("seeds = []", r"seeds = \[\] .*\n  expected: list of .*, with at least one entry"),
        ("tasks = []", r"tasks = \[\] .*\n  expected: list of text, with at least one entry"),
        ("tasks = ['rte, rte']", r"tasks.0 = 'rte, rte' is not valid\n  expected: each task once"),
        ("[cells.two]\nthen = { recipe = 'finetune', tasks = 'rte,rte' }", "expected: each task once"),
        ("bench = { rounds = 10_001 }", r"bench.rounds = 10001 .*\n  expected: .*10,?000"),
        ("refine = { encoder = [1] }", r"refine.encoder = \[1\] is not valid\n  expected: text"),
        (
            "[cells.two]\ncorpus = [1]",
            r"cells.two.corpus = \[1\] is not valid\n  expected: true \| false \| text",
        ),
    ],
)
def test_invalid_grids_are_errors(change: str, message: str, tmp_path: Path) -> None:
    whole = {"title": "''", "recipe": "'mlkd-bert-4'", "tasks": "['rte']"}
    key = change.split(" = ")[0]
    lines = [f"{name} = {value}" for name, value in whole.items() if name != key]
    cells = "" if change.startswith("[cells") else "\n[cells.two]\n"
    (tmp_path / "grid.toml").write_text("\n".join([*lines, change, cells]), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_grid(str(tmp_path / "grid.toml"), {}, {})


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        (
            "first = 'mkd-lstm'",
            [
                "its `first` cannot be trained on plain text: the term logits",
                "expected: recipes that use hidden",
            ],
        ),
        (
            "first = 'tinybert-4'",
            ["tinybert-4 trains for epochs", "such as minilmv2-6x384", "another recipe"],
        ),
        (
            "first = { recipe = 'minilm-6', set = { supervision = 'labels' } }",
            ["can learn from it only with a teacher", "expected: a recipe that learns from a teacher"],
        ),
        (
            "recipe = 'mkd-lstm'\nfirst = 'minilm-6'",
            ["its student (bilstm-biattention) is not a Transformer", "hint: give the cell `first = false`"],
        ),
        (
            "first = { recipe = 'minilm-6', set = { 'student.transformer.layers' = 2 } }",
            [
                "its student has student.transformer.layers=3, but the model of `first` has 2",
                "up to 2 layers",
            ],
        ),
        (
            "recipe = 'tinybert-4'\nfirst = 'minilmv2-6x384'",
            ["student.transformer.hidden_size=312, but the model", "expected: hidden_size=384"],
        ),
        ("recipe = 'hsk-rosita-6'\nfirst = 'minilmv2-6x384'", ["its student is pruned from the teacher"]),
    ],
)
def test_invalid_recipes_on_text_and_invalid_starting_points_are_errors(
    cell: str, lines: list[str], tmp_path: Path
) -> None:
    text = f"title = ''\nrecipe = 'layerwise-3'\ntasks = ['rte']\n[cells.x]\n{cell}\n"
    (tmp_path / "grid.toml").write_text(text, encoding="utf-8")
    grid = load_grid(str(tmp_path / "grid.toml"), {}, {})
    for check in (plan_runs, check_paths):
        with pytest.raises(UserError) as caught:
            check(grid, HERE)
        assert str(caught.value).startswith("cell 'x': ") and all(line in str(caught.value) for line in lines)


def test_the_output_cannot_be_the_directory_of_the_teacher(mtkd: Callable, tiny_teacher: Path) -> None:
    words = ["compare", "mlkd-table-8", "--data", "pocket", "--teacher", tiny_teacher, "--tasks", "rte"]
    answered = mtkd(*words, "--out", tiny_teacher / "table", "--dry-run")
    assert answered.code == 2 and "the path of the teacher" in answered.err, answered.err
    answered = mtkd(*words, "--out", tiny_teacher)
    assert answered.code == 2, answered.err
    assert f"error: --out {tiny_teacher} is the path of the teacher: it would be overwritten" in answered.err


def test_the_table_holds_mean_and_standard_deviation_over_seeds() -> None:
    row = TableRow(
        "a",
        {"rte": [0.5, 0.6], "stsb": [0.2]},
        parameters=4_000_000,
        steps=[1000],
        seconds=[10.0, 20.0],
        speed={64: 1.5},
        ms={64: 2.0},
    )
    grid = load_grid("mlkd-table-8", {}, {})
    lines = Table(grid, ["rte", "stsb"], [row, TableRow("b")], {}).lines()
    named = Table(grid, ["rte"], [TableRow("a|b", {"rte": [0.5]})], {}).markdown()
    assert "| a\\|b | 50.0 |" in named
    assert lines == [
        ["a", "55.0 ± 7.1", "20.0", "37.5", "4.0M", "1,000", "15 s", "1.50x (2.0 ms)"],
        ["b", "-", "-", "-", "-", "-", "-", "-"],
    ]
    row.gpu_speed, row.gpu_ms = {64: 3.0}, {64: 0.5}
    table = Table(grid, ["rte", "stsb"], [row], {})
    assert table.columns()[-1] == "speed on GPU at 64" and table.lines()[0][-1] == "3.00x (0.5 ms)"
    frame = table.to_frame()
    assert frame.loc["a", "rte"] == pytest.approx(0.55) and frame.loc["a", "ms at 64"] == 2.0
    printed = repr(
        Table(grid, ["rte"], [row, TableRow("b", failed={"rte, seed 0": "killed"})], {}, ["A note."])
    )
    assert printed.startswith(f"{grid.title}\n") and "\na  55.0 ± 7.1" in printed
    assert printed.endswith("A note.\nfailed: b, rte, seed 0: killed")


def test_the_share_of_the_gain_of_the_teacher_over_a_constant_prediction() -> None:
    scores = {"teacher": (0.9, 0.7), "a": (0.8, 0.6), "failed": (), CONSTANT: (0.6, 0.2)}
    rows = [TableRow(name, {t: [v] for t, v in zip(("rte", "stsb"), pair)}) for name, pair in scores.items()]  # noqa: B905
    table = Table(load_grid("mlkd-table-8", {}, {}), ["rte", "stsb"], rows, {})
    column = table.columns().index("share of teacher's gain")
    assert [line[column] for line in table.lines()] == ["100%", "75%", "-", "0%"]
    assert [row["share_of_teacher_gain"] for row in table.to_json()["rows"]][2] is None
    assert not table.gain_notes()
    rows[0].scores["stsb"] = [0.2]
    assert "prediction on stsb. The" in table.gain_notes()[0]
    rows[0].scores = rows[3].scores
    assert not table.gain_notes() and "share of teacher's gain" not in table.columns()


def test_tables_have_the_columns_of_the_papers(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text("title = ''\nrecipe = 'mkd-lstm'\ntasks = ['mrpc']\n[cells.x]\n")
    metrics = {"mrpc F1": [0.5], "mrpc acc": [0.25]}
    monkeypatch.setattr(
        "mtkd.jobs.grid.compare.run_grid",
        lambda grid, *_: Table(grid, ["mrpc"], [TableRow("x", {"mrpc": [0.375]}, metrics=metrics)], {}),
    )
    words = ("--data", "pocket", "--teacher", "teacher", "--out", tmp_path / "out")

    def has_metrics(*given: Any) -> bool:
        done = mtkd("compare", *given, *words)
        assert done.code == 0 and "37.5" in done.out
        return "mrpc F1" in done.out

    assert has_metrics("mlkd-table-8") and not has_metrics("mlkd-table-8", "--columns", "primary")
    assert not has_metrics(tmp_path / "own.toml") and has_metrics(tmp_path / "own.toml", "--columns", "all")
    del metrics["mrpc F1"]
    assert not has_metrics("mlkd-table-8"), "the first table has this column"


def test_the_plot_connects_the_pareto_front(tmp_path: Path) -> None:
    costs = {"slow": 9.0, "fast": 1.0, "beaten": 5.0, "dear": 20.0}
    scores = {"slow": 80.0, "fast": 50.0, "beaten": 45.0, "dear": 80.0}
    assert pareto_front(costs, scores) == ["fast", "slow"]
    grid = load_grid("mkd-table-2", {}, {})
    rows = [
        TableRow(name, {"rte": [score / 100]}, parameters=7, seconds=[3.0], ms={64: costs[name]})
        for name, score in scores.items()
    ]
    rows.append(TableRow(CONSTANT, {"rte": [0.4]}))
    grid = grid.model_copy(update={"bench": grid.bench.model_copy(update={"batches": [64]})})
    drawn = plot_table(Table(grid, ["rte"], rows, {}), tmp_path / "compare.png")
    assert drawn is not None and drawn.read_bytes().startswith(b"\x89PNG")
    assert plot_table(Table(grid, ["rte"], rows[-1:], {}), tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_a_run_of_a_different_command_is_not_taken_for_finished(tmp_path: Path) -> None:
    job = Job(("distill", "x"), tmp_path / "run")
    assert not job.finished
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(finished_record()))
    (tmp_path / "run.command.json").write_text('["distill", "x"]')
    assert job.finished and not Job(("distill", "y"), tmp_path / "run").finished
    check_same_commands([job])
    changed = Job(("distill", "y"), tmp_path / "run")
    with pytest.raises(
        UserError, match=r"run holds a run with other options: `... distill x ...`, not `... distill y ...`\n"
    ) as refused:
        check_same_commands([changed])
    assert refused.value.hint and "another `out`, or remove this directory" in refused.value.hint


def test_all_runs_with_other_options_are_named_in_one_error(tmp_path: Path) -> None:
    runs = [tmp_path / cell / f"rte-{seed}" for cell in ("all", "one") for seed in (0, 1)]
    for run in runs:
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps(finished_record()))
        run.with_name(f"{run.name}.command.json").write_text('["distill", "x"]')
    jobs = [Job(("distill", "x" if run == runs[2] else "y"), run) for run in runs]
    listed = f"; in all, 3 runs have other options, in {tmp_path / 'all'}, {runs[3]}\n"
    with pytest.raises(UserError, match=re.escape(listed)) as refused:
        check_same_commands(jobs)
    assert "remove these directories" in str(refused.value.hint)


def test_a_moved_comparison_is_still_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(root: Path, data: str, teacher: str = "a-0") -> Job:
        words = ("distill", "x", "--data", data, "--teacher", str(root / "teacher" / teacher))
        out = root / "runs" / "x" / "a-0"
        return Job((*words, "--out", str(out)), out)

    out = tmp_path / "before" / "few"
    first = job(out, str(tmp_path / "data"))
    first.out.mkdir(parents=True)
    (first.out / "run.json").write_text(json.dumps(finished_record()))
    first.command_file.write_text(json.dumps(list(first.argv)))
    moved = out.rename(tmp_path / "few")
    monkeypatch.chdir(tmp_path)
    for root in (moved, Path("few")):
        assert job(root, str(tmp_path / "data")).finished
        assert not job(root, str(tmp_path / "other")).finished
        assert not job(root, str(tmp_path / "data"), teacher="b-0").finished


def test_a_finished_run_is_repeated_if_its_rows_or_model_changed(
    tiny_encoder: Path, write_task: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"text": f"row {n}", "label": "ab"[n % 2]} for n in range(24)]
    task = str(write_task(tmp_path, "classify", "ab", train=rows, validation=rows[:8]))
    options: dict[str, Any] = {"limit": 16, "epochs": 1}
    teacher = api.refine(str(tiny_encoder), tasks=task, out=tmp_path / "teacher", **options)
    job = Job(("finetune", "--model", str(teacher.path)), tmp_path / "tuned")
    api.finetune(teacher, task=task, out=job.out, lr=1e-3, **options)
    job.command_file.write_text(json.dumps(job.command))
    inputs = GridInputs("", None, tmp_path)
    check_finished_inputs([job], inputs)
    (tmp_path / "validation.jsonl").rename(tmp_path / "moved.jsonl")
    check_finished_inputs([job], inputs)  # missing rows cannot be compared
    write_task(tmp_path, "classify", "ab", train=rows, validation=rows[1:9])
    with pytest.raises(UserError, match=r"the rows of topics/validation changed after the run in .*tuned"):
        check_finished_inputs([job], inputs)
    write_task(tmp_path, "classify", "ab", train=rows, validation=rows[:8])
    options |= {"overwrite": True, "settings": {"train.keep": "last"}}
    api.refine(str(tiny_encoder), tasks=task, out=teacher.path, **options)
    with pytest.raises(UserError, match=r"the model .*teacher changed after the run in .*tuned"):
        check_finished_inputs([job], inputs)


def test_a_finished_run_is_repeated_if_its_corpus_text_or_teacher_changed(
    tiny_encoder: Path, write_task: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"text": f"the row of number {n}", "label": "ab"[n % 2]} for n in range(24)]
    task = str(write_task(tmp_path, "classify", "ab", train=rows, validation=rows[:8]))
    more = tmp_path / "more.csv"

    def write_more(*numbers: int) -> None:
        more.write_text("\n".join(["text", *(f"more {n}" for n in numbers)]) + "\n", encoding="utf-8")

    write_more(1, 2, 3)
    teacher = api.refine(str(tiny_encoder), tasks=task, out=tmp_path / "teacher", epochs=1).path
    corpus = tmp_path / "copies"
    made: dict[str, Any] = {
        "data": None,
        "tasks": task,
        "out": corpus,
        "unlabelled": {"topics": more},
        "copies": 1,
    }
    api.augment.mask(**made)
    given = {"teacher": f"topics={teacher}", "corpus": str(corpus)}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    job = Job(("distill", "layerwise-3", *words), tmp_path / "student")
    small = {"student.transformer.layers": 1, "train.epochs": 1}
    options: dict[str, Any] = {"unlabelled": {"topics": str(more)}, "settings": small, **given}
    api.distill("layerwise-3", tasks=task, out=job.out, **options)
    without_corpus = Job(("distill", "layerwise-3", *words[:2]), tmp_path / "other")
    api.distill("layerwise-3", tasks=task, out=without_corpus.out, **options | {"corpus": None})
    for finished in (job, without_corpus):
        finished.command_file.write_text(json.dumps(finished.command))
    inputs = GridInputs("", None, tmp_path, unlabelled={"topics": [str(more)]})

    def change(finished: Job = job) -> str:
        with pytest.raises(UserError) as refused:
            check_finished_inputs([finished], inputs)
        return refused.value.problem

    check_finished_inputs([job, without_corpus], inputs)
    more.rename(tmp_path / "moved.csv")
    check_finished_inputs([job, without_corpus], inputs)
    write_more(1, 2, 4)
    assert "the rows of topics/unlabelled changed" in change(without_corpus)
    assert "the rows of topics/train changed" in change()  # their copies can no longer be added
    api.augment.mask(**made, seed=1, overwrite=True)
    assert f"the corpus {corpus} changed" in change()
    write_more(1, 2, 3)
    api.augment.mask(**made, overwrite=True)
    check_finished_inputs([job], inputs)
    api.refine(str(tiny_encoder), tasks=task, out=teacher, settings={"train.keep": "last"}, overwrite=True)
    assert f"the teacher topics={teacher} changed" in change()


def test_a_store_replaces_the_teacher(tmp_path: Path) -> None:
    grid = load_grid("hsk-tinybert-4-grid", {"tasks": ["rte"]}, {})
    inputs = GridInputs("pocket", None, tmp_path, store="stores/{task}")
    words = plan_runs(grid, inputs)[0].jobs[-1].argv
    assert "--teacher" not in words and words[words.index("--store") + 1] == "stores/rte"
    assert len(grid.cells) == 103, "100 configurations, predictions alone, and everything twice"


MORE = """
title = "More text"
recipe = "layerwise-3"
tasks = ["rte", "sst2"]
[refine]
encoder = "minilm"
[cells.distilled]
[cells.labels]
set = { supervision = "labels" }
steps_of = "distilled"
[cells."only labels"]
set = { "terms.logits.weight" = 0, "terms.hidden" = { loss = "labels" } }
[cells.tuned]
recipe = "finetune"
"""


def test_unlabelled_rows_are_given_to_the_cells_that_can_use_them(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("more.csv", "others.csv"):
        (tmp_path / name).write_text("sentence1,sentence2\na,b\n", encoding="utf-8")
    (tmp_path / "grid.toml").write_text(MORE, encoding="utf-8")
    words = ("compare", tmp_path / "grid.toml", "--data", "pocket", "--out", tmp_path / "out")
    files = ("--unlabelled", "rte=more.csv", "--unlabelled", "rte=others.csv", "--unlabelled", "sst2=test")
    dry = mtkd(*words, "--dry-run", *files, "--unlabelled-limit", 40)
    assert "'STEPS OF DIR' is the number of steps of the run in DIR" in dry.err
    shown = dry.out.splitlines()
    given = {"rte": "--unlabelled rte=more.csv --unlabelled rte=others.csv", "sst2": "--unlabelled sst2=test"}
    with_them = [line for line in shown if "--unlabelled" in line]
    assert len(shown) == 2 + 2 * 4 and len(with_them) == 2
    for line, task in zip(with_them, ("rte", "sst2"), strict=True):
        assert f"--tasks {task} " in line and "runs/distilled/" in line
        assert f"{given[task]} --unlabelled-limit 40" in line
        assert line.count("--unlabelled ") == given[task].count("--unlabelled ")
    unknown = mtkd(*words, "--dry-run", "--unlabelled", "stsb=more.csv")
    assert unknown.code == 2 and "--unlabelled names the task 'stsb'" in unknown.err
    useless = mtkd(*words, "--dry-run", *files, "--set", "supervision=labels")
    assert useless.code == 2 and "no cell of the grid can learn from unlabelled rows" in useless.err
    missing = mtkd(*words, "--dry-run", "--unlabelled", "rte=none.csv")
    assert missing.code == 2 and "no file of unlabelled rows of task 'rte': none.csv" in missing.err
    defaults = {name: parameter.default for name, parameter in signature(compare).parameters.items()}
    paths = {"rte": [Path("a.csv"), Path("b.csv")]}
    changed = {"grid": tmp_path / "grid.toml", "out": tmp_path, "data": "pocket", "unlabelled": paths}
    grid, inputs = plan_grid(**defaults | changed)
    planned = [run.scored[0].argv for run in plan_runs(grid, inputs) if run.cell == "distilled"]
    assert ["rte=a.csv" in words and "rte=b.csv" in words for words in planned] == [True, False]
