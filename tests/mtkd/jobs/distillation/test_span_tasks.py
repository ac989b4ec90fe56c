"""Span tasks from end to end: teacher, students of several recipes, store, scores, answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mtkd.api.load_model import load
from mtkd.evaluation.question_answering import SpanAnswerer
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.finetune import finetune
from mtkd.jobs.knowledge_store.build_store import build_store
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.refine import refine
from mtkd.jobs.request import Request
from mtkd.losses.logits import logits_mse, soft_label_kl
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings
from tasks.common.errors import MtkdWarning, UserError
from tasks.heads import PADDED

SMALL = {"train.epochs": 1, "train.batch_size": 16, "max_length": 48, "stride": 8, "train.warmup": 0.0}
STUDENT = {
    "student.max_length": 48,
    "student.stride": 8,
    "student.transformer.hidden_size": 16,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 32,
    "student.transformer.init": "random",
}


def test_losses_on_spans_ignore_padding() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(3, 2, 6), torch.randn(3, 2, 6)
    mask = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    wide = [
        torch.nn.functional.pad(z.masked_fill(~mask[:, None], PADDED), (0, 3), value=PADDED)
        for z in (mine, theirs)
    ]
    wide_mask = torch.nn.functional.pad(mask, (0, 3))
    naive_mse, naive_kl = 0.0, 0.0
    for row, count in enumerate((6, 4, 2)):
        for side in (0, 1):
            s, t = mine[row, side, :count], theirs[row, side, :count]
            naive_mse += float((s - t).square().mean()) / 6
            p = (t / 2).softmax(0)
            naive_kl += float((p * (p.log() - (s / 2).log_softmax(0))).sum()) * 4 / 6
    assert float(logits_mse(*wide, wide_mask)) == pytest.approx(naive_mse, rel=1e-5)
    assert float(soft_label_kl(*wide, 2.0)) == pytest.approx(naive_kl, rel=1e-5)


def test_a_teacher_of_span_and_classification_tasks_is_scored_on_both(span_teacher: Path) -> None:
    scores = json.loads((span_teacher / "run.json").read_text())["scores"]
    assert set(scores) == {"squad_v2/validation", "rte/validation"}
    spans = scores["squad_v2/validation"]
    assert set(spans["metrics"]) == {"exact_match", "f1"} and spans["rows"] == 32
    assert set(spans["details"]) == {"has_answer_exact_match", "has_answer_f1", "no_answer_accuracy"}
    assert spans["threshold"] is not None
    # The threshold was tuned on these rows: always predicting "no answer" cannot be better.
    assert spans["primary"] >= spans["majority"] > 0
    again = evaluate(span_teacher, "pocket", "squad_v2", limit=32).scores
    assert again[0].metrics == spans["metrics"]


@pytest.mark.parametrize(
    "recipe", ["mkd-transformer", "tinybert-4", "mlkd-bert-4", "distilbert-6", "bert-pkd-3", "waldorf"]
)
def test_recipes_distil_span_and_classification_tasks_together(
    recipe: str, span_teacher: Path, tmp_path: Path
) -> None:
    sizes = STUDENT | {"student.transformer.layers": 2}
    if recipe == "waldorf":
        sizes = {key: value for key, value in sizes.items() if not key.startswith("student.transformer.")}
        sizes |= {"student.waldorf.layers": 2, "student.waldorf.heads": 2}
    settings = load_settings(recipe, "distill", sizes, "squad_v2,rte")
    stages = {f"stages.{name}.train.epochs": 1 for name in settings.stages}
    settings = load_settings(
        recipe, "distill", {**sizes, **stages, "train.epochs": 1, "train.batch_size": 16}, "squad_v2,rte"
    )
    run = distill(Request("pocket", "squad_v2,rte", tmp_path / "run", 24, 16), settings, str(span_teacher))
    for score in run.record["scores"].values():
        assert np.isfinite(score["loss"])


def test_a_store_gives_the_same_student_of_a_span_task_as_the_teacher(
    span_teacher: Path, tmp_path: Path
) -> None:
    sets = STUDENT | {"student.transformer.layers": 2, "train.epochs": 2, "train.batch_size": 16}
    sets |= {
        "train.lr": 5e-5,
        "student.dropout": 0.0,
        "student.transformer.dropout": 0.0,
        "terms.logits.loss": "soft_labels",
    }
    request = StoreRequest("mkd-transformer", "pocket", "squad_v2,rte", str(span_teacher), sets, limit=24)
    build_store(request, tmp_path / "store", command="test")
    settings = load_settings("mkd-transformer", "distill", sets, "squad_v2,rte")
    distill(Request("pocket", "squad_v2,rte", tmp_path / "a", 24, 16), settings, str(span_teacher))
    distill(
        Request("pocket", "squad_v2,rte", tmp_path / "b", 24, 16), settings, None, store=tmp_path / "store"
    )
    one, other = (MultiTaskModel.load(tmp_path / name).state_dict() for name in "ab")
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], atol=5e-5, rtol=0)


def test_students_that_read_texts_separately_are_rejected(span_teacher: Path, tmp_path: Path) -> None:
    settings = load_settings("mkd-lstm", "distill", {}, "squad_v2")
    with pytest.raises(UserError, match="has no vector for each token"):
        distill(Request("pocket", "squad_v2", tmp_path / "run"), settings, str(span_teacher))
    assert not (tmp_path / "run").exists()


def test_a_student_can_be_fine_tuned_on_a_span_task(span_teacher: Path, tmp_path: Path) -> None:
    settings = load_settings("finetune", "finetune", {"train.epochs": 1, "learning_rates": [1e-4]})
    run = finetune(Request("pocket", "squad", tmp_path / "run", 16, 16), settings, span_teacher)
    assert set(run.record["scores"]) == {"squad/validation"}, "a task that it did not know"
    bilstm = load_settings("mkd-lstm", "distill", {"train.epochs": 1, "student.max_length": 32}, "rte")
    distill(Request("pocket", "rte", tmp_path / "lstm", 16, 16), bilstm, str(span_teacher))
    with pytest.raises(UserError, match="question and the context separately"):
        finetune(Request("pocket", "squad", tmp_path / "not"), settings, tmp_path / "lstm")
    assert not (tmp_path / "not").exists()


def test_contrastive_losses_reject_span_tasks(span_teacher: Path, tmp_path: Path) -> None:
    sets = {**STUDENT, "student.transformer.layers": 2, "terms.sc.task_types": None}
    settings = load_settings("mlkd-bert-4", "distill", sets, "squad_v2")
    with pytest.raises(UserError, match="contrasts classes, but 'squad_v2' has spans of a text"):
        distill(Request("pocket", "squad_v2", tmp_path / "run"), settings, str(span_teacher))


def test_answers_outside_every_window_are_reported(tiny_encoder: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    context = " ".join(f"w{n}" for n in range(60))
    row = {"id": "1", "context": context, "question": "which?"}
    row["answers"] = {"text": [context[:150]], "answer_start": [0]}
    short = dict(row, id="2", answers={"text": ["w1"], "answer_start": [3]})
    (tmp_path / "squad").mkdir()
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist([row, short]), tmp_path / f"squad/{split}.parquet")
    warned: list[str] = []
    settings = load_settings("refine", "refine", SMALL)
    request = Request(str(tmp_path), "squad", tmp_path / "run")
    refine(request, settings, str(tiny_encoder), warn=warned.append)
    same_rows, no_window, chance = warned
    assert "2 of the 2 rows of squad/validation (100%) are also in the training rows" in same_rows
    assert "is not clearly better" in chance
    assert "1 answer of squad is in no window of 48 tokens" in no_window
    assert "squad/train/0" in no_window and "max_length" in no_window


def test_file_predictions_match_those_of_the_answerer(
    span_teacher: Path, tmp_path: Path, mtkd: Callable
) -> None:
    asked = [
        {
            "id": "a",
            "question": "Who founded the castle?",
            "context": "The castle was founded by Ann Lee. " * 6,
        },
        {"id": "b", "question": "Wo?", "context": "München – im Süden."},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    place = tmp_path / "out.jsonl"
    done = mtkd(
        "predict",
        "--model",
        span_teacher,
        "--task",
        "squad_v2",
        "--in",
        tmp_path / "in.jsonl",
        "--out",
        place,
    )
    assert done.code == 0, done.err
    found = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in found] == ["a", "b"]
    model = MultiTaskModel.load(span_teacher)
    threshold = model.threshold(model.tasks["squad_v2"])
    answers = SpanAnswerer.load(span_teacher)([q["question"] for q in asked], [q["context"] for q in asked])
    for line, given, answer in zip(found, asked, answers, strict=True):
        best = line["n_best"][0]
        assert (best["text"], best["start"]) == (answer.text, answer.start)
        assert given["context"][answer.start : answer.start + len(answer.text)] == answer.text
        assert best["score"] == pytest.approx(answer.score, abs=1e-3)
        assert line["no_answer_score"] == pytest.approx(answer.null + threshold, abs=1e-3)
        assert line["prediction"] in ("", answer.text)
        assert len(line["n_best"]) > 3 and len({c["text"] for c in line["n_best"]}) == len(line["n_best"])


@pytest.mark.parametrize("contexts", [["", " \n"], ["", "The castle was founded by Ann Lee. " * 6]])
def test_an_empty_context_has_no_answer(
    contexts: list[str], span_teacher: Path, tmp_path: Path, mtkd: Callable
) -> None:
    rows = [{"question": "Who founded the castle?", "context": context} for context in contexts]
    blank = sum(not context.strip() for context in contexts)
    with pytest.warns(MtkdWarning, match=f"{blank} rows? with an empty text"):
        found = load(span_teacher).predict("squad_v2", rows)
    for context, answer in zip(contexts, found, strict=True):
        if not context.strip():
            assert [answer[key] for key in ("prediction", "start", "score", "n_best")] == ["", None, None, []]
        else:
            assert answer["n_best"]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ("--in", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl")
    done = mtkd("predict", "--model", span_teacher, "--task", "squad_v2", *files)
    assert done.code == 0 and "WARNING" in done.err
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [line["prediction"] for line in lines] == [answer["prediction"] for answer in found]


def test_a_model_without_span_tasks_cannot_answer_questions(tiny_teacher: Path) -> None:
    with pytest.raises(UserError, match="cannot answer questions"):
        SpanAnswerer.load(tiny_teacher)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"answers": {"text": ["red"], "answer_start": [1]}},
            "the context does not contain the answer 'red' at offset 1",
        ),
        ({"answers": {"text": [" "], "answer_start": [3]}}, "blank answer ' '"),
        ({"context": "  "}, "empty context"),
        ({"id": "1"}, "id '1' is also at"),
    ],
)
def test_invalid_rows_stop_a_run_before_training(
    change: dict, message: str, tmp_path: Path, mtkd: Callable
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    good = {"context": "a red house", "question": "q?", "answers": {"text": ["red"], "answer_start": [2]}}
    rows = [good | {"id": "1"}, good | {"id": "2", "answers": {"text": [], "answer_start": []}} | change]
    if "context" in change:
        rows[1]["answers"] = {"text": [], "answer_start": []}
    (tmp_path / "squad").mkdir()
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"squad/{split}.parquet")
    done = mtkd("refine", "--data", tmp_path, "--tasks", "squad", "--out", tmp_path / "run")
    assert done.code == 2 and message in done.err and "Traceback" not in done.err
    assert not (tmp_path / "run").exists()
