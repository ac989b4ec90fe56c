"""Counter-based random numbers, compared with the published splitmix64 and with their distribution."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from augment.counter_rng import INCREMENT as STEP
from augment.counter_rng import draw_number, integers_below, splitmix64, streams_of, threshold
from tests.helpers.reference_splitmix64 import INCREMENT, MASK, reference_splitmix64


def test_splitmix64_gives_the_published_sequence() -> None:
    """The first outputs for the seed 1234567, from the reference implementation in C."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(np.uint64(1234567) + STEP * np.arange(1, 4, dtype=np.uint64)).tolist() == expected


def test_streams_depend_only_on_seed_row_and_copy() -> None:
    uids = pa.array(["rte/train/0", "rte/train/1"])
    expected = []
    for uid in uids.to_pylist():
        key = int.from_bytes(hashlib.blake2b(f"7:{uid}".encode(), digest_size=8).digest(), "little")
        expected += [reference_splitmix64(key + copy * INCREMENT & MASK) for copy in (1, 2, 3)]
    assert streams_of(7, uids, 3).tolist() == expected
    assert streams_of(7, uids.slice(1), 3).tolist() == expected[3:]
    assert not set(streams_of(8, uids, 3).tolist()) & set(expected)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
def test_draws_fall_below_a_threshold_with_the_right_probability(p: float) -> None:
    draws = splitmix64(np.arange(20_000, dtype=np.uint64) * STEP)
    hits = int((draws < threshold(p)).sum())
    assert stats.binomtest(hits, 20_000, p).pvalue > 1e-3 if p else hits == 0


def test_integers_are_uniform_and_below_their_limit() -> None:
    draws = splitmix64(np.arange(30_000, dtype=np.uint64) * STEP)
    found = integers_below(draws, np.full(30_000, 7))
    assert stats.chisquare(np.bincount(found, minlength=7)).pvalue > 1e-3
    limits = np.array([1, 2**31 - 1, 3])
    assert integers_below(np.full(3, MASK, np.uint64), limits).tolist() == [0, 2**31 - 2, 2]
    exact = [(int(draw) >> 32) * 7 >> 32 for draw in draws[:100]]
    assert found[:100].tolist() == exact


def test_the_number_of_a_name_never_changes() -> None:
    raw = hashlib.blake2b(b"3:squad/1:beam", digest_size=8).digest()
    assert draw_number(3, "squad/1", "beam") == int.from_bytes(raw, "little") < 2**64
