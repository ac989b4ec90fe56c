"""Compare an exported model with the model that it was exported from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch

from mtkd.models.multitask import MultiTaskModel
from mtkd.runtime import OnnxModel
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import PADDED, Encoded, pad_rows
from tasks.tokens.ragged import RaggedArray

TOLERANCE = 1e-4  # times the size of the largest logit, if that is above 1
_LENGTHS = (4, 17)  # and the longest that the model reads
_BATCHES = (1, 3)


def check_parity(model: MultiTaskModel, exported: OnnxModel) -> float:
    """Compare the logits of rows of random tokens, in batches of 1 and 3 and at several lengths.

    Rows of a batch have different lengths, and every row is also run alone: padding must change nothing.

    Args:
        model: on the CPU, in evaluation mode.

    Returns:
        The largest difference between two logits.

    Raises:
        UserError: a difference is above `tolerance_for` the logits, or NaN.
    """
    largest = 0.0
    for task in model.tasks.values():
        reader = exported.reader_of(task)
        for rows in random_rows(task, model):
            expected = expected_logits(model, task, rows)
            indices = np.arange(len(rows))
            batched = exported.run(pad_rows(reader, rows.texts, indices), task.head)
            logits_alone = [
                exported.run(pad_rows(reader, rows.texts, indices[row : row + 1]), task.head)[0]
                for row in indices
            ]
            padding = max(
                float(np.abs(together[..., : alone.shape[-1]] - alone).max())
                for together, alone in zip(batched, logits_alone, strict=True)
            )
            difference = float(np.abs(batched - expected).max())
            found = float(np.max([difference, padding]))  # NaN if either is
            largest = max(largest, found)
            tolerance = tolerance_for(expected)
            if not found <= tolerance:
                failure = "padding changes its logits" if padding > tolerance else "its logits differ"
                raise UserError(
                    f"the export of {task.name!r} failed: {failure} by up to {found:.2g} at "
                    f"{reader.lengths(rows.texts).max()} tokens",
                    expected=f"at most {tolerance:.2g}",
                    hint="nothing was written; export the model with another version of torch or onnxruntime",
                )
    return largest


def tolerance_for(logits: np.ndarray) -> float:
    """The largest difference that rounding explains: errors grow with the size of the logits."""
    finite = logits[np.isfinite(logits) & (logits != PADDED)]
    return TOLERANCE * float(np.abs(finite).max(initial=1.0))


def expected_logits(model: MultiTaskModel, task: Task, rows: Encoded) -> np.ndarray:
    batch = Collator(model.reader_of(task))(rows, np.arange(len(rows)))
    with torch.inference_mode():
        logits = model(batch.inputs, task.head).logits
    assert logits is not None
    array: np.ndarray = logits.float().numpy()
    return array


def random_rows(task: Task, model: MultiTaskModel) -> Iterator[Encoded]:
    """Batches of rows of random tokens: the first row has the full length, the others are shorter."""
    random = np.random.default_rng(0)
    reader = model.reader_of(task)
    texts = len(task.columns)
    specials = 0 if reader.input_format == "separate" else reader.layout(texts).n_specials
    for size in _BATCHES:
        for length in (*_LENGTHS, reader.max_length):
            room = length if reader.input_format == "separate" else max(texts, length - specials) // texts
            sizes = [max(1, room // (row + 1)) for row in range(size)]
            columns = tuple(
                RaggedArray.from_lists(
                    [random.integers(reader.tokeniser.vocab_size, size=n).tolist() for n in sizes]
                )
                for _ in range(texts)
            )
            labels, names = np.full(size, np.nan), pa.array(map(str, range(size)))
            yield Encoded(task.name, names, labels, None, columns)
