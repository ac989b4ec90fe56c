"""Generated questions are filtered by a real teacher, labelled, and used in distillation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from augment.questions.question_rows import QuestionRow, question_table
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data
from mtkd.run_record import read_run_record
from tasks.common.files import write_json
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry
from tasks.data.corpus_reader import CORPUS_FORMAT, CorpusManifest, CorpusTask, corpus_rows
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 24 questions in the format of `augment questions generate`."""
    place = tmp_path_factory.mktemp("asked") / "corpus"
    rows = load_rows(open_data("pocket"), resolve("squad_v2")[0], "validation", 24)
    asked = [
        QuestionRow(
            "squad_v2", f"wiki/{n}", 1, question, context, "questions", f"article {n // 6}", None, None
        )
        for n, (question, context) in enumerate(zip(*(text.to_pylist() for text in rows.texts), strict=True))
    ]
    file = "data/squad_v2-00000.parquet"
    (place / "data").mkdir(parents=True)
    pq.write_table(question_table(asked), place / file)
    shard = ShardEntry(file, "squad_v2", 24, digest_file(place / file), (place / file).stat().st_size)
    task = CorpusTask("squad_v2", 2, 1, 24, 24, "d", 0.0, 0.0)
    manifest = CorpusManifest(
        CORPUS_FORMAT, "questions", {}, "0.1", "made up", "wiki", "key", (task,), (shard,), "questions"
    )
    write_json(place / "manifest.json", manifest.to_json())
    return place


def test_questions_are_filtered_labelled_and_distilled(
    corpus: Path, span_teacher: Path, tmp_path: Path, mtkd: Callable
) -> None:
    filtered = tmp_path / "filtered"
    rows_of = ("--data", "pocket", "--tasks", "squad_v2,rte")
    lenient = ("--no-round-trip", "--min-confidence", -1000, "--unanswerable", 0, "--labels")
    words: tuple = ("augment", "questions", "filter", "--corpus", corpus, "--teacher", span_teacher)
    done = mtkd(*words, *lenient, "--out", filtered)
    assert done.code == 0, done.err
    rows = corpus_rows(filtered, "squad_v2")
    assert len(rows) == 24 and rows.labelled and rows.answers is not None
    for context, answer in zip(rows.texts[1].to_pylist(), rows.answers.to_pylist(), strict=True):
        for text, start in zip(answer["text"], answer["answer_start"], strict=True):
            assert context[start : start + len(text)] == text
    student = ("--set", "student.max_length=48", "--set", "student.stride=8", "--set", "train.batch_size=16")
    sizes = ("layers=2", "hidden_size=16", "heads=2", "intermediate_size=32", "init=random")
    shape = [word for size in sizes for word in ("--set", f"student.transformer.{size}")]
    for number, corpora in enumerate(((corpus,), (filtered, corpus))):
        given = [word for place in corpora for word in ("--corpus", place)]
        words = ("distill", "mkd-transformer", *rows_of, *given, "--teacher", span_teacher)
        limits = ("--limit", 16, "--eval-limit", 16, "--epochs", 1)
        run = mtkd(*words, *limits, *student, *shape, "--out", tmp_path / f"student-{number}")
        assert run.code == 0, run.err
        assert f"squad_v2: 16 labelled rows, {24 * len(corpora)} questions\n" in run.err
        assert "rte: 16 labelled rows\n" in run.err
        recorded = read_run_record(tmp_path / f"student-{number}/run.json")["identity"]["corpus"]
        assert recorded == ([str(place) for place in corpora] if number else str(corpus))


def test_questions_are_added_only_to_the_rows_of_their_own_task(corpus: Path, tmp_path: Path) -> None:
    request = Request("pocket", "squad_v2,rte", tmp_path, 16, 8)
    data = load_training_data(request, resolve("squad_v2,rte"), [corpus])
    assert [len(part.train) for part in data.parts] == [16 + 24, 16]


def test_questions_of_another_task_are_rejected(
    corpus: Path, tiny_teacher: Path, tmp_path: Path, mtkd: Callable
) -> None:
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--corpus", corpus)
    done = mtkd(*words, "--teacher", tiny_teacher, "--out", tmp_path / "run")
    assert done.code == 2 and "has questions for squad_v2, but the run trains on rte" in done.err
    assert not (tmp_path / "run").exists()
