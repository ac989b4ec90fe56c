"""Where the training loop's batches come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from mtkd.settings import TrainSettings
from tasks.batching import Batch, Collator, Encoded
from tasks.sampler import BatchIndices, TaskSampler
from tasks.task import Task


class BatchSource(Protocol):
    """Batches of one task each, in an order that a stopped run can take up again.

    Attributes:
        tasks: name -> Task.
        cursor: where the batch_source stands, as plain JSON, beyond epoch and batch; {} where these say all.
    """

    tasks: Mapping[str, Task]
    cursor: dict[str, Any]

    def __len__(self) -> int:
        """Batches an epoch."""
        ...

    def epoch(self, number: int, start: int) -> Iterator[BatchIndices]:
        """The batches of an epoch from its batch `start` on."""
        ...

    def batch(self, task: str, indices: np.ndarray) -> Batch:
        """Some rows of the draw that came last."""
        ...

    def groups(self, task: str) -> np.ndarray | None:
        """(n,) candidate groups of a task's rows."""
        ...


AHEAD = 64  # batches


class TaskBatches:
    """The training rows of some tasks, mixed and bucketed by a `TaskSampler`.

    Args:
        blocks: shuffle rows block by block (see `TaskSampler`).
        ahead: told of rows some time before they are drawn, so that they can be read from the disk.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        data: Mapping[str, Encoded],
        collate: Collator,
        settings: TrainSettings,
        *,
        blocks: bool = False,
        ahead: Callable[[str, np.ndarray], None] | None = None,
    ):
        self.tasks, self._data, self._collate, self._ahead = tasks, data, collate, ahead
        self.cursor: dict[str, Any] = {}
        groups = {name: rows.groups for name, rows in data.items() if rows.groups is not None}
        self._sampler = TaskSampler(
            {name: collate.reader.lengths(rows.texts) for name, rows in data.items()},
            settings.batch_size,
            mixing=settings.mixing,
            seed=settings.seed,
            epochs=settings.epochs,
            bucket=settings.bucket,
            groups=groups,
            steps_per_epoch=settings.steps_per_epoch,
            blocks=blocks,
        )

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self._sampler)

    def epoch(self, number: int, start: int) -> Iterator[BatchIndices]:
        """The batches of an epoch from its batch `start` on."""
        draws = self._sampler.epoch(number)[start:]
        for n, draw in enumerate(draws):
            if self._ahead and n + AHEAD < len(draws):
                coming = draws[n + AHEAD]
                self._ahead(coming.task, coming.indices)
            yield draw

    def batch(self, task: str, indices: np.ndarray) -> Batch:
        """The rows of a task at `indices`."""
        return self._collate(self._data[task], indices)

    def groups(self, task: str) -> np.ndarray | None:
        """(n,) candidate groups of a task's rows."""
        return self._data[task].groups
