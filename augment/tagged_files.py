"""Tagging texts that stay in parquet files: each worker reads those that it tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from augment.distinct_texts import DistinctTexts, find_distinct, hash_texts
from augment.tagged_text import TEXTS_PER_BLOCK, TaggedBlock, TaggedTexts, collect_blocks, tag_block
from augment.tagging import Tagger
from mtkd.output_files.worker_pools import WorkerPool, Workers
from tasks.common.mapped import MappedArray, release_pages
from tasks.data.file_rows import FileRows
from tasks.data.rows import STEP

_Part = tuple[FileRows, int, np.ndarray]  # rows, one of their text columns, and indices of rows


def tag_file_rows(
    rows: FileRows, tagger: Tagger, advance: Callable[[int], None], workers: Workers
) -> TaggedTexts:
    """Tag every distinct text of some rows once; the same as `augment.tagged_text.tag_rows`.

    This process gets hashes of the texts and, block by block, the numbers of their words, but no text.

    Args:
        tagger: must be picklable.
        advance: called with the number of texts just tagged, counting duplicates.
        workers: other processes, which read and tag the texts.

    Raises:
        UserError: a file has changed since the rows were planned.
    """
    with workers.open() as pool:
        distinct = find_distinct(_hashes(rows, pool), len(rows) * rows.n_texts)
        blocks = _blocks(rows, distinct, tagger, pool)
        numbers = tuple(
            distinct.numbers[column * len(rows) : (column + 1) * len(rows)] for column in range(rows.n_texts)
        )
        return collect_blocks(pa.array([], pa.string()), distinct.occurrences, blocks, advance, numbers)


def _hashes(rows: FileRows, pool: WorkerPool) -> Iterator[np.ndarray]:
    """The hashes of all texts of the first column, then of those of the second."""
    columns = [MappedArray(np.int64, (2,)) for _ in range(rows.n_texts)]
    for hashes in pool.map(_hash_part, rows.split_for_workers(2 * pool.size)):
        for column, of_column in zip(columns, hashes, strict=True):
            column.add(of_column)
    for column in columns:
        values = column.finish()
        for start in range(0, len(values), STEP):
            yield values[start : start + STEP]
            release_pages()


def _hash_part(rows: FileRows) -> list[np.ndarray]:
    parts = [[hash_texts(column) for column in part.texts] for part in rows.batches()]
    return [np.concatenate(of_column) for of_column in zip(*parts, strict=True)]


def _blocks(
    rows: FileRows, distinct: DistinctTexts, tagger: Tagger, pool: WorkerPool
) -> Iterator[TaggedBlock]:
    """The same blocks of distinct texts as `tag_rows` has, tagged where their rows are read."""

    def planned() -> Iterator[tuple[list[_Part], Tagger]]:
        for start in range(0, len(distinct.first), TEXTS_PER_BLOCK):
            positions = np.array(distinct.first[start : start + TEXTS_PER_BLOCK])
            column_of = positions // len(rows)
            parts = []
            for column in np.unique(column_of).tolist():
                numbers = positions[column_of == column] - column * len(rows)
                begin, end = int(numbers[0]), int(numbers[-1]) + 1
                parts.append((rows.slice(begin, end), column, numbers - begin))
            yield parts, tagger

    return pool.map(_tag_parts, planned())


def _tag_parts(inputs: tuple[list[_Part], Tagger]) -> TaggedBlock:
    parts, tagger = inputs
    texts = [text for part in parts for text in _texts_of(*part)]
    return tag_block((pa.concat_arrays(texts), tagger))


def _texts_of(rows: FileRows, column: int, indices: np.ndarray) -> Iterator[pa.Array]:
    """The texts of a column at the sorted indices, in batches."""
    end = 0
    for part in rows.batches():
        first, last = np.searchsorted(indices, [end, end + len(part)])
        yield part.texts[column].take(pa.array(indices[first:last] - end)).cast(pa.large_string())
        end += len(part)
