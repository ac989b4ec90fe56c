"""Batches for the training loop: drawn from a source, split into micro-batches, collated and counted."""

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
from mtkd.train_settings import TrainSettings
from mtkd.training.prefetch import prefetched
from tasks.task import Task
from tasks.tokens.batching import Batch, Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.sampler import BatchIndices, TaskSampler, shard_indices

AHEAD = 64  # batches between announcing rows and drawing them


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """The rows of one optimiser step, all of one task.

    Attributes:
        rows: encoded rows of the task.
        indices: (b,) int64 positions of the step's rows in `rows`.
        cursor: the position of the source after this draw as plain JSON, if epoch and batch number do not
            determine it; else {}.
        on_step_start: called in the training thread before the step runs.
    """

    rows: Encoded
    indices: np.ndarray
    cursor: dict[str, Any] = field(default_factory=dict)
    on_step_start: Callable[[], None] = _nothing


class BatchSource(Protocol):
    """Draws the rows of each step, all of one task, in an order that a stopped run can resume.

    Attributes:
        tasks: name -> Task.
        collate: turns rows into a batch.
    """

    tasks: Mapping[str, Task]
    collate: Collator

    def total(self, epochs: int) -> int:
        """Batches of the first `epochs` epochs."""
        ...

    def epoch(self, number: int, start: int, cursor: Mapping[str, Any]) -> Iterator[DrawnRows]:
        """The draws of an epoch, starting at batch `start`.

        Args:
            cursor: the cursor of the previous draw; {} at the start of a run.
        """
        ...


class TaskBatches:
    """The training rows of some tasks, mixed and grouped by length by a `TaskSampler`.

    Args:
        tasks: name -> Task.
        data: task -> its training rows as token ids.
        collate: turns rows into a batch.
        settings: read for the size, mixing and order of the batches, and the seed.
        blocks: shuffle rows block by block (see `TaskSampler`).
        read_ahead: called with (task, indices) some time before rows are drawn, to read them from disk.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        data: Mapping[str, Encoded],
        collate: Collator,
        settings: TrainSettings,
        *,
        blocks: bool = False,
        read_ahead: Callable[[str, np.ndarray], None] | None = None,
    ):
        self.tasks, self.collate = tasks, collate
        self._data = data
        self._read_ahead = read_ahead
        self._settings = settings
        self._blocks = blocks
        self._row_numbers: dict[str, np.ndarray] = {}
        self._sampler = self._make_sampler()

    def keep(self, rows: Mapping[str, np.ndarray]) -> None:
        """Draw only some rows of some tasks.

        Args:
            rows: task -> (k,) int64 row numbers.
        """
        self._row_numbers = dict(rows)
        self._sampler = self._make_sampler()

    def _make_sampler(self) -> TaskSampler:
        settings = self._settings
        lengths = {}
        groups = {}
        labelled = {}
        for name, rows in self._data.items():
            row_numbers = self._row_numbers.get(name, slice(None))
            lengths[name] = self.collate.reader.for_task(rows.task).sequence_lengths(rows.texts)[row_numbers]
            if rows.groups is not None:
                groups[name] = rows.groups[row_numbers]
            if settings.unlabelled_fraction is not None:
                labelled[name] = rows.labelled[row_numbers]
        return TaskSampler(
            lengths,
            settings.batch_size,
            mixing=settings.mixing,
            seed=settings.seed,
            epochs=settings.n_epochs,
            group_by_length=settings.group_by_length,
            groups=groups,
            steps_per_epoch=settings.steps_per_epoch,
            batch_tokens=settings.batch_tokens,
            labelled=labelled,
            unlabelled_fraction=settings.unlabelled_fraction,
            blocks=self._blocks,
        )

    def total(self, epochs: int) -> int:
        """Batches of the first `epochs` epochs."""
        return self._sampler.total(epochs)

    def epoch(self, number: int, start: int, cursor: Mapping[str, Any]) -> Iterator[DrawnRows]:
        """The draws of an epoch, starting at batch `start`; the cursor is not used."""
        draws = [self._to_data_rows(draw) for draw in self._sampler.epoch(number)[start:]]
        for n, draw in enumerate(draws):
            on_step_start = _nothing
            if self._read_ahead and n + AHEAD < len(draws):
                upcoming = draws[n + AHEAD]
                on_step_start = partial(self._read_ahead, upcoming.task, upcoming.indices)
            yield DrawnRows(self._data[draw.task], draw.indices, on_step_start=on_step_start)

    def _to_data_rows(self, batch: BatchIndices) -> BatchIndices:
        """A batch of the sampler with the row numbers of the data, where only some rows are drawn."""
        row_numbers = self._row_numbers.get(batch.task)
        return batch if row_numbers is None else BatchIndices(batch.task, row_numbers[batch.indices])


@dataclass(frozen=True, eq=False)
class StepBatches:
    """The micro-batches of one process for one optimiser step.

    Attributes:
        batches: the micro-batches, on the CPU.
        weights: the weight of each micro-batch: 1, or 0 if it runs only to take part in gradient reduction.
        batch_items: for each micro-batch, the number of items of each term; 0 where the weight is 0.
        num_items: the number of items of each loss term in all micro-batches of this process.
        drawn: the rows of all processes.
    """

    task: Task
    batches: tuple[Batch, ...]
    weights: tuple[float, ...]
    batch_items: tuple[list[int], ...]
    num_items: list[int]
    drawn: DrawnRows


class MicroBatches:
    """Splits the draws of a source into micro-batches, and collates and counts them ahead of use.

    Args:
        objective: counts the items of each loss term.
        micro_batch_size: rows per micro-batch; None = the whole shard of a process.
        rank, world: index of this process, and number of processes.
        pin: put batches into page-locked memory, from which they are copied to a GPU in the background.
    """

    def __init__(
        self,
        source: BatchSource,
        objective: Objective,
        micro_batch_size: int | None = None,
        rank: int = 0,
        world: int = 1,
        pin: bool = False,
    ):
        self.source = source
        self._objective = objective
        self._pin = pin
        self._micro = micro_batch_size
        self._rank = rank
        self._world = world

    @contextlib.contextmanager
    def epoch(
        self, number: int, start: int, cursor: Mapping[str, Any], limit: int | None = None
    ) -> Iterator[Iterator[StepBatches]]:
        """The steps of an epoch from batch `start`, prepared by a thread that ends with the `with` block.

        Args:
            cursor: see `BatchSource.epoch`.
            limit: maximum number of steps.
        """
        draws = islice(self.source.epoch(number, start, cursor), limit)
        with prefetched(map(self.step, draws)) as steps:
            yield steps

    def step(self, drawn: DrawnRows) -> StepBatches:
        """Prepare this process's shard of a draw."""
        task = self.source.tasks[drawn.rows.task]
        micro_batches = self._micro_batches(drawn)
        batches = tuple(self.source.collate(drawn.rows, indices) for indices, _ in micro_batches)
        weights = tuple(weight for _, weight in micro_batches)
        none = [0] * len(self._objective.terms)
        batch_items = tuple(
            self._objective.num_items(task, batch) if weight else none
            for batch, weight in zip(batches, weights, strict=True)
        )
        num_items = [sum(counts) for counts in zip(*batch_items, strict=True)]
        if self._pin:
            batches = tuple(batch.pin_memory() for batch in batches)
        return StepBatches(task, batches, weights, batch_items, num_items, drawn)

    def _micro_batches(self, drawn: DrawnRows) -> list[tuple[np.ndarray, float]]:
        """This process's rows of a draw as micro-batches: (row indices, weight).

        The weight is 1. A process with too few rows runs one row with weight 0, so that all processes run the
        same number of micro-batches.
        """
        task = drawn.rows.task
        groups = drawn.rows.groups
        micro = self._micro
        local_rows = shard_indices(BatchIndices(task, drawn.indices), self._rank, self._world, groups)
        count = math.ceil(math.ceil(len(drawn.indices) / self._world) / micro) if micro else 1
        parts = [shard_indices(BatchIndices(task, local_rows), part, count, groups) for part in range(count)]
        shards = [(part, 1.0) for part in parts if len(part)]
        return shards + [(drawn.indices[:1], 0.0)] * (count - len(shards))
