"""Finds equal texts by their hashes; the memory that this needs does not grow with the number of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.common.mapped import MappedArray, mapped, mapped_zeros, release_pages
from tasks.data.rows import STEP

_PER_BUCKET = 1 << 20  # hashes that are sorted in memory
_MAX_BUCKETS = 256  # each has two open files


@dataclass(frozen=True, eq=False)
class DistinctTexts:
    """The distinct texts among n texts, in the order of their first occurrence.

    Attributes:
        first: (d,) int64, the position of the first occurrence of each.
        occurrences: (d,) int64, how often each occurs.
        numbers: (n,) int64, which distinct text each text is.
    """

    first: np.ndarray
    occurrences: np.ndarray
    numbers: np.ndarray


def hash_texts(texts: pa.Array) -> np.ndarray:
    """(n, 2) int64: a hash of each text, the same in every process."""
    raw = texts.cast(pa.large_binary()).to_pylist()
    return np.frombuffer(b"".join(blake2b(text, digest_size=16).digest() for text in raw), "<i8").reshape(
        -1, 2
    )


def find_distinct(hashes: Iterable[np.ndarray], count: int) -> DistinctTexts:
    """Number the distinct texts, given the (n, 2) hashes of `count` texts in order.

    The hashes are sorted in buckets; arrays with one value per text are in temporary files.

    Raises:
        UserError: two texts have the same first half of a hash, but not the second. Among 100 million
            different texts this has a probability of 0.03%.
    """
    first_of, occurrences = mapped_zeros(count, np.int64), mapped_zeros(count, np.int64)
    for positions, bucket_hashes in _buckets(hashes, count):
        order = np.argsort(bucket_hashes[:, 0], kind="stable")  # positions stay sorted among equal hashes
        values, second = bucket_hashes[order, 0], bucket_hashes[order, 1]
        starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        sizes = np.diff([*starts, len(values)])
        if (second != np.repeat(second[starts], sizes)).any():
            raise UserError("two different texts have the same hash", hint="run the command with `workers=1`")
        first_of[positions[order]] = np.repeat(positions[order[starts]], sizes)
        occurrences[positions[order[starts]]] = sizes
        release_pages()
    return _numbered(first_of, occurrences)


def _buckets(hashes: Iterable[np.ndarray], count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The positions and hashes of the texts, those with equal hashes in the same bucket."""
    n_buckets = min(_MAX_BUCKETS, 1 + count // _PER_BUCKET)
    buckets = [(MappedArray(np.int64), MappedArray(np.int64, (2,))) for _ in range(n_buckets)]
    end = 0
    for chunk in hashes:
        bucket_of = chunk[:, 0] % n_buckets
        for number, (positions, values) in enumerate(buckets):
            chosen = np.flatnonzero(bucket_of == number)
            positions.add(end + chosen)
            values.add(chunk[chosen])
        end += len(chunk)
    while buckets:
        positions, values = buckets.pop()
        if len(of_bucket := positions.finish()):
            yield of_bucket, values.finish()


def _numbered(first_of: np.ndarray, occurrences: np.ndarray) -> DistinctTexts:
    """The distinct texts, given the first occurrence of each text, and how often that text occurs."""
    numbers, first = mapped_zeros(len(first_of), np.int64), MappedArray(np.int64)
    done = 0

    def counts() -> Iterator[np.ndarray]:
        nonlocal done
        for start in range(0, len(first_of), STEP):
            firsts = first_of[start : start + STEP]
            new = np.flatnonzero(firsts == np.arange(start, start + len(firsts)))
            numbers[start + new] = np.arange(done, done + len(new))
            numbers[start : start + len(firsts)] = numbers[firsts]
            done += len(new)
            first.add(start + new)
            yield occurrences[start + new]
            release_pages()

    of_distinct = mapped(counts(), np.int64)
    return DistinctTexts(first.finish(), of_distinct, numbers)
