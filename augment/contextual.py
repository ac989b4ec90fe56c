"""Contextual replacement: words become others that a masked language model or word vectors suggest.

Jiao et al. 2020 (TinyBERT, arXiv 1909.10351, algorithm 1). Every word has a set C of candidates:

    a word of one token     the K most likely words of the masked language model, with the word masked
    any other word          the K nearest other words by the cosine of word vectors

In each copy, each word is replaced with probability p by a word drawn from C, each being equally likely. C is
found once, with the original text around the word, as in the authors' program, whereas algorithm 1 as printed
would find it again in every copy, with the words replaced so far. As in algorithm 1, stop words are replaced,
too, and C may contain the word itself. Marks and clitics ('s) are not words; case is not carried over.

The model reads each text separately, and words beyond its positions have no candidates from it. For pairs of
texts, copies alter the first text, the second, and both, in turn, as in `augment.replacement`.

The draws come from `augment.counter_rng`. Word w of the row, from 1 and counted across its texts, is replaced
if draw(uid, copy, w) is below p; splitmix64(that draw + G) chooses from C, which is sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from augment.augmenter import Augmenter, Copies, copies_table
from augment.counter_rng import INCREMENT, integers_below, splitmix64, streams_of, threshold
from augment.tagged_text import split_words
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers, other_model, path_for_workers
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_bytes
from tasks.data.rows import Rows
from tasks.tokens.word_vectors import read_word_vectors

if TYPE_CHECKING:
    from augment.masked_lm import MaskedLM

COPIES = 20  # copies per row in the paper
_CHUNK = 1024  # copies written at once; texts that occur several times among them are read once
_QUERIES = 64  # words whose neighbours are found at once


@dataclass(frozen=True)
class Contextual(Augmenter):
    """The method "contextual".

    Attributes:
        model: hub name or directory of a masked language model with its head.
        vectors: a text file of word vectors (GloVe, word2vec), among which neighbours are found; None = the
            model's input embeddings of whole words, compared with the mean of a word's tokens.
        p: the probability that a word is replaced, 0 < p < 1.
        candidates: K, at least 1.
        seed: decides which words are replaced, and by which candidates.
        device: such as "cuda:1"; None = the best available device.
        neighbours: word of several tokens -> its sorted neighbours, which `prepare` finds.
        digest: the digest of the model and its tokeniser, which `prepare` computes.

    Raises:
        UserError: a setting is out of range.
    """

    model: str
    vectors: str | None = None
    p: float = 0.4
    candidates: int = 15
    seed: int = 0
    device: str | None = None
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    digest: str = ""

    name = "contextual"
    shard_copies = 20_000
    chunk_copies = _CHUNK
    description = (
        "Each word is replaced with probability p (TinyBERT, Jiao et al. 2020): a word of one token by one "
        "of the most likely words of a masked language model at that place, any other word by one of its "
        "nearest neighbours among word vectors. For pairs of texts, the copies alter the first text, the "
        "second, and both, in turn. A copy depends only on the seed, the source row, the number of the copy, "
        "these settings, the model and the vectors."
    )

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise UserError(f"replacement probability p = {self.p}", expected="0 < p < 1, such as 0.4")
        if self.candidates < 1:
            raise UserError(f"candidates = {self.candidates}", expected="1 or more, such as 15")

    @property
    def settings(self) -> dict[str, float | int | str]:
        """The fields by name, with a digest in place of the neighbours."""
        parts = (part for word in self.neighbours for part in (word, *self.neighbours[word], ""))
        return {
            "model": self.model,
            "model_digest": self.digest,
            "vectors": self.vectors or "of the model",
            "p": self.p,
            "candidates": self.candidates,
            "seed": self.seed,
            "neighbours": digest_bytes(*parts),
        }

    def prepare(self, rows: Mapping[str, Rows], workers: Workers = THIS_PROCESS) -> Contextual:
        """Find the neighbours of all words of several tokens.

        Raises:
            UserError: the model or the vectors cannot be read, or the model has no masked-LM head.
        """
        lm = self._open()
        columns = (column.unique() for part in rows.values() for column in part.texts)
        words = sorted({word for column in columns for text in _split(lm, column) for word in text.longer})
        if self.vectors is None:
            indices = np.full(len(words), -1)
            nearest = _nearest(lm.mean_embeddings(words), indices, lm.words, lm.embeddings(), self.candidates)
        else:
            vector_words, matrix = read_word_vectors(self.vectors)
            index_of = {word: number for number, word in enumerate(vector_words)}
            indices = np.array(
                [index_of.get(word, index_of.get(word.lower(), -1)) for word in words], np.int64
            )
            words = [word for word, number in zip(words, indices, strict=True) if number >= 0]
            indices = indices[indices >= 0]
            nearest = _nearest(matrix[indices], indices, vector_words, matrix, self.candidates)
        neighbours = dict(zip(words, nearest, strict=True))
        return replace(self, neighbours=neighbours, digest=lm.digest)

    @property
    def loader(self) -> Callable[[], Contextual]:
        """Loads the model in another process."""
        return partial(_load_in_worker, replace(self, model=path_for_workers(self.model)))

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of each row, in row order.

        The model is run once for each word of a text, so a long text takes minutes on a CPU.
        """
        lm = self._open()
        prepared = dict[str, _Candidates]()
        for row in range(len(rows)):
            if row % max(1, _CHUNK // copies) == 0:
                prepared = {}
            yield self._copies_of_row(lm, rows.take(np.array([row])), copies, prepared)

    def _open(self) -> MaskedLM:
        from augment.masked_lm import open_masked_lm  # with torch, which the other augmenters do not need

        return open_masked_lm(self.model, self.device)

    def _copies_of_row(
        self, lm: MaskedLM, row: Rows, copies: int, prepared: dict[str, _Candidates]
    ) -> Copies:
        """The copies of one row.

        Args:
            prepared: text -> its words with their candidates, to which those of new texts are added.
        """
        texts = [column[0].as_py() for column in row.texts]
        new = list(dict.fromkeys(text for text in texts if text not in prepared))
        for text in _split(lm, pa.array(new, pa.string())):
            prepared[text.text] = text, self._candidates(lm, text)
        streams = streams_of(self.seed, row.uids, copies)
        turn = np.arange(copies) % 3
        columns: list[list[str]] = []
        changed = np.zeros(copies, np.int64)
        before = 0  # words of the row's texts so far
        for number, (text, candidates) in enumerate(prepared[text] for text in texts):
            sizes = np.array([len(some) for some in candidates], np.int64)
            steps = INCREMENT * np.arange(before + 1, before + 1 + len(sizes), dtype=np.uint64)
            draws = splitmix64(streams[:, None] + steps)
            active = (turn != 1 - number) | (len(texts) == 1)
            replaced = active[:, None] & (draws < threshold(self.p)) & (sizes > 0)
            chosen = integers_below(splitmix64(draws + INCREMENT), sizes)
            columns.append([])
            for copy in range(copies):
                parts = list(text.parts)
                for word in np.flatnonzero(replaced[copy]):
                    parts[2 * word + 1] = candidates[word][chosen[copy, word]]
                    changed[copy] += parts[2 * word + 1] != text.parts[2 * word + 1]
                columns[-1].append("".join(parts))
            before += len(sizes)
        first, *second = (pa.array(column, pa.string()) for column in columns)
        pair = second[0] if second else pa.nulls(copies, pa.string())
        table = copies_table(row, copies, self.name, first, pair)
        return Copies(table, before * copies, int(changed.sum()), int((changed == 0).sum()))

    def _candidates(self, lm: MaskedLM, text: _Text) -> list[tuple[str, ...]]:
        """The candidates of each word of a text."""
        positions = [
            position for position in text.positions if position is not None and position < lm.longest
        ]
        filled = dict(zip(positions, lm.fill(text.ids, positions, self.candidates), strict=True))
        return [
            self.neighbours.get(word, ()) if position is None else filled.get(position, ())
            for word, position in zip(text.words, text.positions, strict=True)
        ]


def _load_in_worker(method: Contextual) -> Contextual:
    if method._open().digest != method.digest:
        raise other_model(method.model)
    return method


@dataclass(frozen=True)
class _Text:
    """A text split into words.

    Attributes:
        ids: its token ids.
        parts: the text before the first word, the first word, the text between it and the second word, ...
        positions: for each word, the position of its token; None if it has several tokens.
    """

    text: str
    ids: np.ndarray
    parts: list[str]
    positions: list[int | None]

    @property
    def words(self) -> list[str]:
        return self.parts[1::2]

    @property
    def longer(self) -> list[str]:
        """The words of several tokens."""
        return [word for word, position in zip(self.words, self.positions, strict=True) if position is None]


_Candidates: TypeAlias = tuple[_Text, list[tuple[str, ...]]]  # a text, and the candidates of each word


def _split(lm: MaskedLM, texts: pa.StringArray) -> Iterator[_Text]:
    """Split texts into words, and find the token of each."""
    encoded = lm.tokeniser.token_ids_with_offsets(texts)
    for number, text in enumerate(texts.to_pylist()):
        ids, begins, ends = (column.row(number) for column in encoded)
        parts = [""]
        tokens = list[int | None]()
        at = 0
        for space, word in split_words(text):
            parts[-1] += space
            at += len(space)
            stop = at + len(word)
            if word[0].isalnum():
                first, after = np.searchsorted(begins, (at, stop)).tolist()
                alone = after == first + 1 and begins[first] == at and ends[first] == stop
                tokens.append(first if alone else None)
                parts += [word, ""]
            else:
                parts[-1] += word
            at = stop
        parts[-1] += text[at:]
        yield _Text(text, ids, parts, tokens)


def _nearest(
    queries: np.ndarray, query_words: np.ndarray, words: Sequence[str], matrix: np.ndarray, count: int
) -> list[tuple[str, ...]]:
    """The `count` words (at most all but one) whose vectors have the largest cosine with each query, sorted.

    Args:
        queries: (n, d); `query_words`: (n,) the word that each query is, and that is left out; -1 = none.
        matrix: (len(words), d), their vectors.
    """
    count = min(count, len(words) - 1)
    if count < 1:
        return [() for _ in queries]
    unit = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    nearest: list[tuple[str, ...]] = []
    for start in range(0, len(queries), _QUERIES):
        cosines = queries[start : start + _QUERIES] @ unit.T  # times the norm of each query
        excluded = query_words[start : start + _QUERIES]
        has_word = np.flatnonzero(excluded >= 0)
        cosines[has_word, excluded[has_word]] = -np.inf
        best = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        nearest += [tuple(sorted(words[number] for number in row)) for row in best]
    return nearest
