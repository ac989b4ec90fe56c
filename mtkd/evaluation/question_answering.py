"""Answer questions with a model that was trained on a `span` task, which finds the answer in a context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from mtkd.device import best_device
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import model_directory
from mtkd.torch_state import with_torch_defaults
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.common.sha256 import digest_bytes, digest_file
from tasks.data.rows import ANSWERS, Rows
from tasks.scoring.answers import Answer
from tasks.scoring.span_answers import SpanAnswers, decode_spans
from tasks.task import Task
from tasks.tokens.encoding import Encoded


def answer_spans(
    model: MultiTaskModel,
    task: Task,
    rows: Rows,
    *,
    batch_size: int = 64,
    n_best: int = 1,
    label: str = "",
) -> SpanAnswers:
    """Predict the answers for the rows of a span task.

    Args:
        label: the label of the progress bar; without one, no progress is shown.

    Raises:
        UserError: the model has no head for the task.
    """
    model.require_heads([task], "the model")
    encoded = Encoded.encode(model.reader.rows(rows), model.tokeniser)
    with progress(label, len(encoded), unit="windows", show=bool(label)) as advance:
        logits = predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)
    return decode_spans(encoded, logits, model.tokeniser.layout(2), task.max_answer_tokens, n_best)


class SpanAnswerer:
    """A model that answers lists of questions (see `tasks.scoring.answers.Answerer`).

    Attributes:
        digest: the SHA-256 of the model's files (weights, tokeniser, settings) and the precision.
    """

    def __init__(self, model: MultiTaskModel, task: Task, digest: str, precision: str = "fp32"):
        self._model = model
        self._task = task
        self.digest = digest
        self._precision = precision

    @classmethod
    def load(
        cls, directory: Path, device: torch.device | None = None, precision: str = "fp32"
    ) -> SpanAnswerer:
        """Load a saved model.

        Args:
            device: where it runs; None = on the best device available.
            precision: "bf16" runs the model under autocast.

        Raises:
            UserError: there is no model, or it was not trained on a span task.
        """
        model = MultiTaskModel.load(directory).to(device or best_device())
        spans = [task for task in model.tasks.values() if task.type.predicts_spans]
        if not spans:
            raise UserError(
                f"the model {directory} cannot answer questions: it was trained on {', '.join(model.tasks)}",
                expected="a model trained on squad, squad_v2 or another span task",
                hint="train one with `mtkd.refine(tasks='squad', ...)`",
            )
        # Prefer a task with unanswerable questions, from which the model has learnt to give no answer.
        task = max(spans, key=lambda task: task.unanswerable)
        files = sorted(path for path in model_directory(directory).iterdir() if path.is_file())
        return cls(model, task, digest_bytes(*map(digest_file, files), precision), precision)

    @with_torch_defaults
    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """Find the best span of each context for its question, and the score of "no answer"."""
        count = len(questions)
        if not count:
            return []
        uids = pa.array([str(n) for n in range(count)], pa.string())
        texts = pa.array(questions, pa.string()), pa.array(contexts, pa.string())
        unknown = pa.nulls(count, ANSWERS)
        rows = Rows(self._task.name, "asked", uids, texts, np.full(count, np.nan), answers=unknown)
        kind = next(self._model.parameters()).device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self._precision == "bf16"):
            spans = answer_spans(self._model, self._task, rows)
        nulls = spans.null - (self._model.threshold(self._task) or 0.0)
        return [
            Answer(best[0].text, best[0].start, best[0].score, float(null))
            if best
            else Answer("", -1, -np.inf, float(null))
            for best, null in zip(spans.candidates, nulls, strict=True)
        ]
