"""Compute the logits of a model, or the vectors of an encoder, for many rows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.run_encoder import run_encoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.time_trial import BATCHES, current_trial
from mtkd.torch_state import with_torch_defaults
from tasks.model_tasks import mapped_logits
from tasks.task import Task
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import PADDED, Encoded, length_sorted_batches
from tasks.tokens.reader import Reader


def predict_logits(
    model: MultiTaskModel,
    task: Task,
    encoded: Encoded,
    *,
    batch_size: int = 64,
    rank: int = 0,
    world: int = 1,
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Compute the logits of every row: (n, C) float32, or (n, 2, max_length) for `span` tasks.

    Rows are processed in order of length, to keep padding low.

    Args:
        rank, world: this process runs every world-th batch; the rows of other processes are 0.
        advance: called with the number of rows after each batch.
    """
    reader = model.reader_of(task)
    collate = Collator(reader)
    batches = length_sorted_batches(reader.lengths(encoded.texts), batch_size)
    device = next(model.parameters()).device
    shape = task.type.logits_shape(task, model.info.max_length)
    result = np.zeros((len(encoded), *shape), dtype=np.float32)
    was_training = model.training
    model.eval()
    trial, started = current_trial(), time.monotonic()
    if trial:  # evenly spread over the lengths
        batches, all_rows = batches[:: max(1, len(batches) // BATCHES)], len(encoded)
    with torch.inference_mode():
        for indices in batches[rank::world]:
            batch = collate(encoded, indices).to(device)
            logits = model(batch.inputs, task.head).logits
            assert logits is not None
            result[indices] = PADDED
            task_logits = mapped_logits(task, model.tasks[task.head], logits.float().cpu().numpy())
            result[indices, ..., : task_logits.shape[-1]] = task_logits
            if advance:
                advance(len(indices))
    model.train(was_training)
    if trial and batches:
        timed = sum(map(len, batches))
        trial.skipped += (time.monotonic() - started) * (all_rows - timed) / timed
    return result


@with_torch_defaults
def pooled_vectors(
    encoder: AnyEncoder,
    reader: Reader,
    encoded: Encoded,
    *,
    batch_size: int = 64,
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Compute the pooled vector of every row, which the task heads read: (n, width) float32.

    Args:
        advance: called with the number of rows after each batch.
    """
    collate, device = Collator(reader), next(encoder.parameters()).device
    result = np.zeros((len(encoded), encoder.width), dtype=np.float32)
    was_training = encoder.training
    encoder.eval()
    with torch.inference_mode():
        for indices in length_sorted_batches(reader.lengths(encoded.texts), batch_size):
            inputs = collate(encoded, indices).inputs.to(device)
            pooled = run_encoder(encoder, inputs, OutputSpec(pooled=True)).pooled
            assert pooled is not None, "requested above"
            result[indices] = pooled.float().cpu().numpy()
            if advance:
                advance(len(indices))
    encoder.train(was_training)
    return result
