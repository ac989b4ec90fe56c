"""Texts split into words with parts of speech."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from augment.tagging import Tagger
from augment.vocabulary import Vocabulary
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.checks.row_hashes import hash_rows
from tasks.common.mapped import MappedArray, MappedTexts, mapped, release_pages
from tasks.common.sha256 import LongPart, digest_parts
from tasks.data.file_rows import FileRows
from tasks.data.rows import STEP, Rows

TEXTS_PER_BLOCK = 8192  # texts tagged at once

# A clitic ('s, 're), letters and digits with single marks inside, or other marks.
_WORD = re.compile(r"(\s*)(['’](?:s|re|ve|ll|d|m)\b|\w+(?:[-'’.,&/]\w+)*|[^\w\s]+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class TaggedTexts:
    """The distinct texts of a task, split into words.

    Attributes:
        texts: (n,) the distinct texts.
        bounds: (n + 1,) where the words of each text begin and end.
        ids: the ids in `vocabulary` of the words of all texts.
        spaced: whether the word follows white space; False for the first word of a text.
        numbers: for each text column of the rows that the texts come from, the index of each row's text;
            None = `find` looks them up.
    """

    texts: pa.StringArray
    bounds: np.ndarray
    ids: np.ndarray
    spaced: np.ndarray
    vocabulary: Vocabulary
    numbers: tuple[np.ndarray, ...] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the words, their tags, counts and positions."""
        vocabulary = self.vocabulary
        pairs = "\n".join(
            f"{tag}\t{word}" for tag, word in zip(vocabulary.tags, vocabulary.words, strict=True)
        )
        arrays = ((vocabulary.counts, "<i8"), (self.bounds, "<i8"), (self.ids, "<i8"), (self.spaced, "?"))
        return digest_parts([pairs, *(_bytes(array, np.dtype(dtype)) for array, dtype in arrays)])

    @cached_property
    def _hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """The sorted hashes of the texts, and which text each belongs to."""
        hashes = np.concatenate([np.zeros(0, np.int64), *_hashes([self.texts])])
        order = np.argsort(hashes)
        return hashes[order], order

    def find(self, column: pa.StringArray) -> np.ndarray:
        """The indices of the given texts in `texts`; ValueError if one is not there."""
        hashes, order = self._hashes
        positions = np.searchsorted(hashes, hash_rows([column]))
        numbers = order[np.minimum(positions, len(order) - 1)] if len(order) else positions
        if len(column) and not self.texts.take(pa.array(numbers)).equals(column.cast(self.texts.type)):
            raise ValueError("a text that was not tagged")
        return numbers

    def of_rows(self, rows: Rows) -> list[np.ndarray]:
        """For each text column, the indices in `texts` of the texts of these rows."""
        if self.numbers is None:
            return [self.find(column) for column in rows.texts]
        if any(len(column) != len(rows) for column in self.numbers):
            raise ValueError("these are not the rows that were tagged")
        return list(self.numbers)

    def for_rows(self, rows: Rows | FileRows) -> TaggedTexts:
        """Keep only the texts of these rows; the vocabulary is unchanged.

        For rows in files, which must be among those that the texts come from, the texts themselves are left
        out.
        """
        if isinstance(rows, FileRows):
            assert self.numbers is not None, "these texts were also tagged in files"
            of_rows = [column[rows.first : rows.first + len(rows)] for column in self.numbers]
        else:
            of_rows = self.of_rows(rows)
        numbers = np.unique(np.concatenate(of_rows))
        lengths = np.diff(self.bounds)[numbers]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        words = np.arange(bounds[-1]) + np.repeat(self.bounds[numbers] - bounds[:-1], lengths)
        part = replace(self, bounds=bounds, ids=self.ids[words], spaced=self.spaced[words], numbers=None)
        release_pages()
        if isinstance(rows, FileRows):
            return replace(part, numbers=tuple(np.searchsorted(numbers, column) for column in of_rows))
        return replace(part, texts=self.texts.take(pa.array(numbers)))


def split_words(text: str) -> list[tuple[str, str]]:
    """Split a text into words, each with the white space before it: (space, word)."""
    return _WORD.findall(text)


@dataclass(frozen=True, eq=False)
class TaggedBlock:
    """Some texts split into words.

    Attributes:
        pairs: the different (tag, word) pairs, by first occurrence.
        lengths: (n,) number of words of each text.
        ids, spaced: (W,) as in `TaggedTexts`, but the ids are indices of `pairs`.
    """

    pairs: list[tuple[str, str]]
    lengths: np.ndarray
    ids: np.ndarray
    spaced: np.ndarray


def _tagged_blocks(texts: pa.Array, tagger: Tagger, workers: Workers) -> Iterator[TaggedBlock]:
    """Tag all texts, block by block."""
    starts = range(0, len(texts), TEXTS_PER_BLOCK)
    if workers.should_start(len(starts), loads=False):
        # `take` copies; a slice would be sent with the whole array
        copied = (texts.take(pa.array(range(n, min(n + TEXTS_PER_BLOCK, len(texts))))) for n in starts)
        with workers.open() as pool:
            yield from pool.map(tag_block, ((block, tagger) for block in copied))
    else:
        yield from (tag_block((texts.slice(start, TEXTS_PER_BLOCK), tagger)) for start in starts)


def tag_block(inputs: tuple[pa.Array, Tagger]) -> TaggedBlock:
    """Tag some texts."""
    texts, tagger = inputs
    pairs: dict[tuple[str, str], int] = {}
    lengths = list[int]()
    ids = list[int]()
    spaced = list[bool]()
    for pieces, tags in _tagged(texts, tagger):
        lengths.append(len(pieces))
        for position, ((space, word), tag) in enumerate(zip(pieces, tags, strict=True)):
            ids.append(pairs.setdefault((tag, word), len(pairs)))
            spaced.append(position > 0 and space != "")
    return TaggedBlock(list(pairs), np.array(lengths), np.array(ids, np.int32), np.array(spaced, np.bool_))


def tag_rows(
    rows: Rows,
    tagger: Tagger,
    advance: Callable[[int], None] = lambda count: None,
    workers: Workers = THIS_PROCESS,
) -> TaggedTexts:
    """Tag every distinct text of some rows once.

    Args:
        tagger: must be picklable if `workers` are other processes.
        advance: called with the number of texts just tagged, counting duplicates.
        workers: what tags the texts; the result does not depend on it.
    """
    texts, occurrences = _distinct(rows.texts)
    return collect_blocks(texts, occurrences, _tagged_blocks(texts, tagger, workers), advance)


def collect_blocks(
    texts: pa.Array,
    occurrences: np.ndarray,
    blocks: Iterable[TaggedBlock],
    advance: Callable[[int], None],
    numbers: tuple[np.ndarray, ...] | None = None,
) -> TaggedTexts:
    """All distinct texts with the vocabulary of all blocks, whose words stay in temporary files.

    Args:
        occurrences: how often each of the distinct texts occurs.
        blocks: the distinct texts, in order.
        texts, numbers: see `TaggedTexts`.
    """
    pairs: dict[tuple[str, str], int] = {}
    arrays = MappedArray(np.int64), MappedArray(np.int32), MappedArray(np.bool_)
    done = 0
    for block in blocks:
        ids = np.array([pairs.setdefault(pair, len(pairs)) for pair in block.pairs], np.int32)
        for array, values in zip(arrays, (block.lengths, ids[block.ids], block.spaced), strict=True):
            array.add(values)
        release_pages()
        advance(int(occurrences[done : done + len(block.lengths)].sum()))
        done += len(block.lengths)
    sizes, found, after_space = (array.finish() for array in arrays)
    order = sorted(pairs)
    rank = np.empty(len(order), np.int32)
    rank[[pairs[pair] for pair in order]] = np.arange(len(order))
    bounds = mapped(_sums(sizes), np.int64)
    counts = np.zeros(len(order), np.int64)

    def ranked() -> Iterator[np.ndarray]:
        for start in range(0, len(sizes), STEP):
            stop = min(start + STEP, len(sizes))
            words = rank[found[bounds[start] : bounds[stop]]]
            weights = np.repeat(occurrences[start:stop], sizes[start:stop])
            np.add(counts, np.bincount(words, weights, minlength=len(counts)).astype(np.int64), out=counts)
            yield words
            release_pages()

    of_texts = mapped(ranked(), np.int32)
    return TaggedTexts(texts, bounds, of_texts, after_space, Vocabulary.make(order, counts), numbers)


def _sums(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """0, and the sum of the sizes up to each one, block by block."""
    end = np.zeros(1, np.int64)
    yield end
    for start in range(0, len(sizes), STEP):
        sums = end[-1] + np.cumsum(sizes[start : start + STEP], dtype=np.int64)
        yield sums
        end = sums
        release_pages()


def _bytes(array: np.ndarray, dtype: np.dtype) -> LongPart:
    """The bytes of an array, block by block."""
    blocks = (array[i : i + STEP].astype(dtype).tobytes() for i in range(0, len(array), STEP))
    return LongPart(len(array) * dtype.itemsize, blocks)


def _hashes(columns: Sequence[pa.Array]) -> Iterator[np.ndarray]:
    """The hashes of all texts of some columns, one column after the other."""
    for column in columns:
        for start in range(0, len(column), STEP):
            yield hash_rows([column.slice(start, STEP)])
            release_pages()


def _distinct(columns: Sequence[pa.Array]) -> tuple[pa.Array, np.ndarray]:
    """The distinct texts of some columns, by first occurrence, and how often each occurs."""
    _, first, counts = np.unique(mapped(_hashes(columns), np.int64), return_index=True, return_counts=True)
    order = np.argsort(first)
    first = first[order]
    texts = MappedTexts()
    end = 0
    for column in columns:
        for start in range(0, len(column), STEP):
            block = column.slice(start, STEP)
            new = first[slice(*np.searchsorted(first, [end, end + len(block)]))]
            texts.add(block.take(pa.array(new - end)))
            end += len(block)
            release_pages()
    return texts.finish(narrow=True), counts[order]


def _tagged(texts: pa.StringArray, tagger: Tagger) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """Yield the words of each text and their tags; texts without words are not sent to the tagger."""
    waiting: deque[list[tuple[str, str]]] = deque()  # a tagger reads ahead

    def shown() -> Iterable[list[str]]:
        for text in texts:
            pieces = split_words(text.as_py())
            waiting.append(pieces)
            if pieces:
                yield [word for _, word in pieces]

    for tags in tagger.tag(shown()):
        while not waiting[0]:
            yield waiting.popleft(), []
        yield waiting.popleft(), tags
    yield from ((pieces, []) for pieces in waiting)
