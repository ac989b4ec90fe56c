"""Texts split into words with parts of speech, and the word frequencies of each part of speech."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from augment.counter_rng import below
from augment.tagging import Tagger
from tasks.files import digest_bytes
from tasks.rows import Rows

# A clitic ('s, 're), letters and digits with single marks inside, or other marks.
_WORD = re.compile(r"(\s*)(['’](?:s|re|ve|ll|d|m)\b|\w+(?:[-'’.,&/]\w+)*|[^\w\s]+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The sorted (tag, word) pairs of some texts; the index of a pair is its id.

    Attributes:
        tags, words: (V,) the pairs.
        counts: (V,) occurrences of each pair.
        first: (V,) the lowest id with the same tag.
        total: (V,) occurrences of all words with the same tag.
    """

    tags: tuple[str, ...]
    words: tuple[str, ...]
    counts: np.ndarray
    first: np.ndarray
    total: np.ndarray

    @staticmethod
    def make(pairs: list[tuple[str, str]], counts: np.ndarray) -> Vocabulary:
        """Build the vocabulary from sorted pairs."""
        tags = tuple(tag for tag, _ in pairs)
        starts = [number for number, tag in enumerate(tags) if number == 0 or tags[number - 1] != tag]
        sizes = np.diff([*starts, len(tags)])
        totals = np.add.reduceat(counts, starts) if starts else np.zeros(0, np.int64)
        return Vocabulary(
            tags, tuple(word for _, word in pairs), counts, np.repeat(starts, sizes), np.repeat(totals, sizes)
        )

    def another(self, ids: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Draw for each pair another word with the same tag, in proportion to frequency.

        A pair stays the same if its tag has no other word.

        Args:
            ids: (n,) pair ids; `draws`: (n,) uint64 random numbers.
        """
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        rest = self.total[ids] - self.counts[ids]
        place = starts[self.first[ids]] + below(draws, np.maximum(rest, 1))
        place += np.where(place >= starts[ids], self.counts[ids], 0)  # skip the word itself
        return np.where(rest == 0, ids, np.searchsorted(ends, np.minimum(place, ends[-1] - 1), side="right"))


@dataclass(frozen=True, eq=False)
class TaggedTexts:
    """The distinct texts of a task, split into words.

    Attributes:
        texts: (n,) the distinct texts.
        bounds: (n + 1,) where the words of each text begin and end.
        ids: the ids in `vocabulary` of the words of all texts.
        spaced: whether the word follows white space; False for the first word of a text.
    """

    texts: pa.StringArray
    bounds: np.ndarray
    ids: np.ndarray
    spaced: np.ndarray
    vocabulary: Vocabulary

    @property
    def digest(self) -> str:
        """SHA-256 of the words, their tags, counts and positions."""
        known = self.vocabulary
        pairs = "\n".join(f"{tag}\t{word}" for tag, word in zip(known.tags, known.words, strict=True))
        arrays = (known.counts, self.bounds, self.ids.astype("<i8"), self.spaced)
        return digest_bytes(pairs, *(array.tobytes() for array in arrays))

    def find(self, column: pa.StringArray) -> np.ndarray:
        """The indices of the given texts in `texts`; ValueError if one is not there."""
        where = pc.index_in(column.cast(self.texts.type), value_set=self.texts)
        numbers = where.fill_null(-1).to_numpy(zero_copy_only=False)
        if (numbers < 0).any():
            raise ValueError("a text that was not tagged")
        return numbers.astype(np.int64)

    def part(self, rows: Rows) -> TaggedTexts:
        """Keep only the texts of these rows; the vocabulary is unchanged."""
        numbers = np.unique(np.concatenate([self.find(column) for column in rows.texts]))
        lengths = np.diff(self.bounds)[numbers]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        words = np.arange(bounds[-1]) + np.repeat(self.bounds[numbers] - bounds[:-1], lengths)
        texts = self.texts.take(pa.array(numbers))
        return replace(self, texts=texts, bounds=bounds, ids=self.ids[words], spaced=self.spaced[words])


def split_words(text: str) -> list[tuple[str, str]]:
    """Split a text into words, each with the white space before it: (space, word)."""
    return _WORD.findall(text)


def tag_rows(rows: Rows, tagger: Tagger, advance: Callable[[int], None] = lambda count: None) -> TaggedTexts:
    """Tag every distinct text of some rows once.

    Args:
        advance: called with the number of texts just tagged, counting duplicates.
    """
    counted = pc.value_counts(pa.concat_arrays(list(rows.texts)))
    texts, occurrences = counted.field(0), counted.field(1).to_numpy()
    pairs: dict[tuple[str, str], int] = {}
    lengths: list[int] = []
    ids: list[int] = []
    spaced: list[bool] = []
    for number, (pieces, tags) in enumerate(_tagged(texts, tagger)):
        lengths.append(len(pieces))
        for place, ((space, word), tag) in enumerate(zip(pieces, tags, strict=True)):
            ids.append(pairs.setdefault((tag, word), len(pairs)))
            spaced.append(place > 0 and space != "")
        advance(int(occurrences[number]))
    order = sorted(pairs)
    rank = np.empty(len(order), np.int64)
    rank[[pairs[pair] for pair in order]] = np.arange(len(order))
    numbers = rank[np.array(ids, np.int64)].astype(np.int32)
    weights = np.repeat(occurrences, lengths)
    counts = np.bincount(numbers, weights, minlength=len(order)).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return TaggedTexts(texts, bounds, numbers, np.array(spaced, bool), Vocabulary.make(order, counts))


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
