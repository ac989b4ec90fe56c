"""The command line: its output, and one clear error with exit code 2 for invalid usage."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtkd.recipes import load_settings, recipe_names
from mtkd.run_record import kept_weights
from mtkd.settings import SETTINGS_OF_COMMAND
from tasks.common.errors import UserError, warn_caller
from tasks.common.locks import LOCK
from tasks.common.records import write_record

TINY = ("--limit", "32", "--eval-limit", "16", "--epochs", "1", "--batch", "16", "--quiet")
SMALL = (
    *("--set", "student.bilstm.hidden_size=8", "--set", "student.bilstm.output_size=8"),
    *("--set", "student.bilstm.projection_size=8", "--set", "student.bilstm.embedding_size=8"),
)


PREDICT = ("predict", "--task", "rte", "--in", "in.jsonl", "--out", "out.jsonl", "--model")


def assert_rejected(answered, *parts: str) -> None:
    """Check that a command failed with code 2 and an error of a few lines that contains these parts."""
    assert answered.code == 2, answered
    assert "Traceback" not in answered.err and "error: " in answered.err
    for part in parts:
        assert part in answered.err, answered.err


def test_help_imports_click_and_nothing_else() -> None:
    """Help appears instantly, because it needs no slow imports."""
    code = "import runpy, sys; sys.argv = ['mtkd', '--help']; before = set(sys.modules)\n"
    code += "try: runpy.run_module('mtkd.cli.main', run_name='__main__')\n"
    code += "finally: print('imported:', *set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "distill" in done.stdout, done.stderr
    imported = set(done.stdout.rpartition("imported:")[2].split())
    packages = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert packages == {"click", "mtkd", "tasks"}
    assert {name for name in imported if name.startswith("tasks")} == {
        "tasks",
        "tasks.common",
        "tasks.common.errors",
        "tasks.common.urls",
    }


def test_hints_name_the_command_however_it_was_started() -> None:
    command = [sys.executable, "-m", "mtkd.cli.main", "predict", "--modle"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "hint: mtkd predict --help" in done.stderr


def test_a_misspelt_path_is_not_taken_for_a_name_on_the_hub(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "student").mkdir(parents=True)
    assert_rejected(
        mtkd(*PREDICT, "runs/studnet"), "no directory 'runs/studnet' (did you mean 'runs/student'?)"
    )
    assert "hub" not in mtkd(*PREDICT, "runs/studnet").err
    (tmp_path / "runs" / "s1").mkdir()
    (tmp_path / "runs" / "s1" / "run.json").touch()
    assert_rejected(mtkd(*PREDICT, "runs/s2"), "no directory 'runs/s2' (did you mean 'runs/s1'?)")
    distill = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--out", "out", "--teacher")
    for words in (PREDICT, distill):
        for path in ("run/student/", "run/studnet"):
            answered = mtkd(*words, path)
            assert_rejected(answered, f"{path.rstrip('/')}", "(did you mean 'runs/student'?)")
            assert "hint: check the path" not in answered.err and "--encoder" not in answered.err
    answered = mtkd(*distill, "nonsense/")
    assert_rejected(
        answered, "there is no directory nonsense\n", "hint: check the path; a pretrained encoder"
    )


def test_a_model_of_several_tasks_requires_a_task(mtkd: Callable, tiny_teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"sentence": "a fine film"}\n')
    files = ("--in", tmp_path / "rows.jsonl", "--out", tmp_path / "out.jsonl")
    expected = "expected: one task; the model knows sst2, rte, stsb\n  hint: pass one of them as --task NAME"
    assert_rejected(mtkd("predict", "--model", tiny_teacher, *files), "no task was given", expected)


@pytest.mark.parametrize("words", [(), ("data",), ("bench",), ("augment",), ("augment", "questions")])
def test_a_command_group_without_a_command_prints_its_help(mtkd: Callable, words: tuple[str, ...]) -> None:
    answered = mtkd(*words)
    assert (answered.code, answered.err) == (0, "") and answered.out.startswith("Usage: ")


def test_settings_fit_a_narrow_terminal(mtkd: Callable) -> None:
    lines = mtkd("recipes", "show", "hsk-tinybert-4", "--all").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("student.transformer.intermediate_size = 1200 ") for line in lines)


def test_one_blank_line_follows_a_table(mtkd: Callable) -> None:
    printed = mtkd("tasks").out
    assert "\n\n\n" not in printed and "\n\nGroups of tasks\n\n" in printed
    assert "\n\nA task of your own" in printed


def test_every_recipe_loads() -> None:
    for command in SETTINGS_OF_COMMAND:
        for name in recipe_names(command):
            assert load_settings(name, command, {}).name == name


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["distil"], ["unknown command 'distil'", "'distill'"]),
        (["distill", "mkd-lstn", "--data", "pocket", "--out", "x"], ["'mkd-lstn'", "'mkd-lstm'"]),
        (
            ["store", "biuld"],
            ["unknown command 'biuld' (did you mean 'build'?)", "expected: build, info, plan"],
        ),
        (["recipes", "show", "mkd"], ["unknown recipe 'mkd'"]),
        (["data", "check", "--data", "pocket", "--tasks", "rtee"], ["unknown task 'rtee'", "'rte'"]),
        (["data", "check", "--data", "nowhere"], ["'nowhere' does not exist"]),
        (
            ["refine", "--data", "pocket", "--out", "x", "--set", "train.leer=1"],
            ["'train.leer'", "'train.lr'"],
        ),
        (["refine", "--data", "pocket", "--out", "x", "--set", "train.lr"], ["key=value"]),
        (["refine", "--data", "pocket", "--out", "x", "--set", "train.epochs=abc"], ["integer > 0"]),
        (["refine", "--taks", "rte"], ["unknown option '--taks' (did you mean '--tasks'?)"]),
        (
            ["finetune", "--model", "x", "--data", "pocket", "--out", "y", "--task", "rte,sst2"],
            [
                "cannot fine-tune on 2 tasks (rte, sst2)",
                "(--task rte, then --task sst2); mtkd refine and mtkd",
            ],
        ),
        (["finetune", "--tasks", "rte"], ["(did you mean '--task'?)"]),
        (
            ["refine", "--out", "x"],
            ["'cola' names no files of its own", "--data DIR, --data pocket or --data hub"],
        ),
        (
            ["distill", "mkd-lstm", "--data", "pocket", "--out", "x", "--set", "terms.logit.weight=0"],
            ["unknown term 'logit' (did you mean 'logits'?)"],
        ),
        (
            ["distill", "mkd-lstm", "--data", "pocket", "--out", "x", "--teacher", "minlm"],
            ["'minlm' (did you mean 'minilm'?)", "mtkd refine --encoder minilm"],
        ),
        (
            ["refine", "--data", "pocket", "--out", "x", "--set", "train.lr=-1"],
            ["train.lr = -1", "number > 0"],
        ),
        (
            ["refine", "--data", "pocket", "--out", "x", "--tasks", "ax"],
            ["no training split", "--tasks mnli"],
        ),
        (
            ["distill", "mkd-lstm", "--data", "pocket", "--out", "x", "--tasks", "squad", "--teacher", "T"],
            ["there is no such directory"],
        ),
        (["refine", "--data", "pocket", "--out", "x", "--encoder", "no/such"], ["'no/such'"]),
        (["refine", "--data", "pocket", "--out", "x", "--epoch", "3"], ["--epoch"]),
        (
            ["distill", "mkd-lstm", "--data", "pocket", "--out", "x"],
            ["needs a teacher", "supervision=labels"],
        ),
        (
            ["distill", "mkd-lstm", "--data", "pocket", "--out", "x", "--teacher", "."],
            ["does not contain an mtkd model"],
        ),
        (["augment", "mask", "--data", "pocket", "--tasks", "rte", "--out", "x", "--p", "2"], ["p = 2"]),
        (
            ["augment", "mask", "--data", "pocket", "--tasks", "rte", "--out", "x", "--copies", "0"],
            ["--copies 0 is not valid", "1 to 100,000"],
        ),
        (["refine", "--data", "pocket", "--out", "x", "--encoder", "."], ["it has no config.json"]),
        (["data", "check", "--tasks", __file__], ["this is a file; mtkd init /", "writes a task file"]),
        (
            ["augment", "mask", "--data", "pocket", "--tasks", "rte", "--out", "x", "--copies", "rt=4"],
            ["'rte'"],
        ),
        (
            [
                "augment",
                "mask",
                "--data",
                "pocket",
                "--tasks",
                "rte",
                "--out",
                "x",
                "--unlabelled",
                "rt=a.csv",
            ],
            ["--unlabelled names the task 'rt', which this run does not train (did you mean 'rte'?)"],
        ),
        (
            [
                "augment",
                "replace",
                "--data",
                "pocket",
                "--tasks",
                "rte",
                "--out",
                "x",
                "--p-pos",
                "0",
                "--unlabelled",
                "rte=a",
            ],
            ["no file of unlabelled rows of task 'rte': a"],
        ),
        (
            [
                "augment",
                "mask",
                "--data",
                "pocket",
                "--tasks",
                "sst2",
                "--out",
                "x",
                "--unlabelled",
                "sst2=train",
            ],
            ["unlabelled rows (task 'sst2') must not have one"],
        ),
        (["evaluate", "--model", "none", "--data", "pocket"], ["there is no such directory"]),
        (["predict", "--model", "none"], ["--glue-submission"]),
        ([*PREDICT, "./none"], ["there is no directory './none'"]),
        ([*PREDICT, "~/none"], ["there is no directory '/"]),
        ([*PREDICT, "no/such/model"], ["there is no directory 'no/such/model'", "no/such either"]),
        ([*PREDICT, "none"], ["there is no such directory", "the hub", "an mtkd run", "a hub name"]),
        ([*PREDICT, "owner/model"], ["there is no such directory", "the hub"]),
        ([*PREDICT[:-3], "--out", "-", "--model", "none", "--json"], ["both write to standard output"]),
        (
            ["predict", "--model", "m", "--data", "pocket", "--glue-submission", "x", "--in", "y"],
            ["--in has no effect with --glue-submission"],
        ),
        (["data", "check", "--data", "pockets", "--tasks", "rte"], ["(did you mean 'pocket'?)"]),
        (["data", "check", "--data", "hup", "--tasks", "rte"], ["(did you mean 'hub'?)"]),
        (["refine", "--data", "pocket", "--out", "x", "--set", "train.metric=rte/acc"], ["'rte/accuracy'"]),
        (["refine", "--data", "pocket", "--out", "x", "--set", "train=5"], ["train = 5"]),
        (["distill", "mkd-lstm", "--data", "pocket", "--out", "x", "--set", "terms=5"], ["terms = 5"]),
        (["refine", "--data", "pocket", "--out", "x", "--set", "max_length=600"], ["512 positions"]),
        (
            [
                "finetune",
                "--model",
                "m",
                "--task",
                "rte",
                "--data",
                "pocket",
                "--out",
                "x",
                "--set",
                "train.lr=1",
            ],
            ["learning_rates=[1]"],
        ),
    ],
)
def test_invalid_usage_is_one_error_and_writes_nothing(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_rejected(mtkd(*words), *parts)
    assert not list(tmp_path.iterdir())


def test_a_teacher_without_the_head_of_a_task_is_rejected(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "cola", "--teacher", tiny_teacher)
    assert_rejected(mtkd(*words, "--out", tmp_path / "x"), "no head for the task 'cola'", "sst2, rte, stsb")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            ["student.vocabulary=word", "student.bilstm.embeddings=teacher"],
            ["needs the teacher's vocabulary"],
        ),
        (
            ["student.kind=transformer", "student.vocabulary=word"],
            ["the student's vocabulary was built from the training texts"],
        ),
        (["student.kind=transformer", "student.transformer.layers=9"], ["cannot have 9 layers instead of 3"]),
        (
            [
                *("student.kind=transformer", "student.transformer.init=random"),
                *("student.transformer.layers=4", "terms.h.loss=hidden_knowledge"),
            ],
            ["the student has 4 layers, but the teacher only 3", "expected: up to 3 layers"],
        ),
        (["terms.h.loss=hidden_mze"], ["hidden_mze", "did you mean 'hidden_mse'"]),
        (
            ["terms.h.loss=hidden_mse", "terms.h.layer_maps=1"],
            ["terms.h.layer_maps", "did you mean 'terms.h.layer_map'"],
        ),
        (
            ["terms.h.loss=hidden_mse"],
            [
                "neither layers nor attention heads",
                "labels, logits_mse, sample_contrastive (with row_vector =",
            ],
        ),
        (
            [
                *("student.kind=transformer", "student.transformer.init=random", "student.vocabulary=word"),
                *("terms.h.loss=hidden_mse", "student.transformer.layers=3"),
            ],
            ["token by token", "reads other tokens"],
        ),
    ],
)
def test_an_incompatible_student_is_rejected(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, change: list[str], parts: list[str]
) -> None:
    sets = [word for setting in change for word in ("--set", setting)]
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher]
    assert_rejected(mtkd(*words, "--out", tmp_path / "x", *TINY, *sets), *parts)
    assert not (tmp_path / "x").exists()


def test_hidden_states_can_be_distilled(mtkd: Callable, tiny_teacher: Path, tmp_path: Path) -> None:
    sets = ["terms.h.loss=hidden_mse", "terms.h.layer_map=[[1, 3]]"]
    sets += ["student.transformer.init=teacher", "student.transformer.layers=1", "student.max_length=32"]
    given = [word for setting in sets for word in ("--set", setting)]
    words = ["distill", "mkd-transformer", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher]
    answered = mtkd(*words, "--out", tmp_path / "run", *TINY, *given)
    assert answered.code == 0, answered.err
    assert "loss/h" in (tmp_path / "run" / "log.jsonl").read_text()


def test_refine_distill_and_evaluate(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, student, tuned = tmp_path / "corpus", tmp_path / "student", tmp_path / "tuned"
    data = ("--data", "pocket")
    made = mtkd(
        "augment", "mask", *data, "--tasks", "sst2,rte", "--limit", 32, "--copies", 2, "--out", corpus
    )
    assert made.code == 0, made.err
    words = (
        "distill",
        "mkd-lstm",
        *data,
        "--tasks",
        "sst2,rte",
        "--teacher",
        tiny_teacher,
        "--corpus",
        corpus,
    )
    distilled = mtkd(*words, "--out", student, *TINY, *SMALL)
    assert distilled.code == 0, distilled.err
    assert "WARNING" in distilled.err, "one epoch on 48 rows beats no constant prediction"
    record = json.loads((student / "run.json").read_text())
    assert record["rows"]["sst2"] == {"train": 96, "unlabelled": 64, "validation": 16}
    assert record["status"] == "finished" and record["versions"]["torch"] and record["data"]
    assert {p.name for p in student.iterdir()} == {
        ".mtkd.lock",
        "digests.json",
        "run.json",
        "log.jsonl",
        "tensorboard",
        "model",
        "predictions",
    }

    again = mtkd(*words, "--out", student, *[word for word in TINY if word != "--quiet"], *SMALL)
    assert again.code == 0 and "already finished" in again.err
    assert_rejected(mtkd(*words, "--out", student, *TINY, *SMALL, "--seed", 5), "another run", "--overwrite")
    assert_rejected(mtkd(*words, "--out", corpus, *TINY, *SMALL), "the path of the corpus")

    fine = mtkd("finetune", "--model", student, "--task", "rte", *data, "--out", tuned, *TINY)
    assert fine.code == 0 and "learning rate" in fine.out
    tried = json.loads((tuned / "run.json").read_text())["tried"]
    assert set(tried) == {"1e-05", "1.5e-05", "5e-05"}

    scored = mtkd("evaluate", "--model", tuned, *data, "--json")
    assert json.loads(scored.out)["scores"]["rte/validation"]["rows"] == 150
    assert_rejected(
        mtkd("evaluate", "--model", tuned, *data, "--tasks", "sst2"), "no head for the task 'sst2'"
    )
    assert_rejected(mtkd("evaluate", "--model", tuned, *data, "--split", "test"), "not labelled")

    # Peak memory is measured in a process of its own: tests/mtkd/evaluation/test_inference_bench.py does so.
    monkeypatch.setattr("mtkd.evaluation.inference_bench._peak_apart", lambda *given: 1)
    timed = mtkd(
        "bench", "inference", "--model", tiny_teacher, "--model", student, "--seq-len", 16, "--batch", 4
    )
    assert timed.code == 0 and "1.00x" in timed.out


def test_predict_writes_a_file_of_predictions(mtkd: Callable, tiny_teacher: Path, tmp_path: Path) -> None:
    lines = [{"id": n, "sentence1": f"a cat sat {n} times", "sentence2": "a cat"} for n in range(5)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = ("predict", "--model", tiny_teacher, "--task", "rte", "--in", source, "--out", out)
    assert mtkd(*words).code == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [a["id"] for a in answers] == [0, 1, 2, 3, 4]
    for found in answers:
        assert found["prediction"] == max(found["probabilities"], key=found["probabilities"].get)
        assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-4)

    typo = mtkd("predict", "--model", tiny_teacher, "--task", "rt", "--in", source, "--out", out)
    assert_rejected(typo, "unknown task of this model 'rt' (did you mean 'rte'?)", "sst2, stsb")
    assert "cola" not in typo.err
    source.write_text(json.dumps(lines[0]) + "\n{broken\n", encoding="utf-8")
    assert_rejected(mtkd(*words), "in.jsonl:2")
    source.write_text('{"sentence1": "only one"}\n', encoding="utf-8")
    assert_rejected(mtkd(*words), "'sentence2'")


def test_a_glue_submission_is_complete(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.common import files

    folder = tmp_path / "glue"
    words = ("predict", "--model", tiny_teacher, "--data", "pocket", "--glue-submission", folder)
    replace, moves = os.replace, itertools.count()

    def replace_or_fail(source: Any, target: Any) -> None:
        if Path(target).parent == folder and Path(target).suffix == ".tsv" and next(moves) == 4:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", replace_or_fail)
        assert mtkd(*words).code
    assert len(list(folder.glob("[!.]*"))) == 4, "the others were not moved"
    answered = mtkd(*words)
    assert answered.code == 0, answered.err
    assert sorted(path.name for path in folder.glob(".*")) == [LOCK]
    names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"
    assert {p.stem for p in folder.glob("[!.]*")} == set(names.split())
    assert "CONSTANT" in answered.out and "files are incomplete" in answered.err
    rte = (folder / "RTE.tsv").read_text().splitlines()
    assert rte[0] == "index\tprediction" and len(rte) == 101
    assert {line.split("\t")[1] for line in rte[1:]} <= {"entailment", "not_entailment"}
    scores = [float(line.split("\t")[1]) for line in (folder / "STS-B.tsv").read_text().splitlines()[1:]]
    assert all(0 <= value <= 5 for value in scores)
    assert_rejected(mtkd(*words), "already holds a submission")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    assert_rejected(mtkd(*words[:-1], tmp_path / "notes"), "mine.txt", "hint: choose an empty")


def test_a_full_disk_is_an_error_that_keeps_the_run(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtkd.training import checkpoint

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher)
    given = (*words, "--out", tmp_path / "run", *TINY, *SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        assert_rejected(mtkd(*given), "the disk is full", str(tmp_path / "run"))
    assert not list((tmp_path / "run" / "checkpoints").glob("*/optimizer.safetensors"))
    assert mtkd(*given).code == 0, "once there is room, the same command goes on"


@pytest.mark.parametrize("by_library", [False, True])
def test_no_directory_for_temporary_files_is_one_error(
    by_library: bool, mtkd: Callable, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("TMPDIR", missing)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [missing])
    if by_library:
        monkeypatch.setattr("mtkd.bench_inference", lambda *args, **more: tempfile.gettempdir())
    refused = mtkd("bench", "inference", "--model", tiny_teacher)
    assert_rejected(refused, f"neither TMPDIR={missing} nor /tmp can be written", "expected:", "hint: set")


def test_a_corpus_of_other_rows_or_another_mask_token_is_rejected(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    data, corpus = tmp_path / "data", tmp_path / "corpus"
    (data / "rte").mkdir(parents=True)
    lines = [json.dumps({"sentence1": f"row {n}", "sentence2": "row", "label": n % 2}) for n in range(12)]
    for split in ("train", "validation"):
        (data / "rte" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    words = ("distill", "mkd-lstm", "--tasks", "rte", "--teacher", tiny_teacher, "--out", tmp_path / "x")
    mask = ("augment", "mask", "--tasks", "rte", "--copies", 1, "--out")
    assert mtkd(*mask, corpus, "--data", "pocket").code == 0
    assert_rejected(mtkd(*words, "--data", data, "--corpus", corpus), "not made from the rte rows")
    assert mtkd(*mask, tmp_path / "other", "--data", data, "--mask-token", "<mask>").code == 0
    assert_rejected(mtkd(*words, "--data", data, "--corpus", tmp_path / "other"), "'<mask>'", "'[MASK]'")
    assert not (tmp_path / "x").exists()


def test_leftovers_of_a_killed_process_do_not_block_a_run(
    mtkd: Callable, tiny_teacher: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".run.json.1.tmp").write_text("{")
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--teacher", tiny_teacher)
    assert mtkd(*words, "--out", out, *TINY, *SMALL).code == 0


def test_changed_data_is_detected_on_resume(mtkd: Callable, tiny_encoder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "rte").mkdir(parents=True)
    lines = [
        json.dumps({"sentence1": f"row {n}", "sentence2": "row", "label": n % 2, "idx": n}) for n in range(12)
    ]
    for split in ("train", "validation"):
        (data / "rte" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "run"
    words = (
        "refine",
        "--data",
        data,
        "--tasks",
        "rte",
        "--encoder",
        tiny_encoder,
        "--epochs",
        1,
        "--out",
        out,
    )
    assert mtkd(*words).code == 0
    record = json.loads((out / "run.json").read_text())
    write_record(out / "run.json", {**record, "status": "running"})
    (data / "rte" / "train.jsonl").write_text("\n".join(lines[:-2]), encoding="utf-8")
    assert_rejected(mtkd(*words), "the data has changed")
    write_record(out / "run.json", record)
    assert_rejected(mtkd(*words), "the data has changed")
    assert mtkd(*words, "--overwrite").code == 0
    shutil.rmtree(data)
    assert_rejected(mtkd(*words, "--overwrite", "--seed", 1), "does not exist")
    assert json.loads((out / "run.json").read_text())["status"] == "finished", "nothing is dropped in vain"


def test_training_on_labels_alone_is_not_called_distillation(mtkd: Callable, tmp_path: Path) -> None:
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "sst2", *TINY[:-1], *SMALL)
    done = mtkd(*words, "--set", "supervision=labels", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "trained in " in done.err and "distilled in" not in done.err


def test_training_reports_which_epoch_was_kept(mtkd: Callable, tiny_encoder: Path, tmp_path: Path) -> None:
    data = ("--data", "pocket", "--limit", 32, "--eval-limit", 16, "--batch", 16)
    words = ("refine", *data, "--tasks", "rte", "--encoder", tiny_encoder, "--set", "max_length=24")
    refined = mtkd(*words, "--epochs", 3, "--out", tmp_path / "run")
    training = json.loads((tmp_path / "run/run.json").read_text())["training"]
    kept, best = training["kept_epoch"], training["best"]
    assert training["history"][kept - 1]["score"] == best
    assert refined.err.splitlines()[-2] == (
        f"Kept the weights of epoch {kept} of 3 (validation score {100 * best:.1f})."
    )
    assert "Kept" not in mtkd(*words, "--epochs", 3, "--out", tmp_path / "quiet", "--quiet").err
    one = mtkd(*words, "--epochs", 1, "--out", tmp_path / "one")
    last = mtkd(*words, "--epochs", 2, "--set", "train.keep=last", "--out", tmp_path / "last")
    assert "Kept" not in one.err + last.err
    assert json.loads((tmp_path / "last/run.json").read_text())["training"]["kept_epoch"] is None
    tuned = ("finetune", "--model", tmp_path / "run", "--task", "rte", *data, "--epochs", 2)
    done = mtkd(*tuned, "--set", "train.metric=loss", "--out", tmp_path / "tuned")
    assert re.search(r"\nKept the weights of epoch [12] of 2 \(validation loss \d\.\d{3}\)\.\n", done.err)
    assert re.search(r"lr 1e-05: before training: rte/validation \d+\.\d \(loss \d", done.err)
    assert re.search(r"scores before training: rte/validation \d+\.\d\n", done.out)
    start = {"epoch": 0, "loss": 0.5, "scores": {"rte/validation": 0.7}}
    history = [start, {"epoch": 1, "train_loss": {}, "loss": 0.6, "scores": {}}]
    assert kept_weights({"training": {"steps": 1, "epochs": 1, "history": history, "kept_epoch": 0}}) == [
        "Kept the weights from before training, because no epoch is better (validation loss 0.500)."
    ]
    in_bf16 = {"settings": {"train": {"precision": "bf16"}}}
    training = {"steps": 1, "epochs": 1, "history": history, "kept_epoch": 0}
    (sentence,) = kept_weights({"training": training, "identity": in_bf16})
    assert sentence.endswith("(validation loss 0.500 in bf16).")


def test_each_stage_reports_which_epoch_was_kept() -> None:
    history = [{"epoch": n, "train_loss": {"rte": 1.0}, "rte/accuracy": n / 10, "scores": {}} for n in (1, 2)]
    stage = {"steps": 8, "epochs": 2, "history": history, "best": 0.2, "kept_epoch": 2}
    without = {"steps": 8, "epochs": 2, "history": [], "best": None, "kept_epoch": None}
    sentence = "kept the weights of epoch 2 of 2 (validation rte/accuracy 20.0)."
    assert kept_weights({"training": {"layers": without, "prediction": stage}}) == [
        f"Stage prediction: {sentence}"
    ]


def test_a_directory_as_the_json_file_is_rejected_before_any_work(mtkd: Callable, tmp_path: Path) -> None:
    words = ["augment", "mask", "--data", "pocket", "--tasks", "rte", "--limit", 8, "--out", tmp_path / "out"]
    answered = mtkd(*words, "--json", tmp_path)
    assert answered.code == 2 and "is a directory" in answered.err and not (tmp_path / "out").exists()


def test_a_result_only_replaces_an_earlier_result(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = Path("rows.jsonl")
    rows.write_text('{"text": "a b", "label": "x"}\n')
    task = Path("task.toml")
    task.write_text(
        'name = "own"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["x", "y"]\n'
        '[files]\ntrain = "rows.jsonl"\nvalidation = "rows.jsonl"\n'
    )
    Path("loop").symlink_to("loop")
    Path("mine.txt").write_text("mine")
    mask = (
        "augment",
        "mask",
        "--data",
        "pocket",
        "--tasks",
        "rte",
        "--limit",
        4,
        "--out",
        "corpus",
        "--json",
    )
    for words, message in (
        (("data", "check", "--tasks", task, "--json", rows), "would be overwritten"),
        (("data", "check", "--tasks", task, "--json", task), "not JSON"),
        (("init", rows, "--out", "o", "--json", rows), "would be overwritten"),
        (("tasks", "--json", "mine.txt"), "not JSON"),
        (("tasks", "--json", "loop"), "leads back to itself"),
        ((*mask, "corpus"), "which the command writes itself"),
        ((*mask, "corpus/manifest.json"), "which the command writes itself"),
    ):
        before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
        answered = mtkd(*words)
        assert answered.code == 2 and message in answered.err, answered.err
        assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    for _ in range(2):  # also in place of an earlier result
        assert mtkd("tasks", "--json", "tasks.json").code == 0
    Path("empty.json").touch()
    assert mtkd("tasks", "--json", "empty.json").code == 0


def test_an_output_may_be_in_the_home_directory(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    rows = ("--data", "pocket", "--tasks", "rte", "--limit", 2)
    assert mtkd("augment", "mask", *rows, "--out=~/corpus").code == 0
    assert (tmp_path / "home/corpus/manifest.json").is_file()


def test_unusual_option_values_are_one_error(mtkd: Callable, tmp_path: Path) -> None:
    rows = ("--data", "pocket", "--tasks", "rte", "--out", tmp_path / "o")
    generate = ("augment", "questions", "generate", "--text", "t.txt", "--out", tmp_path / "o")
    deep = '{"a":' + "[" * 480 + "]" * 480 + "}"
    for words, message in (
        (("data", "check", "--data", "~nouser/x", "--tasks", "rte"), "'~nouser/x' does not exist"),
        ((*generate, "--extra-body", deep), "levels deep"),
        ((*generate[:3], "--text", "~nouser/x.txt", *generate[5:]), "~nouser/x.txt"),
        (("evaluate", "--model", "a\0b", "--data", "pocket"), "NUL"),
        (("predict", "--model", "m", "--threads", 10**6), "from 1 to 1024"),
        (("data", "check", "--data", "pocket", "--tasks", ""), "--tasks is empty"),
        (("data", "check", "--data", "pocket", "--list", "-5"), "0 or more"),
        (("augment", "run", "mask", *rows, "--set", "p=0.1\nq=2"), "is not valid"),
        (("augment", "mask", *rows, "--mask-token", "x" * 101), "has 101 characters"),
        (("augment", "run", "mask", *rows, "--set", "p="), "p='' is not valid"),
        (("augment", "run", "mask", *rows, "--set", "seed=1.5"), "seed=1.5 is not valid"),
    ):
        answered = mtkd(*words)
        assert answered.code == 2 and message in answered.err, answered.err


def test_a_warning_is_printed_once_per_command(
    mtkd: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(*given: Any, **options: Any) -> None:
        for text in ("the rows are few", "the rows are few", "the rows are many"):
            warn_caller(text)
        raise UserError("stopped here")

    monkeypatch.setattr("mtkd.check_data", repeat)
    for _ in range(2):
        found = mtkd("data", "check", "--data", "pocket", "--tasks", "rte").err
        assert found.count("WARNING") == 2 and found.count("the rows are few") == 1, found
