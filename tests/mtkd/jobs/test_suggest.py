"""Suggested students: sizes and commands compared with real runs, targets, and invalid requests."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import mtkd as library
from mtkd.evaluation.inference_bench import time_in_turn
from mtkd.jobs.candidate_students import _can_be_trained
from mtkd.jobs.distillation.prepare import prepare_run
from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.suggest import Suggestions
from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import ModelInfo
from mtkd.recipes import load_settings, parse_set
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.tokens.tokeniser import Tokeniser

SMALL: dict[str, Any] = {"seq_len": 8, "batch": 2, "rounds": 2}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, save_random_bert: Callable[..., None]) -> Path:
    """A random BERT of 3 layers and width 64, with heads for two tasks."""
    place = tmp_path_factory.mktemp("suggest")
    save_random_bert(place / "encoder", heads=2, hidden_size=64)
    encoder, tokeniser = TransformerEncoder.pretrained(str(place / "encoder")), str(place / "encoder")
    tasks = [TASKS["sst2"], TASKS["rte"]]
    MultiTaskModel(encoder, tasks, Tokeniser.load(tokeniser), ModelInfo(16, 0)).save(place / "teacher")
    return place / "teacher"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is run, but the reported times are 6 s (teacher), 1 to 5 s (three students), else 2 s."""

    def fake(runs: Mapping[str, Callable[[], Any]], *given: Any) -> dict[str, list[float]]:
        time_in_turn(runs, 1, 0)
        known = {"2 of 3 layers": [6.0, 4.0, 5.0], "static": [3.0, 3.0, 3.0], "BiLSTM, 64 units": [1.0] * 3}
        return {
            name: known.get(name, [6.0] * 3 if number == 0 else [2.0] * 3) for number, name in enumerate(runs)
        }

    monkeypatch.setattr("mtkd.jobs.suggest.time_in_turn", fake)


def test_suggested_sizes_and_commands_match_real_runs(timed: None, teacher: Path) -> None:
    found = library.suggest_students(teacher, data="pocket", **SMALL)
    names = [student.name for student in found.students]
    pruned = [name for name in names if name.endswith(" tokens")]
    assert names[:3] == ["2 of 3 layers", "1 of 3 layers", "static"] and len(names) == 12 and len(pruned) == 4
    assert len({student.command.rpartition(" --out ")[2] for student in found.students}) == len(names)
    assert names[-2:] == ["4 layers of 52", "2 layers of 32"] and found.first is None
    tasks, source = [TASKS["sst2"], TASKS["rte"]], open_data("pocket")
    texts = [text for task in tasks for text in load_rows(source, task, "train").texts]
    for student in found.students:
        start, recipe, *words = shlex.split(student.command)[1:]
        assert (start, recipe) == ("distill", student.recipe)
        sets = parse_set([value for word, value in pairwise(words) if word == "--set"])
        assert sets == student.settings and {"--data", "pocket", "sst2,rte", str(teacher)} <= set(words)
        settings = load_settings(recipe, "distill", {**sets, "student.max_length": 16})
        validated = validate_run(settings, str(teacher), tasks)
        if student.name == "static":  # like its pruned form, but the teacher would run with 30,522 tokens
            continue
        real = count_parameters(prepare_run(validated, texts).student)
        assert real.total == student.parameters, student.name
        assert student.megabytes == pytest.approx(4e-6 * real.total)


@pytest.mark.slow(reason="times many students")
def test_students_that_reach_the_targets_are_marked(timed: None, teacher: Path) -> None:
    def found(**targets: float) -> tuple[set[str], str | None]:
        answer: Suggestions = library.suggest_students(teacher, tasks="rte", **targets, **SMALL)
        return {student.name for student in answer.students if student.within_targets}, answer.nearest

    every, nearest = found()
    assert len(every) == 8 and nearest is None
    assert found(target_speedup=3)[0] == every - {"2 of 3 layers", "static"}
    assert found(target_speedup=6) == ({"BiLSTM, 64 units"}, None)
    assert found(target_speedup=9) == (set(), "BiLSTM, 64 units")
    small, nearest = found(max_mb=5)
    assert small == {"2 layers of 32"} and nearest is None
    assert found(max_mb=1.25, int8=True)[0] == small and found(max_mb=1.25)[0] == set()
    first = library.suggest_students(teacher, **SMALL).students[0]
    assert (first.speed, first.slowest, first.fastest) == pytest.approx((1.2, 1.0, 1.5))
    assert first.rows_per_second == pytest.approx(2 / 5)


def test_the_command_suggests_the_nearest_student_if_none_reaches_the_target(
    timed: None, teacher: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    sizes = ["--seq-len", 8, "--batch", 2, "--rounds", 1, "--threads", 1]
    answered = mtkd("suggest", "--teacher", teacher, "--target-speedup", 9, *sizes)
    assert answered.code == 0 and "BiLSTM, 64 units comes nearest" in answered.err
    assert "--data DATA --tasks sst2,rte" in answered.out and "static" in answered.out
    assert "--out runs/bilstm-64-units    # BiLSTM, 64 units\n" in answered.out
    assert "\nReplace DATA, or pass --data to `mtkd suggest`.\n" in answered.out
    file = tmp_path / "found.json"
    encoder = teacher.parent / "encoder"
    answered = mtkd("suggest", "--teacher", encoder, "--max-mb", 5, *sizes, "--json", file)
    assert answered.code == 0 and "2 layers of 32" in answered.out and not answered.err.count("nearest")
    assert f"mtkd refine --encoder {encoder} --data DATA --tasks TASKS --out runs/teacher" in answered.out
    assert "\nReplace DATA and TASKS, or pass --data and --tasks to `mtkd suggest`.\n" in answered.out
    record = json.loads(file.read_text())
    assert [one["name"] for one in record["students"] if one["within_targets"]] == ["2 layers of 32"]


def test_a_fine_tuned_checkpoint_needs_no_refining(timed: None, save_checkpoint: Callable[..., Path]) -> None:
    place = save_checkpoint("Bert")
    found = library.suggest_students(place, tasks="sst2", **SMALL)
    assert found.first is None
    assert all(f"--teacher {place} " in student.command for student in found.students)


def test_a_larger_teacher_can_be_distilled_into_the_default_encoder(
    timed: None, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.jobs.candidate_students.exceeds_default_encoder", lambda spec: True)
    found = {student.name: student for student in library.suggest_students(teacher, **SMALL).students}
    whole = library.load("minilm").module
    assert found["minilm, 3 layers"].parameters < count_parameters(whole).total
    assert shlex.split(found["minilm, 3 layers"].command)[1:3] == ["distill", "pretrained"]
    assert list(found).index("minilm, 3 layers") < list(found).index("2 of 3 layers")


def test_students_that_cannot_learn_from_a_teacher_are_left_out(
    save_checkpoint: Callable[..., Path],
) -> None:
    """The attention of MPNet is not available, which `tinybert-4` compares."""
    sizes = {"layers": 1, "hidden_size": 8, "heads": 2, "intermediate_size": 16, "init": "random"}
    changes = {f"student.transformer.{name}": value for name, value in sizes.items()}
    for kind, fits in (("Bert", True), ("MPNet", False)):
        ref = TeacherRef.find(str(save_checkpoint(kind)), heads=False)
        assert _can_be_trained("tinybert-4", changes, ref, [TASKS["sst2"]]) == fits
        assert _can_be_trained("layerwise-3", {"student.transformer.layers": 1}, ref, [TASKS["sst2"]])


def test_task_files_with_rows_need_no_data(timed: None, teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "a text,negative\nanother text,positive\n" * 5)
    task = tmp_path / "own.toml"
    keys = 'extends = "sst2"\ncolumns = ["text"]\n'
    task.write_text(f'{keys}[files]\ntrain = "rows.csv"\n')
    found = library.suggest_students(teacher, tasks=str(task), **SMALL)
    assert any("student.vocabulary=pruned" in student.command for student in found.students)
    assert all(f" --tasks {task} " in s.command and "--data" not in s.command for s in found.students)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_speedup": 0}, r"`target_speedup=0`(.|\n)*above 0"),
        ({"max_mb": math.nan}, "`max_mb=nan`"),
        ({"batch": 0}, "`batch=0`"),
        ({"batch": 99_999_999}, r"`batch=99999999`(.|\n)*at most 8,192"),
        ({"teacher": "no-such-encoder"}, "no-such-encoder"),
        ({"teacher": __file__}, r"test_suggest\.py is a file"),
        ({"seq_len": 129}, r"cannot read 129 tokens(.|\n)*128"),
        ({"tasks": "sst3"}, "'sst3'"),
        ({"tasks": "cola"}, "no head for the task 'cola'"),
        ({"data": "nowhere"}, "nowhere"),
        ({"unlabelled": {"sst2": "more.csv"}}, "`unlabelled` has no effect without training rows"),
    ],
)
def test_invalid_requests_are_errors(given: dict[str, Any], message: str, teacher: Path) -> None:
    with pytest.raises(UserError, match=message):
        library.suggest_students(**{"teacher": teacher, **SMALL, **given})


def test_a_teacher_without_layers_is_rejected(teacher: Path, tmp_path: Path) -> None:
    config = BiLSTMConfig(vocab_size=30522, embedding_size=4, projection_size=4, hidden_size=4, output_size=4)
    tokeniser = MultiTaskModel.load(teacher).tokeniser
    MultiTaskModel(BiLSTMEncoder(config), [TASKS["sst2"]], tokeniser, ModelInfo(16, 0)).save(tmp_path / "x")
    with pytest.raises(UserError, match="is not a Transformer"):
        library.suggest_students(tmp_path / "x", **SMALL)


def test_students_that_cannot_do_span_tasks_are_left_out(
    timed: None, teacher: Path, mtkd: Callable[..., Any]
) -> None:
    sizes = ["--seq-len", 8, "--batch", 2, "--rounds", 1, "--threads", 1]
    answered = mtkd("suggest", "--teacher", teacher.parent / "encoder", "--tasks", "squad_v2", *sizes)
    assert answered.code == 0 and "layers" in answered.out, answered.err
    assert not {"static", "BiLSTM"} & set(re.findall(r"^\w+", answered.out, re.MULTILINE))
