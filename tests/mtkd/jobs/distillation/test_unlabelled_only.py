"""Students that learn from unlabelled rows alone: no training split, but labelled validation rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
import torch
from small_students import SMALL_LSTM

import mtkd as library
from mtkd.models.multitask import MultiTaskModel
from tasks.common.errors import UserError
from tasks.data.sources import PocketSource
from tasks.glue import TASKS

LENGTH = ("--set", "student.max_length=32")
ROWS = PocketSource().table(TASKS["sst2"], "train").slice(0, 48)
TEXTS = ROWS.select(["sentence"])
VALIDATION = PocketSource().table(TASKS["sst2"], "validation").slice(0, 16)
TASK = """name = "own"
kind = "classify"
columns = ["sentence"]
label = "label"
labels = ["0", "1"]
metrics = ["accuracy"]

[files]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with rows of sst2: dev.csv with labels, more.csv without."""
    pcsv.write_csv(VALIDATION.select(["sentence", "label"]), tmp_path / "dev.csv")
    pcsv.write_csv(TEXTS, tmp_path / "more.csv")
    return tmp_path


def task_file(folder: Path, **files: str) -> Path:
    path = folder / "own.toml"
    path.write_text(TASK + "".join(f'{split} = "{file}"\n' for split, file in files.items()))
    return path


def weights(path: Path) -> dict[str, torch.Tensor]:
    return MultiTaskModel.load(path).state_dict()


def test_the_student_is_that_of_the_same_rows_with_labels(tiny_teacher: Path, tmp_path: Path) -> None:
    made = {}
    for name, rows in (("labelled", {"train": ROWS}), ("unlabelled", {"unlabelled": TEXTS})):
        data = {"sst2": {**rows, "validation": VALIDATION}}
        options: dict[str, Any] = {
            "teacher": tiny_teacher,
            "settings": {**SMALL_LSTM, "train.epochs": 2, "teacher.cache_logits": False},
        }
        made[name] = library.distill("mkd-lstm", data=data, tasks="sst2", out=tmp_path / name, **options)
    expected, found = (weights(tmp_path / name) for name in made)
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    record = json.loads((tmp_path / "unlabelled" / "run.json").read_text())
    assert record["rows"]["sst2"] == {"train": 48, "unlabelled": 48, "validation": 16}
    warning = "the data of task 'sst2' have no split 'train': the student learns from the 48 unlabelled rows"
    assert any(text.startswith(warning) for text in record["warnings"]), record["warnings"]


def test_a_checkpoint_teaches_the_recipes_of_mtkd_init_without_labelled_training_rows(
    files: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "0", 1: "1"})
    tasks = task_file(files, validation="dev.csv", unlabelled="more.csv")
    for recipe, sizes in (("layerwise-3", []), ("static", ["--set", "student.static.width=8"])):
        words = ("distill", recipe, "--tasks", tasks, "--teacher", teacher, "--steps", "2", *LENGTH, *sizes)
        done = mtkd(*words, "--out", files / recipe)
        assert done.code == 0, done.err
        assert "own: 0 labelled rows, 48 unlabelled" in done.err
        again = mtkd(*words, "--out", files / recipe)
        assert again.code == 0, again.err


@pytest.mark.parametrize("kind", ["multilabel", "regress"])
def test_other_task_types_need_no_labelled_training_rows(kind: str, tmp_path: Path, mtkd: Any) -> None:
    labels: list[Any] = [["a"], ["a", "b"], []] if kind == "multilabel" else [0.5, 1.0, 3.0]
    task = library.Task(
        "own",
        kind,
        ("text",),
        ("a", "b") if kind == "multilabel" else (),
        range=(0, 4) if kind == "regress" else None,
    )
    rows = pa.table({"text": [f"row {n}" for n in range(12)], "label": labels * 4})
    data = {"own": {"train": rows, "validation": rows}}
    settings = {**SMALL_LSTM, "train.epochs": 1}
    teacher = library.refine("minilm", data=data, tasks=[task], out=tmp_path / "teacher", steps=1)
    texts = {"own": {"unlabelled": rows.select(["text"]), "validation": rows}}
    made = library.distill(
        "mkd-lstm", data=texts, tasks=[task], teacher=teacher, out=tmp_path / "s", settings=settings
    )
    assert made.scores["own"].primary is not None


@pytest.mark.parametrize(
    ("named", "words", "parts"),
    [
        (
            {"unlabelled": "more.csv"},
            [],
            [
                "no split 'validation' of task 'own' in the task files; training needs a validation split",
                "name the file of the split 'validation' under [files]",
                "validation rows need labels (docs/unlabelled.md#how-many-labelled-rows)",
            ],
        ),
        (
            {"validation": "dev.csv"},
            [],
            ["the task 'own' has no training split hint:", "(unlabelled = 'FILE') under [files]"],
        ),
        (
            {"validation": "dev.csv", "unlabelled": "more.csv"},
            ["--unlabelled-limit", "0"],
            ["no split 'train' of task 'own'"],
        ),
        (
            {"validation": "dev.csv", "unlabelled": "more.csv"},
            ["--set", "supervision=labels"],
            ["no split 'train' of task 'own'"],
        ),
        (
            {"train": "trian.csv", "validation": "dev.csv", "unlabelled": "more.csv"},
            [],
            ["trian.csv' of own/train does not exist"],
        ),
    ],
)
def test_missing_labelled_rows_are_an_error(
    named: dict[str, str], words: list[str], parts: list[str], files: Path,
    save_checkpoint: Callable[..., Path], mtkd: Any,
) -> None:  # fmt: skip
    tasks, teacher = task_file(files, **named), save_checkpoint("Bert", id2label={0: "0", 1: "1"})
    refused = mtkd(
        "distill", "mkd-lstm", "--tasks", tasks, "--teacher", teacher, "--out", files / "run", *words
    )
    assert refused.code == 2 and "Traceback" not in refused.err, refused.err
    assert all(part in " ".join(refused.err.split()) for part in parts), refused.err


def test_data_check_warns_of_the_missing_training_split(files: Path, mtkd: Any) -> None:
    tasks = task_file(files, validation="dev.csv", unlabelled="more.csv")
    checked = mtkd("data", "check", "--tasks", tasks)
    assert checked.code == 0, checked.out + checked.err
    assert "a student can learn from the unlabelled rows alone" in " ".join(
        (checked.out + checked.err).split()
    )
    checked = mtkd("data", "check", "--tasks", task_file(files, unlabelled="more.csv"))
    assert checked.code == 2 and "no validation split" in checked.out + checked.err


def test_a_stage_that_learns_from_labels_alone_is_an_error(tiny_teacher: Path, tmp_path: Path) -> None:
    data = {"sst2": {"unlabelled": TEXTS, "validation": VALIDATION}}
    stages = {
        "terms.labels.loss": "labels",
        "stages": {"first": {"terms": ["logits"]}, "second": {"terms": ["labels"]}},
    }
    with pytest.raises(UserError, match="needs labels, but all training rows of 'sst2' are unlabelled"):
        library.distill(
            "mkd-lstm", data=data, tasks="sst2", teacher=tiny_teacher, out=tmp_path, settings=stages
        )
