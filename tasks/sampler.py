"""Sampling batches of one task each: tasks are mixed by a strategy, rows are bucketed by length.

Everything is a pure function of the arguments and the epoch number, so all processes draw the same batches
and a stopped run can resume at any batch of any epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from zlib import crc32

import numpy as np

from tasks.errors import UserError, unknown
from tasks.ragged import RaggedArray

Mixing = Literal["all", "proportional", "sqrt", "uniform", "annealed"]
POOL = 64  # batches that are sorted by length together
BLOCK = 4096  # rows, or groups of rows, per block when shuffling block by block
_PASS, _CUT, _ORDER, _BLOCKS, _OTHERS = range(5)  # purposes of the random number streams


@dataclass(frozen=True, eq=False)
class BatchIndices:
    """One batch: `indices` (b,) int64 are rows of `task`."""

    task: str
    indices: np.ndarray


class TaskSampler:
    """Draws batches of one task each.

    Every task is an endless stream of batches: pass after pass over its rows, reshuffled for each pass. An
    epoch with the mixing `all` (MKD) is one pass over every task, with all batches shuffled together. The
    other mixings draw the task of each step with a probability proportional to n (`proportional`), sqrt(n), 1
    (`uniform`) or n**alpha (`annealed`) for n rows, and take the next batch of its stream. `annealed` moves
    alpha from 1 to 0.2 (Stickland and Murray 2019, "BERT and PALs": alpha = 1 - 0.8 e / (E - 1) for
    epochs e = 0 .. E - 1).

    Args:
        lengths: task -> (n,) length of each row, used for bucketing.
        batch_size: rows per batch; the last batch of a pass may be smaller.
        mixing: how tasks are mixed.
        seed: non-negative random seed.
        epochs: E of `annealed`.
        bucket: sort rows by length inside pools of batches. An epoch contains the same rows either way.
        groups: task -> (n,) group ids; rows of one group stay in one batch, and batches hold about
            `batch_size` rows.
        steps_per_epoch: batches per epoch for mixings other than `all`; by default the number that `all`
            takes.
        labelled: task -> (n,) bool, True for rows with labels; only needed for `unlabelled_fraction`.
        unlabelled_fraction: a pass takes all rows (or groups) with labels, and so many of the others that
            these are this fraction of it: the next ones of an endless shuffled stream. Tasks in which all
            rows have labels, or none, are not affected. Such passes are not shuffled block by block.
        blocks: shuffle the blocks of `blocks_of` and the rows inside each block, instead of all rows, so that
            data stored block by block is read block by block. Tasks of a single block are not affected.

    Raises:
        UserError: a task has no rows, the mixing is unknown, or a number is out of range.
    """

    def __init__(
        self,
        lengths: Mapping[str, np.ndarray],
        batch_size: int,
        *,
        mixing: Mixing = "all",
        seed: int = 0,
        epochs: int = 1,
        bucket: bool = True,
        groups: Mapping[str, np.ndarray] | None = None,
        steps_per_epoch: int | None = None,
        labelled: Mapping[str, np.ndarray] | None = None,
        unlabelled_fraction: float | None = None,
        blocks: bool = False,
    ):
        if mixing not in get_args(Mixing):
            raise unknown("mixing", mixing, get_args(Mixing))
        for name, value, least in (("batch size", batch_size, 1), ("seed", seed, 0)):
            if value < least:
                raise UserError(f"{name} {value} is too small", expected=f"{least} or more")
        if mixing == "all" and steps_per_epoch is not None:
            raise UserError(
                f"steps_per_epoch = {steps_per_epoch} with the mixing 'all', where an epoch is one pass",
                hint="leave steps_per_epoch out, or choose another mixing",
            )
        self._streams = {
            task: _Stream(task, rows, batch_size, seed, bucket, (groups or {}).get(task), blocks)
            for task, rows in lengths.items()
        }
        if unlabelled_fraction is not None:
            for task, stream in self._streams.items():
                stream.mix((labelled or {})[task], unlabelled_fraction)
        self._mixing, self._seed, self._epochs = mixing, seed, epochs
        whole = sum(stream.batches_per_pass for stream in self._streams.values())
        self._steps = whole if steps_per_epoch is None else steps_per_epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._steps

    def epoch(self, number: int) -> list[BatchIndices]:
        """The batches of epoch `number` (from 0), in order."""
        tasks = list(self._streams)
        order = self._order(number)
        counts = np.bincount(order, minlength=len(tasks))
        before = np.zeros_like(counts)
        for earlier in range(number):
            before += np.bincount(self._order(earlier), minlength=len(tasks))
        batches = [
            iter(self._streams[task].take(int(start), int(count), number))
            for task, start, count in zip(tasks, before, counts, strict=True)
        ]
        return [BatchIndices(tasks[which], next(batches[which])) for which in order]

    def probabilities(self, number: int) -> dict[str, float]:
        """The probability of each task at a step of epoch `number`; for `all`, its share of the batches."""
        streams = self._streams.values()
        if self._mixing == "all":
            weights = np.array([float(stream.batches_per_pass) for stream in streams])
        else:
            progress = min(1.0, number / max(1, self._epochs - 1))
            powers = {"proportional": 1.0, "sqrt": 0.5, "uniform": 0.0, "annealed": 1.0 - 0.8 * progress}
            weights = np.array([float(stream.n_rows) for stream in streams]) ** powers[self._mixing]
        return dict(zip(self._streams, (weights / weights.sum()).tolist(), strict=True))

    def _order(self, number: int) -> np.ndarray:
        """(steps,) the task index of each step of an epoch."""
        random = _generator(self._seed, "", _ORDER, number)
        if self._mixing == "all":
            counts = [stream.batches_per_pass for stream in self._streams.values()]
            return random.permutation(np.repeat(np.arange(len(counts)), counts))
        weights = list(self.probabilities(number).values())
        return random.choice(len(weights), size=self._steps, p=weights)


class _Stream:
    """The endless stream of batches of one task. A unit is a row, or a group of rows that stay together."""

    def __init__(
        self,
        task: str,
        lengths: np.ndarray,
        batch_size: int,
        seed: int,
        bucket: bool,
        groups: np.ndarray | None,
        blocks: bool,
    ):
        self.n_rows = len(lengths)
        if self.n_rows == 0:
            raise UserError(f"task {task!r} has no rows")
        self._task, self._seed, self._bucket = task, seed, bucket
        self._members = None if groups is None else _members(groups)
        if self._members is None:
            self._lengths = np.asarray(lengths)
        else:
            self._lengths = np.maximum.reduceat(lengths[self._members.values], self._members.offsets[:-1])
        n_units = len(self._lengths)
        self._blocks = _unit_blocks(task, n_units) if blocks and n_units > BLOCK else None
        self._units_per_batch = max(1, round(batch_size * n_units / self.n_rows))
        self.batches_per_pass = -(-n_units // self._units_per_batch)
        self._mixture: tuple[np.ndarray, np.ndarray, int] | None = None

    def mix(self, labelled: np.ndarray, fraction: float) -> None:
        """Let each pass hold all units with labels, and so many others that these are `fraction` of it.

        Args:
            labelled: (n,) bool, True for rows with labels; a group has labels if one of its rows has.
        """
        if self._members is not None:
            labelled = np.logical_or.reduceat(labelled[self._members.values], self._members.offsets[:-1])
        own, others = np.flatnonzero(labelled), np.flatnonzero(~labelled)
        if not (len(own) and len(others)):
            return
        count = max(1, round(len(own) * fraction / (1 - fraction)))
        per_pass = len(own) + count
        self.n_rows = round(self.n_rows * per_pass / len(labelled))
        self._mixture, self._blocks = (own, others, count), None
        self.batches_per_pass = -(-per_pass // self._units_per_batch)

    def take(self, start: int, count: int, epoch: int) -> list[np.ndarray]:
        """Batches start .. start + count - 1 of the stream.

        Without bucketing they come in the order of the stream. With bucketing, the same rows are grouped by
        length and the batches shuffled (with blocks: within about one block).
        """
        batches: list[np.ndarray] = []
        end = start + count
        while start < end:
            which, first = divmod(start, self.batches_per_pass)
            last = min(first + end - start, self.batches_per_pass)
            batches += self._cut(which, first, last)
            start += last - first
        if self._bucket:
            random = _generator(self._seed, self._task, _CUT, epoch)
            window = max(1, BLOCK // self._units_per_batch) if self._blocks else max(1, len(batches))
            parts = [batches[i : i + window] for i in range(0, len(batches), window)]
            batches = [part[i] for part in parts for i in random.permutation(len(part))]
        return batches

    def _cut(self, which: int, first: int, last: int) -> list[np.ndarray]:
        """Batches first .. last - 1 of pass `which`."""
        size = self._units_per_batch
        units = self._shuffled(which)[first * size : last * size]
        if self._bucket:
            batches = POOL if self._blocks is None else max(1, min(POOL, BLOCK // size))
            pools = [units[i : i + batches * size] for i in range(0, len(units), batches * size)]
            units = np.concatenate([pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools])
        return [self._rows(units[i : i + size]) for i in range(0, len(units), size)]

    def _shuffled(self, which: int) -> np.ndarray:
        """All units in the order of pass `which`."""
        random = _generator(self._seed, self._task, _PASS, which)
        if self._mixture is not None:
            own, others, count = self._mixture
            return random.permutation(np.concatenate([own, self._others(others, which * count, count)]))
        if self._blocks is None:
            return random.permutation(len(self._lengths))
        blocks = [self._blocks[i] for i in random.permutation(len(self._blocks))]
        return np.concatenate([random.permutation(block) for block in blocks])

    def _others(self, others: np.ndarray, start: int, count: int) -> np.ndarray:
        """Units start .. start + count - 1 of the endless stream of units without labels."""
        found = []
        end = start + count
        while start < end:
            turn, first = divmod(start, len(others))
            order = _generator(self._seed, self._task, _OTHERS, turn).permutation(others)
            found.append(order[first : first + end - start])
            start += len(found[-1])
        return np.concatenate(found)

    def _rows(self, units: np.ndarray) -> np.ndarray:
        return units if self._members is None else self._members.take(units).values.astype(np.int64)


def shard_indices(draw: BatchIndices, rank: int, world: int, groups: np.ndarray | None) -> np.ndarray:
    """The shard of a batch for process `rank` of `world`; every row is in exactly one shard.

    Args:
        groups: (n,) group ids of the task, or None. Rows of a group go to the same process.

    Returns:
        (b,) int64 row numbers. Shards differ by at most one row or one group; a shard may be empty.
    """
    if groups is None:
        return draw.indices[rank::world]
    _, first, unit = np.unique(groups[draw.indices], return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))  # groups numbered as they appear
    return draw.indices[number[unit] % world == rank]


def blocks_of(task: str, n_rows: int, groups: np.ndarray | None = None) -> list[np.ndarray]:
    """A fixed random partition of a task's rows into blocks of `BLOCK` rows or groups.

    Args:
        groups: (n,) group ids, or None.

    Returns:
        (b,) int64 row numbers of each block; every row is in exactly one block.
    """
    if groups is None:
        return _unit_blocks(task, n_rows)
    members = _members(groups)
    return [members.take(units).values.astype(np.int64) for units in _unit_blocks(task, len(members))]


def _unit_blocks(task: str, n_units: int) -> list[np.ndarray]:
    order = _generator(0, task, _BLOCKS, 0).permutation(n_units)
    return [order[i : i + BLOCK] for i in range(0, n_units, BLOCK)]


def _members(groups: np.ndarray) -> RaggedArray:
    """The rows of each group, in order of the group ids."""
    order = np.argsort(groups, kind="stable")
    _, begins = np.unique(groups[order], return_index=True)
    return RaggedArray(order.astype(np.int32), np.append(begins, len(groups)).astype(np.int64))


def _generator(seed: int, task: str, purpose: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((seed, crc32(task.encode()), purpose, number)))
