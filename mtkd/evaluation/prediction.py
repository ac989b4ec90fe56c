"""Predictions for unlabelled rows, and the submission folder for GLUE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.output_directory import OutputKind, check_directory, has_claim, open_directory
from mtkd.torch_state import with_torch_defaults
from tasks.checks.truncated_rows import TruncatedRows
from tasks.common.errors import UserError
from tasks.common.files import staged_directory
from tasks.common.progress import progress
from tasks.data.loading import load_rows
from tasks.data.rows import Rows
from tasks.data.sources import DataSource
from tasks.glue import TASKS
from tasks.model_tasks import prediction_records
from tasks.task import Task
from tasks.tokens.encoding import Encoded

# The GLUE website requires one file per test set, with exactly this many rows.
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
_SUBMISSION = OutputKind(
    "submission", "WNLI.tsv", tuple(map(re.escape, SUBMISSION_ROWS)), lambda directory: None
)
_HINT = "choose an empty or new directory"
_NAMED = ("mnli", "qnli", "rte", "ax")  # submitted as label names; the other tasks as numbers


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a submission.

    Attributes:
        rows: the number of rows in the file.
        expected: the number of rows that GLUE expects.
        filled: None if a model predicted the rows, else why the file holds a constant.
    """

    file: str
    task: str
    rows: int
    expected: int
    filled: str | None


@with_torch_defaults
def encode_and_predict(
    model: MultiTaskModel, task: Task, rows: Rows, batch_size: int = 64, show: bool = True
) -> tuple[Encoded, np.ndarray]:
    """Encode rows as the model reads them, and compute its logits.

    Args:
        show: whether to show the progress.

    Raises:
        UserError: the model has no head for the task.
    """
    model.require_heads([task], "the model")
    encoded = Encoded.encode(model.reader.rows(rows), model.tokeniser)
    with progress(f"predicting {task.name}", len(encoded), show=show) as advance:
        return encoded, predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)


def predict_rows(
    model: MultiTaskModel,
    task: Task,
    rows: Rows,
    batch_size: int = 64,
    show: bool = True,
    truncated: TruncatedRows | None = None,
) -> Iterator[dict[str, Any]]:
    """One record per row, with `prediction` and the other values of the task's type (`TaskType.records`).

    Args:
        truncated: where to count truncated rows, for one warning about many parts; by default, warn of them.

    Raises:
        UserError: the model has no head for the task.
    """
    encoded, logits = encode_and_predict(model, task, rows, batch_size, show)
    reader, threshold = model.reader_of(task), model.threshold(task)
    yield from prediction_records(task, reader, encoded, logits, threshold, truncated)


def check_submission_directory(out: Path) -> None:
    """Check that a submission can be written to a directory: that it is empty, or holds an unfinished one.

    Raises:
        UserError: it holds a finished submission, or other files.
    """
    if _SUBMISSION.finished(out) and not has_claim(out):
        raise UserError(f"{out} already holds a submission", hint=_HINT)
    try:
        check_directory(out, _SUBMISSION, "glue")
    except UserError as error:  # whose hint names the option --out
        raise UserError(error.problem, hint=_HINT) from error


def glue_submission(
    models: list[MultiTaskModel], data: DataSource, out: Path, batch_size: int = 64
) -> list[SubmissionFile]:
    """Write a complete GLUE submission folder: eleven TSV files with the columns index and prediction.

    If no model knows a task, or `data` does not contain its test rows, its file is filled with a constant
    prediction so that the folder is complete. The result says which files these are.

    Args:
        models: each task is predicted by the first model that knows it.
        data: the source of the test splits.

    Raises:
        UserError: `out` holds a finished submission, or other files.
    """
    check_submission_directory(out)
    submission_files = []
    with open_directory(out, _SUBMISSION, "glue"), staged_directory(out, _SUBMISSION.marker) as temporary:
        for task in TASKS.values():
            model = next((m for m in models if task.head in m.tasks), None)
            for split, file in task.submission.items():
                has_rows = split in data.splits(task)
                reason = None if has_rows else "no test rows in the data"
                if model is None:
                    reason = "no model knows the task"
                if model is None or not has_rows:
                    count = len(load_rows(data, task, split)) if has_rows else SUBMISSION_ROWS[file]
                    predictions = np.full(count, float(np.mean(task.range)) if task.range else 0)
                else:
                    rows = load_rows(data, task, split)
                    encoded, logits = encode_and_predict(model, task, rows, batch_size)
                    predictions = task.type.decode(task, logits, encoded.groups)
                lines = [
                    f"{index}\t{_submitted_value(task, value)}" for index, value in enumerate(predictions)
                ]
                (temporary / file).write_text(
                    "\n".join(["index\tprediction", *lines]) + "\n", encoding="utf-8"
                )
                submission_files.append(
                    SubmissionFile(file, task.name, len(predictions), SUBMISSION_ROWS[file], reason)
                )
    return submission_files


def _submitted_value(task: Task, value: Any) -> str:
    if not task.labels:
        return f"{float(value):.3f}"
    return task.labels[int(value)] if task.name in _NAMED else str(int(value))
