"""Writing a store: the teacher runs once over all rows, and its outputs are written shard by shard."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from mtkd.device import worker_device
from mtkd.knowledge_store.contents import Contents, Field, LogitsLayout, pack_outputs
from mtkd.knowledge_store.store_manifest import STORE_FORMAT
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.distributed import ProcessGroup
from mtkd.output_files.safetensors_shards import SafetensorsFormat
from mtkd.output_files.sharded_output import PlannedShard, ShardedOutput, total_size
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from mtkd.outputs import OutputSpec
from mtkd.teachers.hidden_selection import attention_scores
from mtkd.teachers.teacher_sources import OnlineTeacher
from tasks.common.errors import UserError
from tasks.common.mapped import release_pages
from tasks.common.progress import Advance, progress
from tasks.common.sha256 import digest_bytes
from tasks.task import Task
from tasks.tokens.batching import Batch, Collator
from tasks.tokens.encoding import Encoded, length_sorted_batches
from tasks.tokens.reader import Reader


@dataclass(frozen=True)
class StoreSpec:
    """The specification of a store to be built.

    Attributes:
        teacher: the model to run.
        contents: what is kept.
        tasks, data: name -> Task, and its rows encoded for the teacher.
        digests: name -> digest of the rows.
        shards: the shards of all tasks.
        precision: the precision in which the teacher runs ("fp32" or "bf16").
        batch_size: number of rows per forward pass of the teacher.
        identity: digests of the teacher and its tokeniser, and everything else that affects the content.
    """

    teacher: MultiTaskModel
    contents: Contents
    tasks: Mapping[str, Task]
    data: Mapping[str, Encoded]
    digests: Mapping[str, str]
    shards: list[PlannedShard]
    precision: str
    batch_size: int
    identity: tuple[str | None, ...]

    @property
    def key(self) -> str:
        """A digest of everything that affects the content of the shards."""
        parts = [STORE_FORMAT, self.contents.to_json(), self.precision, self.batch_size, list(self.identity)]
        return digest_bytes(json.dumps([*parts, dict(self.digests)], sort_keys=True))


def write_missing_shards(
    spec: StoreSpec,
    out: Path,
    accelerator: Accelerator,
    recorded: Mapping[str, str],
    *,
    workers: Workers = THIS_PROCESS,
    load: Callable[[], MultiTaskModel] | None = None,
) -> tuple[ShardedOutput, list[PlannedShard]]:
    """Write the shards that are missing or damaged, sharded across processes.

    Args:
        recorded: file -> digest of the shards in the store's manifest, if it has one.
        workers: what makes the shards.
        load: loads the teacher in other processes.

    Returns:
        all shards, and the list of those that were missing.

    Raises:
        UserError: the teacher produced a non-finite value (the error names the row), or the disk is full.
    """
    output = ShardedOutput(out, spec.key, spec.shards, SafetensorsFormat())
    missing = output.missing(recorded)
    total, remaining = total_size(spec.shards), total_size(missing)
    options = spec.contents, spec.precision, spec.batch_size
    setup = partial(shard_maker, lambda: spec.teacher, *options, accelerator.device)
    if load and workers.in_other_processes:
        setup = partial(shard_maker, load, *options)

    def inputs(shard: PlannedShard) -> tuple[Task, Encoded]:
        rows = spec.data[shard.task].take(np.asarray(shard.rows))
        release_pages()
        return spec.tasks[shard.task], rows

    with progress("teacher", total, done=total - remaining) as advance:
        output.write(
            missing,
            setup=setup,
            inputs=inputs,
            workers=workers,
            group=ProcessGroup.of(accelerator),
            advance=advance,
        )
    return output, missing


def shard_maker(
    load: Callable[[], MultiTaskModel],
    contents: Contents,
    precision: str,
    batch_size: int,
    device: torch.device | None = None,
) -> Callable[[tuple[Task, Encoded], Advance], dict[str, Tensor]]:
    """Load the teacher; returns a function that makes shards with it.

    Args:
        load: loads the teacher.
        contents, precision, batch_size: see `StoreSpec`.
        device: where it runs; None = where a worker process runs models.
    """
    device = device or worker_device()
    source = OnlineTeacher(load().to(device), contents.need, precision)
    return partial(shard_tensors, source, contents, batch_size, device)


def shard_tensors(
    source: OnlineTeacher,
    contents: Contents,
    batch_size: int,
    device: torch.device,
    inputs: tuple[Task, Encoded],
    advance: Advance,
) -> dict[str, Tensor]:
    """The teacher's outputs for the rows of a shard: field -> entries in the order of the shard."""
    task, rows = inputs
    fields = contents.fields(LogitsLayout.of(task))
    counts = _counts(contents, source.model.reader_of(task), rows)
    offsets = {
        per: torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)]) for per, count in counts.items()
    }
    sizes = {per: int(offset[-1]) for per, offset in offsets.items()}
    tensors = {f.name: torch.empty((sizes[f.per], *f.shape), dtype=f.dtype) for f in fields}
    for name, per in (("tokens", "token"), ("kept", "kept")):
        if name in tensors:
            tensors[name] = counts[per].to(torch.int32)
    collate = Collator(source.model.reader_of(task))
    for numbers in length_sorted_batches(collate.reader.lengths(rows.texts), batch_size):
        batch = collate(rows, numbers)
        packed = pack_outputs(source.outputs(task, batch.to(device)), contents)
        indices = torch.from_numpy(batch.indices)
        for field in fields:
            if field.name not in packed:
                continue
            _refuse_not_finite(packed[field.name], field, rows, batch, counts)
            starts, count = offsets[field.per][indices], counts[field.per][indices]
            steps = torch.arange(int(count.sum())) - torch.repeat_interleave(count.cumsum(0) - count, count)
            tensors[field.name][torch.repeat_interleave(starts, count) + steps] = packed[field.name].to(
                field.dtype
            )
        advance(len(batch))
    return tensors


def check_scores(spec: StoreSpec, device: torch.device) -> None:
    """Check that attention scores can be computed from queries and keys.

    Raises:
        UserError: they cannot, because the teacher adds something to them, such as a position bias.
    """
    layers = spec.contents.offers.scores
    if not layers:
        return
    name, rows = next(iter(spec.data.items()))
    need = OutputSpec(scores=layers, query=layers, key=layers)
    batch = Collator(spec.teacher.reader_of(spec.tasks[name]))(rows, np.arange(1)).to(device)
    outputs = OnlineTeacher(spec.teacher, need).outputs(spec.tasks[name], batch)
    for layer in layers:
        recomputed = attention_scores(outputs.query[layer], outputs.key[layer], spec.contents.shape.heads)
        if not torch.allclose(recomputed, outputs.scores[layer], rtol=1e-3, atol=1e-3):
            raise UserError(
                f"the attention scores of {spec.contents.shape.family!r} are not just products of queries "
                "and keys, so a store cannot keep them",
                hint="omit the loss term on attention scores, or distil with the teacher itself (`teacher`)",
            )


def _counts(contents: Contents, reader: Reader, rows: Encoded) -> dict[str, Tensor]:
    """ "row", "token" and "kept" -> (n,) int64 number of entries of each row."""
    lengths, n_kept = entry_counts(contents, reader, rows)
    ones = np.ones(len(rows), np.int64)
    return {
        per: torch.from_numpy(count) for per, count in (("row", ones), ("token", lengths), ("kept", n_kept))
    }


def entry_counts(contents: Contents, reader: Reader, rows: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """The (n,) number of real tokens and the (n,) number of kept tokens of each row."""
    lengths = reader.lengths(rows.texts).astype(np.int64)
    selection = contents.need.selection
    if selection is None:
        return lengths, np.zeros_like(lengths)
    n_ends = sum(reader.layout(len(rows.texts)).n_ends)
    n_kept = lengths - n_ends if selection.excludes_sep else lengths
    return lengths, n_kept if selection.tokens is None else np.minimum(n_kept, selection.tokens)


def _refuse_not_finite(
    values: Tensor, field: Field, rows: Encoded, batch: Batch, counts: Mapping[str, Tensor]
) -> None:
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return
    bad_entry = int(torch.nonzero(~values.flatten(1).isfinite().all(1))[0])
    ends = counts[field.per][torch.from_numpy(batch.indices)].cumsum(0)
    row = int(torch.searchsorted(ends, bad_entry, right=True))
    uid = rows.uids[int(batch.indices[row])].as_py()
    raise UserError(
        f"the teacher's {field.of} for {uid} ({rows.task}) is not finite",
        hint="refine the teacher again with a lower learning rate; if the teacher itself is fine, "
        "use a `dtype` (bf16, fp32) or a precision with a wider range",
    )
