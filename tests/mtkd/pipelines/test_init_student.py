"""`mtkd init` with another recipe or a given teacher: the files, and complete runs of their pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import mtkd as library
from mtkd.pipelines.init_notes import few_rows_notes
from tasks.common.errors import UserError
from tasks.data.sources import PocketSource
from tasks.glue import TASKS

NAMES = ("negative", "positive")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """60 labelled rows of the pocket task sst2, with names of labels."""
    rows = PocketSource().table(TASKS["sst2"], "train").to_pylist()[:60]
    lines = [json.dumps({"text": row["sentence"], "label": NAMES[row["label"]]}) for row in rows]
    path = tmp_path / "reviews.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(pipeline: Path, **settings: Any) -> dict[str, Any]:
    """Run a pipeline with few steps and without its export; return the records of its student and control."""
    text, export, _ = pipeline.read_text().partition("[steps.export]")  # slow; test_init.py runs one
    assert export
    pipeline.write_text(text)
    dry = library.run_pipeline(pipeline, dry_run=True)
    assert all(step.reason == "not run yet" for step in dry)
    steps = {key.replace("__", "."): value for key, value in settings.items()}
    library.run_pipeline(pipeline, settings={"steps.student.steps": 2, **steps})
    out = pipeline.parent / "runs"
    assert json.loads((out / "comparison.json").read_text())["differences"]
    assert (out / "report.html").is_file()
    return {name: json.loads((out / name / "run.json").read_text()) for name in ("student", "control")}


SMALL_LSTM = {f"bilstm.{name}_size": 8 for name in ("hidden", "output", "projection", "embedding")}


@pytest.mark.parametrize(
    ("recipe", "sizes", "control"),
    [
        ("static", {"static.width": 8}, {"teacher": "minilm"}),
        ("mkd-lstm", SMALL_LSTM, {"teacher": "@teacher"}),
        ("mkd-transformer", {}, {"teacher": "@teacher"}),
    ],
)
def test_another_recipe_is_used_for_the_student_and_the_control(
    recipe: str, sizes: dict[str, Any], control: dict[str, str], reviews: Path, tiny_encoder: Path, mtkd: Any
) -> None:
    made = mtkd("init", reviews, "--out", reviews.parent / "job", "--recipe", recipe)
    assert made.code == 0, made.err
    pipeline = reviews.parent / "job" / "pipeline.toml"
    text = pipeline.read_text()
    assert text.count(f'recipe = "{recipe}"') == 2 and f'teacher = "{control["teacher"]}"' in text
    own = {
        f"steps.{step}.set.student.{key}": n for step in ("student", "control") for key, n in sizes.items()
    }
    own |= {"steps.control.teacher": str(tiny_encoder)} if control["teacher"] == "minilm" else {}
    teacher = {"steps.teacher.encoder": str(tiny_encoder), "steps.teacher.epochs": 1}
    records = run(pipeline, **own, **teacher)
    assert {record["identity"]["settings"]["name"] for record in records.values()} == {recipe}
    assert records["control"]["identity"]["settings"]["supervision"] == "labels"


def test_a_checkpoint_can_be_the_teacher(
    reviews: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "Positive", 1: "Negative"})
    made = mtkd("init", reviews, "--out", reviews.parent / "job", "--teacher", teacher)
    assert made.code == 0, made.err
    assert "is not recorded, so the control starts from the teacher's weights" in made.out
    pipeline = reviews.parent / "job" / "pipeline.toml"
    text = pipeline.read_text()
    assert text.count('teacher = "../Bert"') == 3 and "[steps.teacher]" not in text
    assert 'write its name: set.student.transformer.init = "NAME"' in text
    records = run(pipeline)
    assert {record["identity"]["teacher"] for record in records.values()} == {"../Bert"}
    assert records["control"]["identity"]["settings"]["student"]["transformer"]["init"] == "encoder"


def test_a_student_with_another_tokeniser_than_its_teacher(
    reviews: Path,
    tiny_encoder: Path,
    save_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Student and control start from the same encoder, so nothing is noted about the teacher's."""
    teacher = save_checkpoint("Roberta", id2label={0: "Positive", 1: "Negative"})
    larger = save_checkpoint("Bert", layers=4, id2label={0: "Positive", 1: "Negative"})
    made = library.init_pipeline(
        reviews, out=reviews.parent / "job", teacher=str(teacher), recipe="pretrained"
    )
    assert not any("is not recorded" in note or "the same encoder" in note for note in made.notes)
    text = made.pipeline.read_text()
    assert text.count('set.student.transformer.init = "minilm"') == 2
    own = {f"steps.{name}.set.student.transformer.init": str(tiny_encoder) for name in ("student", "control")}
    records = run(made.pipeline, **own)
    for record in records.values():
        assert record["identity"]["settings"]["student"]["transformer"]["init"] == str(tiny_encoder)
    monkeypatch.setattr("mtkd.models.encoders.pretrained_config.exceeds_default_encoder", lambda spec: True)
    for recipe, noted in (("layerwise-3", True), ("static", False)):
        made = library.init_pipeline(
            reviews, out=reviews.parent / recipe, teacher=str(larger), recipe=recipe, dry_run=True
        )
        assert any("is larger than minilm" in note for note in made.notes) == noted
    made = library.init_pipeline(reviews, out=reviews.parent / "other", recipe="pretrained")
    assert any("start from the same encoder, minilm" in note for note in made.notes)


PARAGRAPHS = [
    "Marie Curie discovered radium in Paris in 1898.",
    "The county has over 27 small towns. Its largest town is Dover.",
]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """60 labelled rows of the pocket task squad_v2."""
    rows = PocketSource().table(TASKS["squad_v2"], "train").to_pylist()[:60]
    lines = [json.dumps({key: row[key] for key in ("question", "context", "answers")}) for row in rows]
    (tmp_path / "qa.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "qa.jsonl"


def test_a_pipeline_generates_questions_about_paragraphs(
    answers: Path, tmp_path: Path, tiny_encoder: Path
) -> None:
    (tmp_path / "crawled.txt").write_text("\n".join(PARAGRAPHS) + "\n")
    made = library.init_pipeline(answers, unlabelled=[tmp_path / "crawled.txt"], out=tmp_path / "job")
    assert made.rows["paragraphs"] == 2 and "unlabelled" not in made.rows
    made.pipeline.write_text("device = 'cpu'\n" + made.pipeline.read_text())
    small = {"steps.teacher.encoder": str(tiny_encoder), "steps.teacher.epochs": 1}
    run(made.pipeline, **small, seed=1)
    corpus = tmp_path / "job" / "runs" / "questions"
    contexts = [context for file in corpus.rglob("*.parquet") for context in pq.read_table(file)["text_pair"]]
    assert {context.as_py() for context in contexts} == set(PARAGRAPHS)
    record = json.loads((tmp_path / "job" / "runs" / "student" / "run.json").read_text())
    assert record["rows"]["qa"]["train"] == made.rows["train"] + len(contexts)

    with (tmp_path / "crawled.txt").open("a") as file:
        file.write("Louis Pasteur developed a vaccine in 1885.\n")
    changed = {**small, "seed": 1, "steps.student.steps": 2}
    again = library.run_pipeline(made.pipeline, settings=changed, dry_run=True)
    reasons = {step.name: step.reason for step in again}
    assert reasons["questions"] and reasons["student"] and not reasons["teacher"]
    (tmp_path / "crawled.txt").unlink()
    with pytest.raises(UserError, match=r"`text='../crawled.txt'`: no such file"):
        library.run_pipeline(made.pipeline, dry_run=True)


def test_files_of_paragraphs(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "unlabelled.txt").write_text("\n".join(PARAGRAPHS) + "\n")
    (tmp_path / "more.csv").write_text("context,source\n" + f'"{PARAGRAPHS[1]}",web\n')
    files = [answers, tmp_path / "unlabelled.txt", tmp_path / "more.csv"]
    made = library.init_pipeline(files, out=tmp_path / "both")
    joined = pq.read_table(tmp_path / "both" / "qa-paragraphs.parquet")
    assert joined.column_names == ["context"] and joined["context"].to_pylist() == [
        *PARAGRAPHS,
        PARAGRAPHS[1],
    ]
    assert 'text = "qa-paragraphs.parquet"\ntext-column = "context"' in made.pipeline.read_text()
    (tmp_path / "latin.txt").write_text("Zoë Müller discovered radium in Paris in 1898.\n", encoding="cp1252")
    with pytest.warns(UserWarning, match="cp1252"):
        made = library.init_pipeline([answers, tmp_path / "latin.txt"], out=tmp_path / "latin")
    assert 'text = "qa-paragraphs.parquet"' in made.pipeline.read_text(), "the generator reads UTF-8 only"
    for name, text, message in (
        ("empty.txt", " \n", "has no paragraphs"),
        ("lists.jsonl", '{"context": ["a text"]}\n', "the column 'context' of .* is not text"),
        (
            "others.jsonl",
            '{"paragraph": "a text"}\n',
            "expected: the columns question and context, or only context",
        ),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            library.init_pipeline([answers, tmp_path / name], out=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_the_encoder_of_a_recipe_is_named_relative_to_the_pipeline(
    reviews: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mini").symlink_to(tiny_encoder)
    recipe = (Path(library.__file__).parent / "recipes" / "pretrained.toml").read_text()
    (tmp_path / "own.toml").write_text(recipe.replace('"minilm"', '"models/mini"'))
    monkeypatch.chdir(tmp_path)
    made = library.init_pipeline(reviews, out="deep/job", recipe="own.toml")
    assert 'set.student.transformer.init = "' in made.pipeline.read_text()
    for step in library.run_pipeline(made.pipeline, dry_run=True):
        assert "models/mini" not in step.command or str(tiny_encoder) in step.command


def test_a_run_can_be_the_teacher(reviews: Path, tiny_encoder: Path) -> None:
    first = library.init_pipeline(reviews, out=reviews.parent / "first")
    run(first.pipeline, steps__teacher__encoder=str(tiny_encoder), steps__teacher__epochs=1)
    teacher = first.pipeline.parent / "runs" / "teacher"
    made = library.init_pipeline(reviews, out=reviews.parent / "job", teacher=teacher)
    text = made.pipeline.read_text()
    assert 'teacher = "../first/runs/teacher"' in text and "unknown" not in text
    assert 'runs = ["../first/runs/teacher", "@student", "@control"]' in text
    records = run(made.pipeline)
    assert records["control"]["identity"]["settings"]["student"]["transformer"]["init"] == "encoder"


def test_a_static_student_is_not_wider_than_its_teacher(
    reviews: Path, save_checkpoint: Callable[..., Path]
) -> None:
    teacher = save_checkpoint("Bert", id2label={0: "Positive", 1: "Negative"})
    made = library.init_pipeline(reviews, out=reviews.parent / "job", teacher=teacher, recipe="static")
    steps = {step.name: step.command for step in library.run_pipeline(made.pipeline, dry_run=True)}
    assert all("--set student.static.width=16" in steps[name] for name in ("student", "control"))


def test_labels_of_a_checkpoint_can_be_given(
    reviews: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher, out = save_checkpoint("Bert"), reviews.parent / "job"
    words = ("init", reviews, "--out", out, "--recipe", "mkd-lstm", "--teacher", teacher)
    made = mtkd(*words, "--dry-run")
    assert made.code == 0 and "pass --teacher-labels reviews=FIRST,SECOND" in made.out, made.err
    assert "a BiLSTM learns little from its teacher on 54 rows per task" in " ".join(made.out.split())
    assert not few_rows_notes(TASKS["sst2"], "mkd-lstm", 2000)
    assert not few_rows_notes(TASKS["sst2"], "static", 20)
    made = mtkd(*words, "--teacher-labels", "reviews=positive,negative")
    assert made.code == 0 and "FIRST" not in made.out
    steps = {step.name: step for step in library.run_pipeline(out / "pipeline.toml", dry_run=True)}
    assert "--teacher-labels reviews=positive,negative" in steps["student"].command
    assert "--teacher-labels" not in steps["control"].command
    assert "--teacher-labels reviews=positive,negative" in steps["against-teacher"].command
    report = steps["report"].command
    assert "--teacher-labels reviews=positive,negative" in report and "--teacher ../Bert " in report
    for wrong in (["--teacher-labels", "other=a,b"], ["--teacher-labels", "reviews=positive"]):
        refused = mtkd(*words, *wrong, "--overwrite")
        assert refused.code == 2 and "--teacher-labels" in refused.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--recipe", "statik"], "unknown distill recipe 'statik' (did you mean 'static'?)"),
        (["--recipe", "minilmv2-6x384"], "trains no task heads"),
        (["--recipe", "hsk-rosita-6"], "cannot be trained without the teacher"),
        (["--recipe", "waldorf"], "heads"),
        (["--teacher", "minilm"], "minilm"),
        (["--teacher", "./nowhere"], "nowhere"),
        (["--teacher", ""], "--teacher is empty"),
        (["--teacher-labels", "reviews=a,b"], "there is no --teacher"),
    ],
)
def test_incompatible_options_are_rejected_before_anything_is_written(
    given: list[str], message: str, reviews: Path, mtkd: Any
) -> None:
    refused = mtkd("init", reviews, "--out", reviews.parent / "job", *given)
    assert refused.code == 2 and message in refused.err, refused.err
    assert not (reviews.parent / "job").exists()


def test_a_teacher_without_its_tokeniser_is_rejected_before_anything_is_written(
    reviews: Path, save_checkpoint: Callable[..., Path], mtkd: Any
) -> None:
    teacher = save_checkpoint("Bert", layers=3, id2label={0: "Positive", 1: "Negative"})
    for file in teacher.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    refused = mtkd("init", reviews, "--out", reviews.parent / "job", "--teacher", teacher)
    assert refused.code == 2 and "tokeniser of" in refused.err and str(teacher) in refused.err, refused.err
    assert "Traceback" not in refused.err and "hint:" in refused.err
    assert not (reviews.parent / "job").exists()


def test_dry_run_writes_nothing_and_quiet_prints_nothing(reviews: Path, mtkd: Any) -> None:
    out = reviews.parent / "job"
    shown = mtkd("init", reviews, "--out", out, "--dry-run")
    assert shown.code == 0 and "2: negative, positive" in shown.out and not out.exists()
    assert "reviews-train.parquet, reviews-validation.parquet, reviews.toml, pipeline.toml" in shown.out
    quiet = mtkd("init", reviews, "--out", out, "--quiet")
    assert (quiet.code, quiet.out) == (0, "") and (out / "pipeline.toml").is_file()


def test_overwrite_removes_the_files_of_the_earlier_job(reviews: Path) -> None:
    out = reviews.parent / "job"
    library.init_pipeline(reviews, out=out, name="claims")
    (out / "mine.txt").write_text("mine")
    with (out / "claims.toml").open("a") as file:
        file.write("# edited\n")
    made = library.init_pipeline(reviews, out=out, name="tickets", overwrite=True)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    tickets = {"tickets.toml", "tickets-train.parquet", "tickets-validation.parquet"}
    assert names == {"pipeline.toml", *tickets, "claims.toml", "mine.txt"}
    assert "claims.toml, which an earlier call wrote, is not removed: you have edited it" in made.notes
    library.init_pipeline(reviews, out=out, name="tickets")
    assert (out / "tickets.toml").is_file()


def test_a_note_says_why_a_file_of_the_earlier_job_is_not_removed(reviews: Path) -> None:
    out = reviews.parent / "job"
    library.init_pipeline(reviews, out=out, name="claims")
    (out / "pipeline.toml").unlink()
    made = library.init_pipeline(reviews, out=out, name="tickets")
    why = "claims.toml, which an earlier call wrote, is not removed: that needs `overwrite=True`"
    assert why in made.notes and (out / "claims.toml").is_file()
    made = library.init_pipeline(out / "tickets-train.parquet", out=out, name="smaller", overwrite=True)
    why = "tickets-train.parquet, which an earlier call wrote, is not removed: its rows are used again"
    assert why in made.notes and not (out / "claims.toml").exists()
