"""Training on plain text: streamed batches, and the loss on held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from mtkd.evaluation.scoring import TaskScores
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.teachers.teacher_sources import TeacherSource
from mtkd.train_settings import TrainSettings
from mtkd.training.batches import DrawnRows
from tasks.common.errors import UserError
from tasks.data.plain_text import HELD_OUT, TEXT_TASK, TextFiles
from tasks.task import Task
from tasks.tokens.batch_stream import cut_by_tokens
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded, length_sorted_batches
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.reader import Reader

EPOCH_STEPS = 1000
_HELD_OUT_EVERY = 64
_START = {"passes": 0, "texts": 0, "batch": 0}
_STREAM = 0x7E87  # separates the random numbers of this source from others with the same seed


class TextBatches:
    """Batches of text, pass after pass over the files, with memory use independent of their size.

    Texts are read in chunks. The texts of a chunk, one by one or packed (`encode_texts`), are cut into
    sequences of up to the reader's max_length, grouped into batches by length, and the batches are shuffled.
    So texts are shuffled within a chunk, not across the corpus. Every 64th text is held out until
    there are `held_out` of them.

    The cursor of a draw is the pass, the first text of the chunk, and the next batch of the chunk.
    """

    def __init__(
        self,
        files: TextFiles,
        collate: Collator,
        settings: TrainSettings,
        held_out: int = 512,
        pack: bool = False,
    ):
        self.tasks: Mapping[str, Task] = {TEXT_TASK.name: TEXT_TASK}
        self.collate = collate
        self._files = files
        self._settings = settings
        self._pack = pack
        self._limit = held_out * _HELD_OUT_EVERY
        self._stream: Iterator[DrawnRows] | None = None
        self._cursor: Mapping[str, Any] = {}

    def total(self, epochs: int) -> int:
        """The number of batches in `epochs` epochs; the held-out texts are evaluated after each epoch."""
        steps = self._settings.steps or EPOCH_STEPS
        return epochs * min(self._settings.steps_per_epoch or EPOCH_STEPS, steps)

    def epoch(self, number: int, start: int, cursor: Mapping[str, Any]) -> Iterator[DrawnRows]:
        """The next draws of the stream, starting at the cursor."""
        if self._stream is None or self._cursor != cursor:
            self._stream = self._draws(**(cursor or _START))
        for drawn in islice(self._stream, self.total(1) - start):
            self._cursor = drawn.cursor
            yield drawn

    def _draws(self, passes: int, texts: int, batch: int) -> Iterator[DrawnRows]:
        resumed_at = texts  # a pass that resumes may have nothing left
        while True:
            empty = True
            for chunk in self._files.chunks(texts):
                training_texts = chunk.filter(pa.array(~self._held_out(texts, len(chunk))))
                pool = encode_texts(training_texts, self.collate.reader, self._pack)
                for number, indices in enumerate(self._batches(pool, passes, texts)):
                    empty = False
                    if number >= batch:
                        cursor = {"passes": passes, "texts": texts, "batch": number + 1}
                        yield DrawnRows(pool, indices, cursor)
                texts, batch = texts + len(chunk), 0
            if empty and not resumed_at:
                raise UserError(
                    f"there is nothing to train on in {', '.join(map(str, self._files.paths))}",
                    expected="text with at least one token",
                )
            resumed_at = 0
            passes, texts = passes + 1, 0

    def _batches(self, pool: Encoded, passes: int, texts: int) -> list[np.ndarray]:
        """The rows of each batch: rows of similar length, batches in random order."""
        random = np.random.default_rng((self._settings.seed, _STREAM, passes, texts))
        order = random.permutation(len(pool))
        lengths = self.collate.reader.sequence_lengths(pool.texts)
        if self._settings.group_by_length:
            order = order[np.argsort(lengths.sum(1)[order], kind="stable")]
        size, tokens = self._settings.batch_size, self._settings.batch_tokens
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        if tokens is not None:
            batches = [order[part] for part in cut_by_tokens(lengths[order], tokens)]
        return [batches[i] for i in random.permutation(len(batches))]

    def _held_out(self, first: int, count: int) -> np.ndarray:
        """(count,) bool, True for the texts from number `first` on that are held out."""
        numbers = np.arange(first, first + count)
        return (numbers % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1) & (numbers < self._limit)

    def held_out(self) -> Encoded:
        """The encoded held-out texts."""
        texts: list[str] = []
        first = 0
        for chunk in self._files.chunks():
            texts += chunk.filter(pa.array(self._held_out(first, len(chunk)))).to_pylist()
            first += len(chunk)
            if first >= self._limit:
                break
        return encode_texts(pa.array(texts, pa.string()), self.collate.reader, self._pack)


def encode_texts(texts: pa.StringArray, reader: Reader, pack: bool = False) -> Encoded:
    """Encode texts without truncation: a text that is too long for the reader becomes several rows.

    Args:
        pack: join all texts, with the tokens that end a text between them, before they are cut into rows, so
            that every row but the last is as long as the reader allows.
    """
    layout = reader.tokeniser.layout(1)
    max_tokens = reader.max_length - layout.n_specials
    token_ids = reader.tokeniser.token_ids(texts)
    if pack:
        end_tokens = np.array(layout.specials[-1], np.int32)
        joined = np.insert(
            token_ids.values,
            np.repeat(token_ids.offsets[1:-1], len(end_tokens)),
            np.tile(end_tokens, max(0, len(token_ids) - 1)),
        )
        token_ids = RaggedArray(joined, np.array([0, len(joined)]))
    counts = -(-token_ids.lengths // max_tokens)
    starts = np.repeat(token_ids.offsets[:-1], counts)
    part = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = np.append(starts + part * max_tokens, token_ids.offsets[-1])
    count = len(offsets) - 1
    uids = pa.array([f"text-{n}" for n in range(count)], pa.string())
    return Encoded(
        TEXT_TASK.name, uids, np.full(count, np.nan), None, (RaggedArray(token_ids.values, offsets),)
    )


def held_out_loss(
    rows: Encoded, collate: Collator, objective: Objective, source: TeacherSource | None, batch_size: int
) -> Callable[[MultiTaskModel], list[TaskScores]]:
    """Return a function that computes the objective on held-out rows, averaged over tokens."""
    parts = length_sorted_batches(collate.reader.lengths(rows.texts), batch_size)

    @torch.no_grad()
    def evaluate(model: MultiTaskModel) -> list[TaskScores]:
        device = next(model.parameters()).device
        total, tokens = 0.0, 0
        modes = model.training, objective.training
        model.eval(), objective.eval()
        for indices in parts:
            batch = collate(rows, indices).to(device)
            student = model(batch.inputs, TEXT_TASK.head, objective.student_need)
            teacher = source.outputs(TEXT_TASK, batch) if source else None
            num_items = objective.num_items(TEXT_TASK, batch)
            loss, _ = objective(TEXT_TASK, batch, student, teacher, num_items, 1.0)
            weight = int(batch.inputs.joined.mask.sum()) if batch.inputs.joined else len(indices)
            total, tokens = total + float(loss) * weight, tokens + weight
        model.train(modes[0]), objective.train(modes[1])
        return held_out_scores(len(rows), total / max(tokens, 1))

    return evaluate


def held_out_scores(rows: int, loss: float) -> list[TaskScores]:
    """The loss on held-out rows as scores; `rows`: the number of rows."""
    return [TaskScores(TEXT_TASK.name, HELD_OUT, rows, {"loss": loss}, loss, float("nan"), loss)]
