"""`span`: extractive question answering; the answer is a span of the context."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.data.raw_table import TEXT_TYPES, RawTable
from tasks.data.rows import ANSWERS, answered
from tasks.scoring.row_predictions import RowPredictions
from tasks.scoring.squad import best_threshold, exact_match, gold_answers, score_texts, token_f1
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels, RowProblem
from tasks.task_types.results import LossSum, SplitScores
from tasks.task_types.task_type import Metrics, TaskType

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.tokens.encoding import Encoded
    from tasks.tokens.token_layout import Layout

N_BEST = 20  # spans in the record of a row
_NO_TOKEN = -100


class Span(TaskType):
    """A span of the second text, or no answer; logits (B, 2, L), labels (B, 2) first and last token."""

    metrics: ClassVar[Metrics] = {"exact_match": exact_match, "f1": token_f1}
    default_metrics = ("exact_match", "f1")
    fields = ("unanswerable", "max_answer_tokens", "languages")
    baseline = "always answering that there is no answer"
    predicts_spans = True
    outputs = "spans of a text"
    label_type = ANSWERS

    def check(self, task: Task) -> None:
        if len(task.columns) != 2:
            raise UserError("span tasks need two columns", expected='["question", "context"], in this order')

    def read_labels(self, task: Task, split: str, table: RawTable) -> ParsedLabels:
        """Labels 1 for rows with an answer and 0 for rows without one, and the answers themselves.

        Each answer must occur in the context at `answer_start`, and ids must be unique. The context of a
        labelled row must not be empty.
        """
        column = table.table[task.label].combine_chunks()
        problems = [*_answer_problems(task, split, table), *_id_problems(table)]
        return ParsedLabels(answered(column), problems, None if problems else column.cast(ANSWERS))

    def check_label_column(self, task: Task, column: pa.DataType) -> str | None:
        parts = {field.name: field.type for field in column} if pa.types.is_struct(column) else {}
        texts, starts = (_entries(parts.get(name)) for name in ("text", "answer_start"))
        fits = texts in (*TEXT_TYPES, pa.null()) and (pa.types.is_integer(starts) or starts == pa.null())
        return None if fits else "a struct of lists: text (texts), answer_start (integers)"

    def label_text(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        """None: the same question about the same context is a duplicate, whatever its answers."""
        return None

    def balance(self, task: Task, labels: ParsedLabels) -> list[tuple[str, int]]:
        invalid = {problem.row for problem in labels.problems if problem.column == task.label}
        values = np.delete(labels.values, sorted(invalid))
        some = int((values == 1).sum())
        return [("answer", some), ("no answer", len(values) - some)]

    def n_outputs(self, task: Task) -> int:
        """Two: start and end."""
        return 2

    def logits_shape(self, task: Task, max_length: int) -> tuple[int, ...]:
        return (2, max_length)

    def build_head(self, task: Task, width: int, hidden: int, dropout: float) -> nn.Module:
        from tasks.heads import SpanHead

        return SpanHead(width, hidden, dropout)

    def loss(self, task: Task, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> LossSum:
        """The mean of the cross-entropies of the first and last token (BERT, section 4.2)."""
        import torch
        from torch.nn import functional

        labels = labels.float()
        labelled = ~labels.isnan().any(1)
        tokens = torch.where(labelled.unsqueeze(1), labels, _NO_TOKEN).nan_to_num(nan=_NO_TOKEN).long()
        total = functional.cross_entropy(
            logits.float().flatten(0, 1), tokens.flatten(), ignore_index=_NO_TOKEN, reduction="sum"
        )
        return LossSum(total / 2, labelled.sum())

    def decode(
        self, task: Task, logits: np.ndarray, groups: np.ndarray | None = None, threshold: Any = None
    ) -> np.ndarray:
        raise UserError(f"task {task.name!r}: span tasks predict answers of whole rows, not of windows")

    def has_threshold(self, task: Task) -> bool:
        """True if a question may have no answer."""
        return task.unanswerable

    def threshold_problem(self, task: Task, threshold: Any) -> str | None:
        """A threshold is a finite number."""
        fits = type(threshold) in (int, float) and math.isfinite(threshold)
        return None if fits else "a finite number"

    def predictions_problem(self, task: Task, rows: RowPredictions) -> str | None:
        """Each row has a text, and the value of each metric."""
        if rows.predictions.dtype != object or rows.labels.ndim != 1:
            return "its predictions are not texts, or its labels not numbers"
        missing = [name for name in task.metrics if np.ndim(rows.by_row.get(name, 0)) != 1]
        return f"it has no column {'metric.' + missing[0]!r} of numbers" if missing else None

    def evaluate(
        self, task: Task, split: str, encoded: Encoded, logits: np.ndarray, layout: Layout, threshold: Any
    ) -> SplitScores:
        from tasks.scoring.span_answers import decode_spans

        assert encoded.windows is not None, "all windows are needed"
        whole_rows = encoded.windows.whole_rows
        if not whole_rows.labelled or whole_rows.answers is None:
            raise UserError(
                f"split {split!r} of task {task.name!r} is not labelled, so it cannot be scored",
                hint="score a labelled split; use `mtkd.predict` for unlabelled rows",
            )
        answers, language = (
            decode_spans(encoded, logits, layout, task.max_answer_tokens),
            task.language(split),
        )
        golds = gold_answers(whole_rows.answers, language)
        if task.unanswerable and threshold is None:
            pairs = [(*pair, language) for pair in zip(answers.texts(None), golds, strict=True)]
            spans = np.array([exact_match(*pair) + token_f1(*pair) for pair in pairs])
            nulls = np.array([2.0 * (gold == [""]) for gold in golds])
            threshold = best_threshold(answers.lead, spans, nulls)
        texts = answers.texts(threshold)
        scores = score_texts(texts, golds, threshold, language)
        by_metric = {name: getattr(scores, name) for name in task.metrics}
        by_row = {
            name: np.array([self.metrics[name](*pair, language) for pair in zip(texts, golds, strict=True)])
            for name in task.metrics
        }
        has_answer = np.array([float(gold != [""]) for gold in golds])
        rows = RowPredictions(whole_rows.uids, has_answer, np.array(texts, dtype=object), by_row=by_row)
        majority = float(1 - has_answer.mean()) if task.unanswerable else 0.0
        return SplitScores(len(whole_rows), by_metric, majority, scores.by_kind, threshold, rows)

    def best_constant(self, task: Task, rows: RowPredictions) -> RowPredictions:
        """No answer to any question."""
        right = 1.0 - rows.labels if task.unanswerable else np.zeros(len(rows))
        texts = np.full(len(rows), "", dtype=object)
        return replace(rows, predictions=texts, by_row=dict.fromkeys(task.metrics, right))

    def records(
        self, task: Task, encoded: Encoded, logits: np.ndarray, layout: Layout, threshold: Any
    ) -> Iterator[dict[str, Any]]:
        """The answer ("" = none), its `start` (character offset), `score`, `no_answer_score` and `n_best`."""
        from tasks.scoring.span_answers import decode_spans

        answers = decode_spans(encoded, logits, layout, task.max_answer_tokens, N_BEST)
        if task.unanswerable and threshold is None:
            threshold = 0.0
        for text, candidates, null in zip(
            answers.texts(threshold), answers.candidates, answers.null, strict=True
        ):
            best = [{"text": c.text, "start": c.start, "score": round(c.score, 4)} for c in candidates]
            yield {
                "prediction": text,
                "start": candidates[0].start if text else None,
                "score": best[0]["score"] if best else None,
                "no_answer_score": round(float(null), 4),
                "n_best": best,
            }


def _entries(column: pa.DataType | None) -> pa.DataType:
    """The type of a list column's entries; for other columns an empty struct, which no check accepts."""
    if column is None or not (pa.types.is_list(column) or pa.types.is_large_list(column)):
        return pa.struct([])
    return column.value_type


def _answer_problems(task: Task, split: str, table: RawTable) -> Iterator[RowProblem]:
    contexts = table.table[task.columns[-1]].to_pylist()
    answers = table.table[task.label].to_pylist()
    for row, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        if context is None:
            continue
        if answer is None and split in task.test:
            continue
        if not context.strip():
            yield RowProblem(row, task.columns[-1], "empty context")
        if message := _answer_problem(context, answer):
            yield RowProblem(row, task.label, message, "invalid answer")


def _id_problems(table: RawTable) -> Iterator[RowProblem]:
    if "id" not in table.table.column_names:
        return
    first: dict[str, int] = {}
    for row, value in enumerate(table.table["id"].to_pylist()):
        name = repr(value)
        if value is not None and first.setdefault(name, row) != row:
            yield RowProblem(row, "id", f"id {name} is also at {table.location(first[name])}", "repeated id")


def _answer_problem(context: str, answer: dict | None) -> str | None:
    if answer is None or answer["text"] is None or answer["answer_start"] is None:
        return "null instead of answers"
    texts, starts = answer["text"], answer["answer_start"]
    if len(texts) != len(starts):
        return f"{len(texts)} answer texts but {len(starts)} starts"
    for text, start in zip(texts, starts, strict=True):
        if text is None or start is None:
            return "null instead of the text or the start of an answer"
        if not text.strip():
            return f"blank answer {text!r}; a question without an answer has an empty list"
        if start < 0 or context[start : start + len(text)] != text:
            return f"the context does not contain the answer {text!r} at offset {start}"
    return None
