"""Ragged arrays, compared with lists of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.tokens.ragged import RaggedArray

rows = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8)


def to_lists(array: RaggedArray) -> list[list[int]]:
    return [array.row(i).tolist() for i in range(len(array))]


@given(rows, rows, st.randoms(use_true_random=False))
def test_a_ragged_array_behaves_like_a_list_of_lists(
    first: list[list[int]], second: list[list[int]], draw
) -> None:
    one, other = RaggedArray.from_lists(first), RaggedArray.from_lists(second)
    assert to_lists(one) == first and one.lengths.tolist() == [len(row) for row in first]
    assert to_lists(RaggedArray.concat([one, other])) == first + second
    picked = [draw.randrange(len(first)) for _ in range(6)] if first else []
    assert to_lists(one.take(np.array(picked, dtype=np.int64))) == [first[i] for i in picked]


def test_a_ragged_array_can_be_empty() -> None:
    empty = RaggedArray.concat([])
    assert len(empty) == 0 and empty.values.dtype == np.int32 and empty.offsets.dtype == np.int64
