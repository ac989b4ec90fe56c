"""Answers for unlabelled rows: a JSON-lines file in and out, and GLUE's submission folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtkd.evaluation.question_answering import answer_spans
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.files import atomic_directory, atomic_path
from tasks.glue import TASKS
from tasks.progress import progress
from tasks.rows import Rows
from tasks.sources import DataSource, load_file, load_rows
from tasks.task import Task
from tasks.task_types import decode, probabilities

# GLUE's site wants a file for every test set, of exactly so many rows.
SUBMISSION_ROWS = {
    "CoLA.tsv": 1063,
    "SST-2.tsv": 1821,
    "MRPC.tsv": 1725,
    "STS-B.tsv": 1379,
    "QQP.tsv": 390_965,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "QNLI.tsv": 5463,
    "RTE.tsv": 3000,
    "WNLI.tsv": 146,
    "AX.tsv": 1104,
}
N_BEST = 20  # spans of an answered question
_NAMED = ("mnli", "qnli", "rte", "ax")  # submitted as label names; the other tasks as numbers


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a submission: its rows, and whether a model answered them or a constant fills it."""

    file: str
    task: str
    rows: int
    filled: str | None


def answer(
    model: MultiTaskModel, task: Task, rows: Rows, batch_size: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, C) and answers (n,) of unlabelled rows.

    Raises:
        UserError: the model has no head for the task.
    """
    model.require([task], "the model")
    encoded = Encoded.encode(rows, model.tokeniser)
    with progress(f"predicting {task.name}", len(rows)) as advance:
        logits = predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)
    return logits, decode(task, logits, encoded.groups)


def predict_file(model: MultiTaskModel, task: Task, source: Path, out: Path, batch_size: int = 64) -> int:
    """Answer every row of a JSON-lines file and write the lines with `prediction` added.

    Classes also get `prediction_id` and `probabilities`, one per label; scores only `prediction`. For a span
    task it is the answer's text ("" = none), with `start` (character), `score`, `no_answer_score` and the
    20 best spans as `n_best`.

    Args:
        source: one JSON object per line with the task's columns; other keys are kept unchanged.
        out: another file than `source`.

    Returns:
        how many rows were answered.

    Raises:
        UserError: the file is missing, `out` is the same file (by another path or a link, too), a line is
            malformed (file and line), or a column is missing.
    """
    if not source.is_file():
        raise UserError(f"no such file: {source}", hint="--in takes a file of JSON lines")
    if source.suffix not in (".jsonl", ".json-lines"):
        raise UserError(f"--in {source}: not a file of JSON lines", expected="a .jsonl file")
    if out.exists() and out.samefile(source):
        raise UserError(
            f"--out {out} is the file that --in {source} reads: it would be overwritten",
            hint="name another file",
        )
    try:
        rows = load_file(source, task)
    except UserError as error:
        wanted = " and ".join(task.columns)
        raise UserError(error.problem, expected=f"one JSON object a line, each with {wanted}") from error
    answers = _answers_of_spans if task.kind == "span" else _answers_of_rows
    given = [json.loads(line) for line in source.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    with atomic_path(out) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        for record, found in zip(given, answers(model, task, rows, batch_size), strict=True):
            record |= found
            handle.write(json.dumps(record, ensure_ascii=False) + "\n")
    return len(given)


def _answers_of_rows(
    model: MultiTaskModel, task: Task, rows: Rows, batch_size: int
) -> Iterator[dict[str, Any]]:
    logits, answers = answer(model, task, rows, batch_size)
    shares = probabilities(task, logits, rows.groups)
    return (
        _record(task, value, None if shares is None else shares[index]) for index, value in enumerate(answers)
    )


def _answers_of_spans(
    model: MultiTaskModel, task: Task, rows: Rows, batch_size: int
) -> Iterator[dict[str, Any]]:
    label = f"predicting {task.name}"
    found = answer_spans(model, task, rows, batch_size=batch_size, n_best=N_BEST, label=label)
    threshold = model.threshold(task)
    if task.unanswerable and threshold is None:
        threshold = 0.0
    for text, candidates, null in zip(found.texts(threshold), found.candidates, found.null, strict=True):
        best = [{"text": c.text, "start": c.start, "score": round(c.score, 4)} for c in candidates]
        yield {
            "prediction": text,
            "start": candidates[0].start if text else None,
            "score": best[0]["score"] if best else None,
            "no_answer_score": round(float(null), 4),
            "n_best": best,
        }


def _record(task: Task, value: Any, shares: np.ndarray | None) -> dict[str, Any]:
    if shares is None:
        return {"prediction": round(float(value), 6)}
    by_name = {name: round(float(share), 6) for name, share in zip(task.labels, shares, strict=True)}
    return {"prediction": task.labels[int(value)], "prediction_id": int(value), "probabilities": by_name}


def glue_submission(
    models: list[MultiTaskModel], data: DataSource, out: Path, batch_size: int = 64
) -> list[SubmissionFile]:
    """Write a complete GLUE submission folder: eleven TSV files, index and prediction.

    A task that no model knows, or whose test rows are not in `data`, is filled with a constant answer, so
    that the folder is complete; the result says which.

    Args:
        models: each task is answered by the first that knows it.
        data: where the test splits come from.
    """
    found = []
    with atomic_directory(out) as place:
        for task in TASKS.values():
            model = next((m for m in models if task.head in m.tasks), None)
            for split, file in task.submission.items():
                there = split in data.splits(task)
                why = (
                    "no model knows the task"
                    if model is None
                    else None
                    if there
                    else "no test rows in the data"
                )
                if model is None or not there:
                    count = len(load_rows(data, task, split)) if there else SUBMISSION_ROWS[file]
                    answers = np.full(count, float(np.mean(task.range)) if task.range else 0)
                else:
                    rows = load_rows(data, task, split)
                    answers = answer(model, task, rows, batch_size)[1]
                lines = [f"{index}\t{_submitted(task, value)}" for index, value in enumerate(answers)]
                (place / file).write_text("\n".join(["index\tprediction", *lines]) + "\n", encoding="utf-8")
                if len(answers) != SUBMISSION_ROWS[file]:
                    why = f"{why or 'the model'}; GLUE wants {SUBMISSION_ROWS[file]:,} rows"
                found.append(SubmissionFile(file, task.name, len(answers), why))
    return found


def _submitted(task: Task, value: Any) -> str:
    if task.kind == "regress":
        return f"{float(value):.3f}"
    return task.labels[int(value)] if task.name in _NAMED else str(int(value))
