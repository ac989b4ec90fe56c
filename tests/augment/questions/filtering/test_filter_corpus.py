"""Filtering questions, with a rule-based teacher that counts its calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mtkd
from augment.questions.answer_context import remove_sentences, sentences_around
from augment.questions.filtering.answerability import checked_answers
from augment.questions.filtering.filter_corpus import Filtered, FilterSpec, filter_corpus
from augment.questions.filtering.filter_report import Tally
from augment.questions.filtering.filter_shard import FilterSettings
from augment.questions.filtering.heuristics import Reason, Seen, copied_share, is_question
from augment.questions.filtering.unanswerable import Rejection, UnanswerableMethod
from augment.questions.question_rows import QuestionRow, question_table, questions_of
from mtkd.api.question_filtering import usual_unanswerable
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.distributed import ProcessGroup
from mtkd.output_files.sharded_output import DIGEST
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.common.files import write_json
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry
from tasks.data.corpus_reader import (
    CORPUS_FORMAT,
    QUESTION_SCHEMA,
    CorpusManifest,
    CorpusTask,
    corpus_rows,
    read_corpus,
)
from tasks.glue import TASKS
from tasks.scoring.answers import Answer

ROOT = Path(__file__).resolve().parents[4]
NOTHING = Answer("", -1, 0.5, 4.0)
SETTINGS = FilterSettings(
    shard_rows=32, unanswerable=0.33
)  # two articles of four paragraphs of four questions


@dataclass
class RuleBasedAnswerer:
    """Answers "What is the A of B?" from "the A of B is C"; a secret only if the context contains its key."""

    digest: str = "rule"
    asked: list[str] = field(default_factory=list)
    stop_after: int | None = None

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        self.asked += questions
        if self.stop_after is not None and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        return [self._answer(*pair) for pair in zip(questions, contexts, strict=True)]

    def _answer(self, question: str, context: str) -> Answer:
        wanted = re.search(r"(\w+) of (\w+)", question)
        found = wanted and re.search(rf"the {wanted[1]} of {wanted[2]} is (\w+)", context, re.IGNORECASE)
        if not found or ("secret" in question and f"Key {wanted[2]}" not in context):
            return NOTHING
        return Answer(found[1], found.start(1), 6.0, 1.0)


def paragraph(name: str, extra: str = "") -> str:
    facts = [
        f"The {what} of {name} is {what.title()}{name}." for what in ("capital", "river", "king", "poet")
    ]
    return " ".join(
        [
            f"Key {name} opens this.",
            *facts,
            extra or "Nothing more is known.",
            f"The secret of {name} is Z{name}.",
        ]
    )


def make_questions(count: int) -> list[QuestionRow]:
    """Three questions per paragraph that are kept, and one that fails one of the checks, each in turn."""
    rows = []
    for number in range(count):
        name, context = f"N{number}", paragraph(f"N{number}")
        good = QuestionRow(
            "squad", f"wiki/{number}", 1, "", context, "t5", f"article {number // 4}", None, None
        )
        texts = [f"What is the {what} of {name}?" for what in ("capital", "river", "king")]
        answers = [None, f"the River{name}", None]
        bad = [
            (f"The poet of {name}", None, Reason.NO_QUESTION),
            (f"what is the capital of {name}", None, Reason.REPEATED),
            ("What is the poet of N1?", None, Reason.ELSEWHERE),
            (f"The poet of {name} is Poet{name}?", None, Reason.COPIED),
            (f"What is the size of {name}?", None, Reason.NO_ANSWER),
            (f"What is the poet of {name}?", f"Capital{name}", Reason.ROUND_TRIP),
            (f"What is the secret of {name}?", None, Reason.ROUND_TRIP),
        ][number % 7]
        texts, answers = [*texts, bad[0]], [*answers, bad[1]]
        rows += [
            replace(good, copy=copy, text=text, **{("answer", "asked_for")[number % 2]: answer})
            for copy, (text, answer) in enumerate(zip(texts, answers, strict=True), 1)
        ]
    return rows


def write_corpus(place: Path, rows: list[QuestionRow], *, shard: int = 64, kind: str = "questions") -> Path:
    shards = []
    for number, start in enumerate(range(0, len(rows), shard)):
        file = f"data/squad-{number:05d}.parquet"
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        part = rows[start : start + shard]
        pq.write_table(question_table(part), place / file)
        shards.append(
            ShardEntry(file, "squad", len(part), digest_file(place / file), (place / file).stat().st_size)
        )
    task = CorpusTask("squad", 2, 4, len(rows) // 4, len(rows), "d", 0.0, 0.0)
    manifest = CorpusManifest(
        CORPUS_FORMAT, "t5", {}, "0.1", "made up", "wiki", "key", (task,), tuple(shards), kind
    )
    write_json(place / "manifest.json", manifest.to_json())
    return place


def contents(directory: Path) -> dict[str, bytes]:
    files = [file for file in directory.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def rows_of(directory: Path) -> list[QuestionRow]:
    return [
        row for path in sorted(directory.glob("data/*.parquet")) for row in questions_of(pq.read_table(path))
    ]


QUESTIONS = make_questions(56)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("questions") / "corpus", QUESTIONS)


def spec(corpus: Path, **settings) -> FilterSpec:
    return FilterSpec(corpus, replace(SETTINGS, **settings), "0.1", "mtkd augment questions filter")


@pytest.fixture(scope="module")
def finished_corpus(corpus: Path) -> tuple[Path, Filtered]:
    out = corpus.parent / "whole"
    return out, filter_corpus(spec(corpus, labels=True), RuleBasedAnswerer(), out)


def test_each_check_drops_the_expected_questions(finished_corpus):
    out, filtered = finished_corpus
    count_dropped = filtered.tally
    assert (count_dropped.read, count_dropped.kept, filtered.made, filtered.kept) == (224, 168, 7, 0)
    expected = {reason: 8 for reason in Reason} | {Reason.ROUND_TRIP: 16}
    # the first question about the poet of N1 belongs to another paragraph, so it is not answered
    assert count_dropped.dropped == expected | {Reason.ELSEWHERE: 7, Reason.NO_ANSWER: 9}
    kept = [row for row in rows_of(out) if row.method == "t5"]
    good = [row for row in QUESTIONS if row.copy < 4]
    assert [(row.uid, row.text, row.context) for row in kept] == [(r.uid, r.text, r.context) for r in good]


def test_unanswerable_rows_have_the_requested_share(finished_corpus):
    out, filtered = finished_corpus
    rows = rows_of(out)
    made = [row for row in rows if row.method != "t5"]
    assert filtered.tally.unanswerable == pytest.approx(0.33, abs=0.02)
    assert (
        len(made) == filtered.tally.made.total()
        and min(filtered.tally.made[way] for way in UnanswerableMethod) > 20
    )
    assert len({row.uid for row in rows}) == len(rows)
    contexts = {row.parent: row.context for row in QUESTIONS}
    sources = {row.parent: row.source for row in QUESTIONS}
    for row in made:
        assert RuleBasedAnswerer()([row.text], [row.context]) == [NOTHING]
        assert (row.answer, row.start, row.source) == ("", -1, sources[row.parent])
        own = contexts[row.parent]
        if row.method == "unanswerable-removed":
            gone = set(own.removesuffix(".").split(". ")) - set(row.context.removesuffix(".").split(". "))
            assert len(gone) == 1 and row.text.split()[3] in gone.pop()
        else:
            (parent,) = (parent for parent, context in contexts.items() if context == row.context)
            assert parent != row.parent and sources[parent] == row.source


def test_the_result_is_a_question_corpus_with_dataset_card_and_report(finished_corpus):
    out, filtered = finished_corpus
    manifest = read_corpus(out)
    assert manifest == filtered.manifest and manifest.kind == "questions" and manifest.method == "filter"
    assert manifest.rows == filtered.tally.rows == len(rows_of(out)) == len(corpus_rows(out, "squad"))
    assert manifest.settings["teacher"] == "rule" and manifest.settings["min_overlap"] == 0.5
    assert pq.read_schema(out / manifest.shards[0].file).equals(QUESTION_SCHEMA)
    report = json.loads((out / "filter.json").read_text())
    assert Tally.from_json(report["all"]) == Tally.from_json(report["tasks"]["squad"]) == filtered.tally
    assert report["all"]["dropped"]["round_trip"] == 16
    card = (out / "README.md").read_text()
    assert "| dropped: copied from the context | 8 | 3.6% |" in card and "has the teacher's answer" in card


def test_damage_to_the_report_is_found(finished_corpus, tmp_path):
    out = shutil.copytree(finished_corpus[0], tmp_path / "corpus")
    assert not mtkd.verify(out).damaged
    (out / "filter.json").write_text((out / "filter.json").read_text().replace('"read": ', '"read": 1', 1))
    assert list(mtkd.verify(out).damaged) == [str(out / "filter.json")]


def test_labels_are_the_teachers_answers_and_omitted_by_default(finished_corpus, corpus, tmp_path):
    labelled = rows_of(finished_corpus[0])
    for row in labelled:
        assert row.answer is not None and row.start is not None
        assert row.answer == "" or row.context[row.start :].startswith(row.answer)
    filter_corpus(spec(corpus), RuleBasedAnswerer(), tmp_path / "c")
    assert rows_of(tmp_path / "c") == [replace(row, answer=None, start=None) for row in labelled]
    assert "deliberately have no answers" in (tmp_path / "c/README.md").read_text()


def test_settings_decide_what_the_checks_drop(corpus, tmp_path):
    def count_dropped(**settings) -> Tally:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return filter_corpus(spec(corpus, **settings), RuleBasedAnswerer(), out).tally

    assert count_dropped(unanswerable=0).made.total() == 0
    most = count_dropped(unanswerable=0.6)
    assert most.unanswerable == pytest.approx(0.6, abs=0.02), "several contexts a question"
    free = count_dropped(round_trip=False, any_form=True, max_copied=1.0, unanswerable=0)
    assert free.dropped[Reason.ROUND_TRIP] == free.dropped[Reason.NO_QUESTION] == 0
    assert free.kept == 168 + 16, "a piece of the context stays one"
    assert count_dropped(min_confidence=4.9).kept == 168
    with pytest.raises(UserError, match="no question was kept"):
        count_dropped(min_confidence=5.0)


def test_the_seed_affects_only_the_unanswerable_rows(finished_corpus, corpus, tmp_path):
    filter_corpus(spec(corpus, labels=True, seed=1), RuleBasedAnswerer(), tmp_path / "c")
    one, other = rows_of(finished_corpus[0]), rows_of(tmp_path / "c")
    assert one != other
    assert [row for row in one if row.method == "t5"] == [row for row in other if row.method == "t5"]


def test_interrupted_filter_resumes_to_identical_output(finished_corpus, corpus, tmp_path):
    out, teacher = tmp_path / "c", RuleBasedAnswerer(stop_after=150)
    with pytest.raises(KeyboardInterrupt):
        filter_corpus(spec(corpus, labels=True), teacher, out)
    finished = [name for name in contents(out) if name.endswith(".parquet")]
    assert finished and contents(out).keys() == {*finished, *(name + DIGEST for name in finished)}
    again, advanced = RuleBasedAnswerer(), []
    filtered = filter_corpus(spec(corpus, labels=True), again, out, advance=advanced.append)
    assert (filtered.kept, filtered.made) == (len(finished), 7 - len(finished))
    assert sum(advanced) == 224 and contents(out) == contents(finished_corpus[0])
    everything = RuleBasedAnswerer()
    filter_corpus(spec(corpus, labels=True), everything, tmp_path / "d")
    assert len(again.asked) + len(finished) * 30 < len(everything.asked), (
        "finished shards are not asked again"
    )
    idle = RuleBasedAnswerer()
    assert filter_corpus(spec(corpus, labels=True), idle, out).made == 0 and not idle.asked
    assert contents(out) == contents(finished_corpus[0])


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
here = runpy.run_path(sys.argv[1])
class Killing(here["RuleBasedAnswerer"]):
    def __call__(self, questions, contexts):
        if len(self.asked) > 120:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(questions, contexts)
here["filter_corpus"](here["spec"](Path(sys.argv[2]), labels=True), Killing(), Path(sys.argv[3]))
"""


def test_killed_filter_resumes_to_identical_output(finished_corpus, corpus, tmp_path):
    script, out = tmp_path / "killed.py", tmp_path / "c"
    script.write_text(KILLED)
    command = [sys.executable, str(script), __file__, str(corpus), str(out)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL and not (out / "manifest.json").exists()
    assert filter_corpus(spec(corpus, labels=True), RuleBasedAnswerer(), out).kept > 0
    assert contents(out) == contents(finished_corpus[0])


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_worker_processes_load_the_answerer(finished_corpus, corpus, tmp_path, monkeypatch, engine, request):
    request.getfixturevalue("ray_cluster" if engine == "ray" else "in_process_workers")
    monkeypatch.chdir(corpus.parent)
    here, done = RuleBasedAnswerer(), []
    filtered = filter_corpus(
        spec(Path(corpus.name), labels=True),
        here,
        tmp_path / "c",
        workers=Workers(2, engine),
        load=RuleBasedAnswerer,
        advance=done.append,
    )
    assert filtered.made == 7 and not here.asked and sum(done) == 224
    assert contents(tmp_path / "c") == contents(finished_corpus[0])


def test_two_ranks_write_identical_output(finished_corpus, corpus, tmp_path):
    barrier, results = threading.Barrier(2), {}
    teachers = [RuleBasedAnswerer(), RuleBasedAnswerer()]

    def work(number: int) -> None:
        group = ProcessGroup(number, 2, lambda: barrier.wait(600) and None)
        results[number] = filter_corpus(
            spec(corpus, labels=True), teachers[number], tmp_path / "c", group=group
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path / "c") == contents(finished_corpus[0])
    assert results[0].manifest == results[1].manifest and all(results[n].made == 7 for n in range(2))
    first, second = (set(teacher.asked) for teacher in teachers)
    assert first and second and len(first & second) <= 1, "N1's poet is asked for in both"


def test_a_damaged_shard_is_rebuilt_and_another_job_rejected(finished_corpus, corpus, tmp_path):
    out = tmp_path / "c"
    filter_corpus(spec(corpus, labels=True), RuleBasedAnswerer(), out)
    (out / "data/squad-00003.parquet").write_bytes(b"PAR1")
    assert filter_corpus(spec(corpus, labels=True), RuleBasedAnswerer(), out).made == 1
    before = contents(out)
    assert before == contents(finished_corpus[0])
    for other, teacher in (
        (spec(corpus), RuleBasedAnswerer()),
        (spec(corpus, labels=True), RuleBasedAnswerer("another")),
    ):
        with pytest.raises(UserError, match="another corpus"):
            filter_corpus(other, teacher, out)
    assert contents(out) == before
    filter_corpus(spec(corpus), RuleBasedAnswerer(), out, overwrite=True)
    assert rows_of(out)[0].answer is None


def test_contexts_that_contain_the_answer_are_rejected(tmp_path):
    twice = "Key A opens. The capital of A is Rome. Much is told of Rome. Others say so too. It is far away."
    other = "Nothing of A is known. The capital of B is Oslo. There it rains. Rome is far. So is Paris."
    rows = [
        QuestionRow("squad", "wiki/0", 1, "What is the capital of A?", twice, "t5", "one", None, None),
        QuestionRow("squad", "wiki/1", 1, "What is the capital of B?", other, "t5", "two", None, None),
    ]
    filtered = filter_corpus(
        spec(write_corpus(tmp_path / "in", rows), unanswerable=0.5), RuleBasedAnswerer(), tmp_path / "out"
    )
    made = [row for row in rows_of(tmp_path / "out") if row.method != "t5"]
    assert {row.text for row in made} == {"What is the capital of B?"}, (
        "the article's only paragraph: any other"
    )
    assert filtered.tally.refused[Rejection.HELD] == 2 and filtered.tally.made.total() == 2


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mtkd.api.question_filtering.load_answerer", lambda directory, device: RuleBasedAnswerer()
    )


def test_only_teachers_that_give_no_answer_get_unanswerable_questions(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    for name, share in (("squad", 0.0), ("squad_v2", 0.33)):
        model = MultiTaskModel.without_heads(str(tiny_encoder), None)
        model.set_tasks([TASKS[name]])
        model.save(tmp_path / name)
        assert usual_unanswerable(tmp_path / name) == share
    assert usual_unanswerable(tmp_path / "missing") == 0


def test_the_filter_command(mtkd: Callable, teacher, corpus, tmp_path):
    words = (
        "augment",
        "questions",
        "filter",
        "--corpus",
        corpus,
        "--teacher",
        "runs/qa",
        "--out",
        tmp_path / "c",
    )
    answered = mtkd(*words, "--labels", "--shard-rows", 32, "--unanswerable", 0.33)
    assert answered.code == 0, answered.err
    assert "repeated from another paragraph" in answered.out and "252 questions in" in answered.err
    answered = mtkd(*words, "--labels", "--shard-rows", 32, "--unanswerable", 0.33, "--json", "--quiet")
    assert json.loads(answered.out)["made"].keys() == {"other", "removed"} and answered.err == ""
    short = mtkd(*words, "--overwrite", "--unanswerable", 0.9)
    assert short.code == 0 and "WARNING" in short.err and "not 90.0%" in short.err


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--unanswerable", 1), "--unanswerable 1.0"),
        (("--unanswerable", -0.1), "0 or more, and below 1"),
        (("--unanswerable", "nan"), "--unanswerable nan"),
        (("--min-overlap", 0), "--min-overlap 0.0"),
        (("--min-overlap", 1.1), "a number above 0, up to 1"),
        (("--max-copied", 0), "--max-copied 0.0"),
        (("--min-confidence", "inf"), "--min-confidence inf"),
        (("--shard-rows", 0), "--shard-rows 0"),
        (("--min-confidence", 9), "no question was kept"),
    ],
)
def test_invalid_usage_is_one_error_and_writes_nothing(
    mtkd: Callable, teacher, corpus, tmp_path, options, part
):
    words = ("augment", "questions", "filter", "--corpus", corpus, "--teacher", "t", "--out", tmp_path / "c")
    answered = mtkd(*words, *options)
    assert answered.code == 2 and part in answered.err and "Traceback" not in answered.err
    assert not list((tmp_path / "c").glob("[!.]*"))


def test_a_missing_corpus_is_named(mtkd: Callable, tmp_path: Path) -> None:
    words = (
        "augment",
        "questions",
        "filter",
        "--corpus",
        "nowhere",
        "--teacher",
        "t",
        "--out",
        tmp_path / "c",
    )
    answered = mtkd(*words)
    assert answered.code == 2 and "there is no corpus nowhere" in answered.err
    assert not (tmp_path / "c").exists()


def test_if_no_question_is_kept_the_error_lists_the_reasons(corpus, tmp_path):
    with pytest.raises(UserError) as error:
        filter_corpus(spec(corpus, min_confidence=9), RuleBasedAnswerer(), tmp_path / "c")
    assert "193  dropped: the teacher finds no answer" in str(error.value)
    assert "`round_trip=False`" in str(error.value) and not contents(tmp_path / "c")


def test_invalid_question_corpora_are_rejected(corpus, tmp_path):
    copies = write_corpus(tmp_path / "copies", QUESTIONS[:8], kind="copies")
    with pytest.raises(UserError, match="is a corpus of copies"):
        filter_corpus(spec(copies), RuleBasedAnswerer(), tmp_path / "c")
    with pytest.raises(UserError, match="has no questions"):
        filter_corpus(spec(write_corpus(tmp_path / "empty", [])), RuleBasedAnswerer(), tmp_path / "c")
    damaged = write_corpus(tmp_path / "damaged", QUESTIONS)
    raw = bytearray((damaged / "data/squad-00001.parquet").read_bytes())
    raw[len(raw) // 2] ^= 1
    (damaged / "data/squad-00001.parquet").write_bytes(raw)
    with pytest.raises(UserError, match=r"squad-00001.parquet was altered"):
        filter_corpus(spec(damaged), RuleBasedAnswerer(), tmp_path / "c")
    with pytest.raises(UserError, match="is the path of the corpus"):
        mtkd.augment.filter_questions(corpus, "teacher", corpus)
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"do not belong to a corpus: thesis.tex"):
        filter_corpus(spec(corpus), RuleBasedAnswerer(), tmp_path / "c", overwrite=True)
    assert list(contents(tmp_path / "c")) == ["thesis.tex"]


@pytest.mark.parametrize("start", [-1, 3, 100])
def test_an_answer_at_the_wrong_position_is_an_error(start):
    def wrong(questions, contexts):
        return [Answer("Rome", start, 2.0, 1.0)]

    with pytest.raises(UserError, match="is not at character"):
        list(checked_answers(wrong, ["Where?"], ["In Paris and Rome."]))


def test_text_checks_on_examples():
    for text in ("Where is it", "it is called what", "Is it so?", "هل هذا صحيح؟"):
        assert is_question(text)
    for text in ("", "What?", "It is called so.", "Whatever it is"):
        assert not is_question(text)
    context = ["the", "river", "of", "rome", "is", "the", "tiber"]
    assert copied_share(["rome", "is", "the", "tiber"], context) == 1.0
    assert copied_share(["the", "river"], context) == 1.0
    assert copied_share(["what", "is", "the", "river", "of", "rome"], context) == 0.5
    assert copied_share([], context) == 0.0
    seen = Seen()
    pairs = [
        ("Who was he?", "a"),
        ("who was HE", "a"),
        ("Who was he?", "b"),
        ("Who was he?", "b"),
        ("Who?", "b"),
    ]
    repeated, elsewhere = Reason.REPEATED, Reason.ELSEWHERE
    assert [seen.check(*pair) for pair in pairs] == [None, repeated, elsewhere, repeated, None]


def test_context_cuts_on_examples():
    context = "One was here. Two met Dr. Three there. Four left. Five stayed.  Six slept."
    answer = Answer("Three", context.index("Three"), 1.0, 0.0)
    assert (
        sentences_around(context, answer.start, answer.stop, 1)
        == "One was here. Two met Dr. Three there. Four left."
    )
    assert (
        remove_sentences(context, answer.start, answer.stop)
        == "One was here. Four left. Five stayed. Six slept."
    )
    across = Answer("left. Five", context.index("left"), 1.0, 0.0)
    assert (
        remove_sentences(context, across.start, across.stop)
        == "One was here. Two met Dr. Three there. Six slept."
    )
    assert remove_sentences("Only one.", 5, 8) == ""


def test_empty_shards_and_corpora_without_asked_for(tmp_path):
    rows = make_questions(7)
    corpus = write_corpus(tmp_path / "c", rows)
    manifest = json.loads((corpus / "manifest.json").read_text())
    path = corpus / manifest["shards"][0]["file"]
    pq.write_table(pq.read_table(path).drop_columns("asked_for"), path)
    empty = corpus / "data/squad-00001.parquet"
    pq.write_table(question_table([]), empty)
    manifest["shards"].append({**manifest["shards"][0], "file": "data/squad-00001.parquet", "rows": 0})
    for shard, file in zip(manifest["shards"], (path, empty), strict=True):
        shard |= {"sha256": digest_file(file), "bytes": file.stat().st_size}
    write_json(corpus / "manifest.json", manifest)
    filtered = filter_corpus(spec(corpus), RuleBasedAnswerer(), tmp_path / "out")
    assert filtered.tally.read == len(rows) and all(
        row.asked_for is None for row in rows_of(tmp_path / "out")
    )


@pytest.mark.parametrize("column", ["text_pair", "method", "task"])
def test_a_shard_without_a_column_that_is_needed_is_damaged(column, tmp_path):
    corpus = write_corpus(tmp_path / "c", make_questions(7))
    manifest = json.loads((corpus / "manifest.json").read_text())
    path = corpus / manifest["shards"][0]["file"]
    pq.write_table(pq.read_table(path).drop_columns(column), path)
    manifest["shards"][0] |= {"sha256": digest_file(path), "bytes": path.stat().st_size}
    write_json(corpus / "manifest.json", manifest)
    with pytest.raises(UserError, match=f"has no column '{column}' of "):
        filter_corpus(spec(corpus), RuleBasedAnswerer(), tmp_path / "out")
