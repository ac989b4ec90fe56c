"""The training loop's batches: drawn by a source, cut into micro-batches, collated and counted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np

from mtkd.losses.objective import Objective
from mtkd.settings import TrainSettings
from mtkd.training.prefetch import prefetched
from tasks.batching import Batch, Collator, Encoded
from tasks.sampler import BatchIndices, TaskSampler, shard_indices
from tasks.task import Task

AHEAD = 64  # batches


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """The rows of one optimiser step, all of one task.

    Attributes:
        rows: encoded rows of the task.
        indices: (b,) int64 which of them.
        cursor: where the source stands after this draw, beyond epoch and batch, as plain JSON; {} where
            these say all.
        before: called in the training thread before the step is run.
    """

    rows: Encoded
    indices: np.ndarray
    cursor: dict[str, Any] = field(default_factory=dict)
    before: Callable[[], None] = _nothing


class BatchSource(Protocol):
    """Draws rows of one task each, in an order that a stopped run can resume.

    Attributes:
        tasks: name -> Task.
        collate: how rows become a batch.
    """

    tasks: Mapping[str, Task]
    collate: Collator

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, number: int, start: int, cursor: Mapping[str, Any]) -> Iterator[DrawnRows]:
        """The draws of an epoch from its batch `start` on.

        Args:
            cursor: that of the draw before; {} at the start of a run.
        """
        ...


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
        self.tasks, self.collate = tasks, collate
        self._data, self._ahead = data, ahead
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
        """Batches per epoch."""
        return len(self._sampler)

    def epoch(self, number: int, start: int, cursor: Mapping[str, Any]) -> Iterator[DrawnRows]:
        """The draws of an epoch from its batch `start` on; no cursor is needed."""
        draws = self._sampler.epoch(number)[start:]
        for n, draw in enumerate(draws):
            before = _nothing
            if self._ahead and n + AHEAD < len(draws):
                coming = draws[n + AHEAD]
                before = partial(self._ahead, coming.task, coming.indices)
            yield DrawnRows(self._data[draw.task], draw.indices, before=before)


@dataclass(frozen=True, eq=False)
class StepBatches:
    """What one process runs for one optimiser step.

    Attributes:
        batches: the micro-batches, on the CPU.
        weights: of each: 1, or 0 for a row that is run only to take part in the exchange between processes.
        batch_items: for each micro-batch, the number of items of each term; 0 where the weight is 0.
        num_items: for each term of the objective, its items in all micro-batches of this process.
        drawn: the rows of all processes.
    """

    task: Task
    batches: tuple[Batch, ...]
    weights: tuple[float, ...]
    batch_items: tuple[list[int], ...]
    num_items: list[int]
    drawn: DrawnRows


class MicroBatches:
    """A source's draws as micro-batches, collated and counted ahead of their use.

    Args:
        objective: whose items are counted.
        micro_batch: rows per micro-batch; None = all of a process's share at once.
        rank, world: this process and the number of processes.
    """

    def __init__(
        self,
        source: BatchSource,
        objective: Objective,
        micro_batch: int | None = None,
        rank: int = 0,
        world: int = 1,
    ):
        self.source, self._objective = source, objective
        self._micro, self._rank, self._world = micro_batch, rank, world

    @contextlib.contextmanager
    def epoch(
        self, number: int, start: int, cursor: Mapping[str, Any], limit: int | None = None
    ) -> Iterator[Iterator[StepBatches]]:
        """The steps of an epoch from its batch `start` on, prepared on a thread that ends with the block.

        Args:
            cursor: see `BatchSource.epoch`.
            limit: at most so many steps.
        """
        draws = islice(self.source.epoch(number, start, cursor), limit)
        with prefetched(map(self.step, draws)) as steps:
            yield steps

    def step(self, drawn: DrawnRows) -> StepBatches:
        """This process's share of a draw."""
        task = self.source.tasks[drawn.rows.task]
        shares = self._shares(drawn)
        batches = tuple(self.source.collate(drawn.rows, indices) for indices, _ in shares)
        weights = tuple(weight for _, weight in shares)
        none = [0] * len(self._objective.terms)
        batch_items = tuple(
            self._objective.num_items(task, batch) if weight else none
            for batch, weight in zip(batches, weights, strict=True)
        )
        num_items = [sum(counts) for counts in zip(*batch_items, strict=True)]
        return StepBatches(task, batches, weights, batch_items, num_items, drawn)

    def _shares(self, drawn: DrawnRows) -> list[tuple[np.ndarray, float]]:
        """This process's rows of a draw, in micro-batches, each with weight 1; where a process has no row
        left it runs one row with weight 0, so that all processes take part in every exchange.
        """
        task, groups, micro = drawn.rows.task, drawn.rows.groups, self._micro
        own = shard_indices(BatchIndices(task, drawn.indices), self._rank, self._world, groups)
        count = math.ceil(math.ceil(len(drawn.indices) / self._world) / micro) if micro else 1
        parts = [shard_indices(BatchIndices(task, own), part, count, groups) for part in range(count)]
        shares = [(part, 1.0) for part in parts if len(part)]
        return shares + [(drawn.indices[:1], 0.0)] * (count - len(shares))
