"""Sampling batches of one task each: tasks are mixed by a strategy, rows are grouped by length.

Everything is a pure function of the arguments and the epoch number, so all processes draw the same batches
and a stopped run can resume at any batch of any epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tasks.common.errors import UserError, unknown
from tasks.tokens.batch_stream import ORDER, BatchStream, random_of

Mixing = Literal["all", "proportional", "sqrt", "uniform", "annealed"]


@dataclass(frozen=True, eq=False)
class BatchIndices:
    """One batch: `indices` (b,) int64 are rows of `task`."""

    task: str
    indices: np.ndarray


class TaskSampler:
    """Draws batches of one task each.

    Every task is an endless stream of batches: pass after pass over its rows, reshuffled for each pass. An
    epoch with the mixing `all` (MKD) is one pass over every task, with all batches shuffled together; with
    `steps_per_epoch`, the same batches in the same order are cut into epochs of this length instead. The
    other mixings draw the task of each step with a probability proportional to n (`proportional`), sqrt(n), 1
    (`uniform`) or n**alpha (`annealed`) for n rows, and take the next batch of its stream. `annealed` moves
    alpha from 1 to 0.2 (Stickland and Murray 2019, "BERT and PALs": alpha = 1 - 0.8 e / (E - 1) for
    epochs e = 0 .. E - 1).

    Args:
        lengths: task -> (n,) length of each row, used to group rows, or (n, k) if a row is k sequences that
            are padded one by one.
        batch_size: rows per batch; the last batch of a pass may be smaller.
        mixing: how tasks are mixed.
        seed: non-negative random seed.
        epochs: E of `annealed`.
        group_by_length: sort rows by length inside pools of batches. An epoch contains the same rows either
            way.
        groups: task -> (n,) group ids; rows of one group stay in one batch, and batches hold about
            `batch_size` rows.
        steps_per_epoch: batches per epoch; by default as many as one pass over all tasks takes.
        batch_tokens: instead of `batch_size`, let a batch hold as many rows as fit into this many tokens with
            padding (rows x the longest of each sequence); a longer row or group is a batch of its own. The
            number of batches then varies a little from pass to pass, and an epoch of mixings other than `all`
            has as many as the first pass.
        labelled: task -> (n,) bool, True for rows with labels; only needed for `unlabelled_fraction`.
        unlabelled_fraction: a pass contains all labelled rows (or groups), and as many of the others as make
            up this fraction of it: the next ones of an endless shuffled stream. Tasks in which all rows have
            labels, or none, are not affected. Such passes are not shuffled block by block.
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
        group_by_length: bool = True,
        groups: Mapping[str, np.ndarray] | None = None,
        steps_per_epoch: int | None = None,
        batch_tokens: int | None = None,
        labelled: Mapping[str, np.ndarray] | None = None,
        unlabelled_fraction: float | None = None,
        blocks: bool = False,
    ):
        if mixing not in get_args(Mixing):
            raise unknown("mixing", mixing, get_args(Mixing))
        for name, value, least in (
            ("batch size", batch_size, 1),
            ("seed", seed, 0),
            ("batch_tokens", batch_tokens, 1),
        ):
            if value is not None and value < least:
                raise UserError(f"{name} {value} is too small", expected=f"{least} or more")
        self._streams = {
            task: BatchStream(
                task, rows, batch_size, batch_tokens, seed, group_by_length, (groups or {}).get(task), blocks
            )
            for task, rows in lengths.items()
        }
        if unlabelled_fraction is not None:
            for task, stream in self._streams.items():
                stream.mix((labelled or {})[task], unlabelled_fraction)
        self._mixing = mixing
        self._seed = seed
        self._epochs = epochs
        self._steps = self._pass_size(0) if steps_per_epoch is None else steps_per_epoch
        self._cuts_passes = mixing == "all" and steps_per_epoch is not None
        self._last_pass: tuple[int, list[BatchIndices]] = (-1, [])  # number and batches, for `_cut_epoch`
        self._before = [np.zeros(len(self._streams), np.int64)]  # filled by `_batches_before`

    def __len__(self) -> int:
        """Batches of the first epoch; only with `batch_tokens` may others differ."""
        return self._steps

    def total(self, epochs: int) -> int:
        """Batches of the first `epochs` epochs."""
        if self._mixing != "all" or self._cuts_passes:
            return epochs * self._steps
        return sum(map(self._pass_size, range(epochs)))

    def _pass_size(self, number: int) -> int:
        """Batches of pass `number` over all tasks."""
        return sum(stream.size(number) for stream in self._streams.values())

    def epoch(self, number: int) -> list[BatchIndices]:
        """The batches of epoch `number` (from 0), in order."""
        return self._cut_epoch(number) if self._cuts_passes else self._whole_epoch(number)

    def _cut_epoch(self, number: int) -> list[BatchIndices]:
        """The batches of an epoch that starts and ends anywhere in the passes of `all`."""
        start, end = number * self._steps, (number + 1) * self._steps
        batches: list[BatchIndices] = []
        which, before = 0, 0  # a pass, and the batches before it
        while before < end:
            size = self._pass_size(which)
            if before + size > start:
                if self._last_pass[0] != which:
                    self._last_pass = which, self._whole_epoch(which)
                batches += self._last_pass[1][max(0, start - before) : end - before]
            which, before = which + 1, before + size
        return batches

    def _whole_epoch(self, number: int) -> list[BatchIndices]:
        """The batches of an epoch that does not cut passes."""
        tasks = list(self._streams)
        order = self._order(number)
        counts = np.bincount(order, minlength=len(tasks))
        batches = [
            iter(self._streams[task].take(int(start), int(count), number))
            for task, start, count in zip(tasks, self._batches_before(number), counts, strict=True)
        ]
        return [BatchIndices(tasks[which], next(batches[which])) for which in order]

    def _batches_before(self, number: int) -> np.ndarray:
        """(tasks,) the number of batches of each task in all epochs before epoch `number`."""
        while len(self._before) <= number:
            order = self._order(len(self._before) - 1)
            self._before.append(self._before[-1] + np.bincount(order, minlength=len(self._streams)))
        return self._before[number]

    def probabilities(self, number: int) -> dict[str, float]:
        """The probability of each task at a step of epoch `number`; for `all`, its share of the batches."""
        streams = self._streams.values()
        if self._mixing == "all":
            weights = np.array([float(stream.size(number)) for stream in streams])
        else:
            progress = min(1.0, number / max(1, self._epochs - 1))
            powers = {"proportional": 1.0, "sqrt": 0.5, "uniform": 0.0, "annealed": 1.0 - 0.8 * progress}
            weights = np.array([float(stream.n_rows) for stream in streams]) ** powers[self._mixing]
        return dict(zip(self._streams, (weights / weights.sum()).tolist(), strict=True))

    def _order(self, number: int) -> np.ndarray:
        """(steps,) the task index of each step of an epoch."""
        random = random_of(self._seed, "", ORDER, number)
        if self._mixing == "all":
            counts = [stream.size(number) for stream in self._streams.values()]
            return random.permutation(np.repeat(np.arange(len(counts)), counts))
        weights = list(self.probabilities(number).values())
        return random.choice(len(weights), size=self._steps, p=weights)


def shard_indices(batch: BatchIndices, rank: int, world: int, groups: np.ndarray | None) -> np.ndarray:
    """The shard of a batch for process `rank` of `world`; every row is in exactly one shard.

    Args:
        groups: (n,) group ids of the task, or None. Rows of a group go to the same process.

    Returns:
        (b,) int64 row numbers. Shards differ by at most one row or one group; a shard may be empty.
    """
    if groups is None:
        return batch.indices[rank::world]
    _, first, unit = np.unique(groups[batch.indices], return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))  # groups numbered as they appear
    return batch.indices[number[unit] % world == rank]
