"""Plan a knowledge store: predict its size and the time to build it; nothing is written."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from mtkd.jobs.knowledge_store.prepare_store import PreparedStore, prepare_store
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.knowledge_store.contents import pack_outputs
from mtkd.knowledge_store.shard_writer import StoreSpec
from mtkd.knowledge_store.sizing import hidden_state_amount
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.torch_state import with_torch_defaults
from mtkd.training.processes import make_accelerator
from tasks.common.errors import counted
from tasks.common.reading import real_path
from tasks.common.text_format import duration_text, size_text
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import length_sorted_batches

_TIMED_BATCHES = 6


@dataclass(frozen=True, repr=False)
class StorePlan:
    """The predicted content and cost of a store.

    Attributes:
        prepared: the store that would be built: `prepared.sizes` has the bytes of each kind of output, and
            `prepared.chosen` the settings that were chosen to fit the budget.
        rows: the number of rows of all tasks.
        tokens: the number of their tokens, without padding.
        free: free bytes on the disk.
        seconds: the estimated running time of the teacher.
        ahsk: layers x tokens x fraction of the width that are kept of a full-length row (Liu et al. 2021),
            and the same without a selection; None if the recipe selects nothing.
    """

    prepared: PreparedStore
    rows: int
    tokens: int
    free: int
    seconds: float
    ahsk: tuple[float, int] | None

    @property
    def bytes(self) -> int:
        """The predicted size of the store."""
        return self.prepared.bytes

    def __str__(self) -> str:
        sizes = [f"{kind} {size_text(count)}" for kind, count in self.prepared.sizes.items()]
        return (
            "\n".join(
                [
                    f"<StorePlan {counted(self.rows, 'row')}, {self.tokens:,} tokens",
                    f"  size: {size_text(self.bytes)} ({', '.join(sizes)}); {size_text(self.free)} free",
                    f"  running the teacher: about {duration_text(self.seconds)}",
                    *(
                        f"  chosen for the budget: {key} = {value}"
                        for key, value in self.prepared.chosen.items()
                    ),
                ]
            )
            + ">"
        )

    __repr__ = __str__


@with_torch_defaults
def plan_store(request: StoreRequest, out: Path, warn: Warn = ignore_warning) -> StorePlan:
    """Predict the content and cost of a store; nothing is written.

    Args:
        warn: called with each warning about the rows.

    Raises:
        UserError: as for `prepare_store`.
    """
    prepared = prepare_store(request)
    for text in prepared.warnings:
        warn(text)
    spec = prepared.spec
    accelerator = make_accelerator()
    spec.teacher.to(accelerator.device)
    lengths = {
        name: spec.teacher.reader_of(spec.tasks[name]).lengths(rows.texts) for name, rows in spec.data.items()
    }
    selection = spec.contents.need.selection
    ahsk = None
    if selection is not None:
        max_length = spec.contents.max_length
        depth, layers = len(spec.contents.need.selected), prepared.student_layers + 1
        ahsk = (
            hidden_state_amount(depth, selection.tokens or max_length, selection.width),
            layers * max_length,
        )
    existing = next(p for p in (real_path(out), *real_path(out).parents) if p.exists())
    return StorePlan(
        prepared,
        sum(map(len, lengths.values())),
        int(sum(map(np.sum, lengths.values()))),
        shutil.disk_usage(existing).free,
        _estimate(spec, accelerator),
        ahsk,
    )


def _estimate(spec: StoreSpec, accelerator: Accelerator) -> float:
    """Estimate the running time of the teacher in seconds by timing a few batches of different lengths."""
    source = OnlineTeacher(spec.teacher, spec.contents.need, spec.precision)
    total = 0.0
    for name, rows in spec.data.items():
        collate = Collator(spec.teacher.reader_of(spec.tasks[name]))
        batches = length_sorted_batches(collate.reader.lengths(rows.texts), spec.batch_size)
        count = min(len(batches), max(1, _TIMED_BATCHES // len(spec.data)))
        timed = [collate(rows, batches[int((n + 0.5) * len(batches) / count)]) for n in range(count)]
        warm_up = timed[0].to(accelerator.device)
        pack_outputs(source.outputs(spec.tasks[name], warm_up), spec.contents)
        started = time.perf_counter()
        for batch in timed:
            pack_outputs(source.outputs(spec.tasks[name], batch.to(accelerator.device)), spec.contents)
        total += (time.perf_counter() - started) / len(timed) * len(batches)
    return total
