"""The endless stream of batches of one task: passes over its rows, shuffled and grouped by length."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from tasks.common.errors import UserError
from tasks.tokens.ragged import RaggedArray

POOL = 64  # batches that are sorted by length together
BLOCK = 4096  # rows, or groups of rows, per block when shuffling block by block
PASS, CUT, ORDER, BLOCKS, OTHERS, POOLS = range(6)  # purposes of the random number streams


class BatchStream:
    """The endless stream of batches of one task. A unit is a row, or a group of rows that stay together.

    Args:
        task: the name of the task, for the random numbers and for errors.
        lengths: (n,) int, the number of tokens of each row; or (n, k), of each of its k sequences.
        batch_size: the number of rows per batch (with groups, the average number).
        batch_tokens: the maximum number of tokens per batch with padding, instead of `batch_size`; or None.
        seed: the seed of the order.
        group_by_length: sort the rows of `POOL` batches by length, so that they need less padding.
        groups: (n,) int group ids, or None if each row is a unit.
        blocks: shuffle the blocks of `blocks_of`, and the rows inside each block, instead of all rows.

    Raises:
        UserError: the task has no rows.
    """

    def __init__(
        self,
        task: str,
        lengths: np.ndarray,
        batch_size: int,
        batch_tokens: int | None,
        seed: int,
        group_by_length: bool,
        groups: np.ndarray | None,
        blocks: bool,
    ):
        self.n_rows = len(lengths)
        if self.n_rows == 0:
            raise UserError(f"task {task!r} has no rows")
        self._task = task
        self._seed = seed
        self._group_by_length = group_by_length
        self._members = None if groups is None else _members(groups)
        # There may be many millions of rows, so these take few bytes for each.
        self._widths = np.asarray(lengths).astype(np.int32).reshape(self.n_rows, -1)
        single = self._widths.shape[1] == 1
        self._lengths = self._widths[:, 0] if single else self._widths.sum(1, dtype=np.int32)
        self._unit_rows = np.broadcast_to(np.int64(1), self.n_rows)
        if self._members is not None:
            order, starts = self._members.values, self._members.offsets[:-1]
            self._unit_rows = self._members.lengths
            self._widths, self._lengths = (
                np.maximum.reduceat(values[order], starts) for values in (self._widths, self._lengths)
            )
        self._per_pass = n_units = len(self._lengths)
        self._blocks = _unit_blocks(task, n_units) if blocks and n_units > BLOCK else None
        self._tokens, self._sizes = batch_tokens, list[int]()
        self._units_per_batch = max(1, round(batch_size * n_units / self.n_rows))
        if batch_tokens is not None:
            self._units_per_batch = max(1, batch_tokens * n_units // int(self._lengths @ self._unit_rows))
        self._mixture: tuple[np.ndarray, np.ndarray, int] | None = None

    def mix(self, labelled: np.ndarray, fraction: float) -> None:
        """Let each pass contain all labelled units, and as many others as make up `fraction` of the pass.

        Args:
            labelled: (n,) bool, True for rows with labels; a group has labels if one of its rows has.
        """
        if self._members is not None:
            labelled = np.logical_or.reduceat(labelled[self._members.values], self._members.offsets[:-1])
        with_labels, without_labels = np.flatnonzero(labelled), np.flatnonzero(~labelled)
        if not (len(with_labels) and len(without_labels)):
            return
        count = max(1, round(len(with_labels) * fraction / (1 - fraction)))
        self._per_pass = len(with_labels) + count
        self.n_rows = round(self.n_rows * self._per_pass / len(labelled))
        self._mixture, self._blocks = (with_labels, without_labels, count), None

    def size(self, pass_number: int) -> int:
        """The number of batches of pass `pass_number`."""
        if self._tokens is None:
            return -(-self._per_pass // self._units_per_batch)
        while len(self._sizes) <= pass_number:
            self._sizes.append(len(self._cut_by_tokens(len(self._sizes), self._tokens)))
        return self._sizes[pass_number]

    def take(self, start: int, count: int, epoch: int) -> list[np.ndarray]:
        """Batches start .. start + count - 1 of the stream.

        Without `group_by_length` they come in the order of the stream. With it, the same rows are grouped by
        length and the batches shuffled (with blocks: within about one block).
        """
        batches: list[np.ndarray] = []
        pass_number = 0
        while start >= self.size(pass_number):
            start, pass_number = start - self.size(pass_number), pass_number + 1
        while len(batches) < count:
            last = min(start + count - len(batches), self.size(pass_number))
            batches += self._cut(pass_number, start, last)
            start, pass_number = 0, pass_number + 1
        if self._group_by_length:
            random = random_of(self._seed, self._task, CUT, epoch)
            window = max(1, BLOCK // self._units_per_batch) if self._blocks else max(1, len(batches))
            parts = [batches[i : i + window] for i in range(0, len(batches), window)]
            batches = [part[i] for part in parts for i in random.permutation(len(part))]
        return batches

    def _cut(self, pass_number: int, first: int, last: int) -> list[np.ndarray]:
        """Batches first .. last - 1 of pass `pass_number`."""
        if self._tokens is not None:
            return [self._rows(units) for units in self._cut_by_tokens(pass_number, self._tokens)[first:last]]
        size = self._units_per_batch
        units = np.concatenate(self._pools(self._shuffled(pass_number)[first * size : last * size]))
        return [self._rows(units[i : i + size]) for i in range(0, len(units), size)]

    def _cut_by_tokens(self, pass_number: int, tokens: int) -> list[np.ndarray]:
        """The units of each batch of a pass; the batches of a pool are shuffled, as a pass may be split."""
        random = random_of(self._seed, self._task, POOLS, pass_number)
        batches: list[np.ndarray] = []
        for pool in self._pools(self._shuffled(pass_number)):
            parts = [pool[part] for part in cut_by_tokens(self._widths[pool], tokens, self._unit_rows[pool])]
            batches += [parts[i] for i in random.permutation(len(parts))]
        return batches

    def _pools(self, units: np.ndarray) -> list[np.ndarray]:
        """The pools of some units, each sorted by length; all units unchanged without `group_by_length`."""
        if not self._group_by_length:
            return [units]
        size = self._units_per_batch
        size *= POOL if self._blocks is None else max(1, min(POOL, BLOCK // size))
        pools = [units[i : i + size] for i in range(0, len(units), size)]
        return [pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools]

    def _shuffled(self, pass_number: int) -> np.ndarray:
        """All units in the order of pass `pass_number`."""
        random = random_of(self._seed, self._task, PASS, pass_number)
        if self._mixture is not None:
            with_labels, without_labels, count = self._mixture
            return random.permutation(
                np.concatenate([with_labels, self._others(without_labels, pass_number * count, count)])
            )
        if self._blocks is None:
            return random.permutation(len(self._lengths))
        blocks = [self._blocks[i] for i in random.permutation(len(self._blocks))]
        return np.concatenate([random.permutation(block) for block in blocks])

    def _others(self, others: np.ndarray, start: int, count: int) -> np.ndarray:
        """Units start .. start + count - 1 of the endless stream of units without labels."""
        parts = []
        end = start + count
        while start < end:
            turn, first = divmod(start, len(others))
            order = random_of(self._seed, self._task, OTHERS, turn).permutation(others)
            parts.append(order[first : first + end - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def _rows(self, units: np.ndarray) -> np.ndarray:
        return units if self._members is None else self._members.take(units).values.astype(np.int64)


def cut_by_tokens(widths: np.ndarray, tokens: int, rows: np.ndarray | None = None) -> list[slice]:
    """Cut units, in order, into the longest runs that have at most `tokens` tokens with padding.

    Args:
        widths: (u, k) lengths of the k sequences of a unit, which are padded one by one.
        tokens: the maximum of (rows of a run) x (sum of its longest sequences); a larger unit is a run by
            itself.
        rows: (u,) number of rows of each unit; None = 1.
    """
    rows = np.ones(len(widths), np.int64) if rows is None else rows
    runs, first = list[slice](), 0
    while first < len(widths):
        window = slice(first, first + max(1, tokens // max(1, int(widths[first].sum()))))
        padded = np.maximum.accumulate(widths[window]).sum(1) * rows[window].cumsum()
        runs.append(slice(first, first + max(1, int((padded <= tokens).sum()))))
        first = runs[-1].stop
    return runs


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
    order = random_of(0, task, BLOCKS, 0).permutation(n_units)
    return [order[i : i + BLOCK] for i in range(0, n_units, BLOCK)]


def _members(groups: np.ndarray) -> RaggedArray:
    """The rows of each group, in order of the group ids."""
    order = np.argsort(groups, kind="stable")
    _, begins = np.unique(groups[order], return_index=True)
    return RaggedArray(order.astype(np.int32), np.append(begins, len(groups)).astype(np.int64))


def random_of(seed: int, task: str, purpose: int, number: int) -> np.random.Generator:
    """The random numbers for one purpose, such as `PASS`, of a pass or epoch of a task."""
    return np.random.default_rng(np.random.SeedSequence((seed, crc32(task.encode()), purpose, number)))
