"""Replacement: words masked or replaced by others of their part of speech, then n-grams cut out.

Tang et al. 2019 (arXiv 1903.12136, section 3.2). Each word of a copy draws u from [0, 1) once:

    u < p_mask                    the word becomes the mask token
    p_mask <= u < p_mask + p_pos  it becomes another word of its part of speech, drawn by how often the words
                                  of that part of speech occur in the task's rows
    else                          it stays

Then, with probability p_ngram, all but n neighbouring words of the text are dropped, n from 1 to 5. Of a
pair of texts copy 1 alters the first, copy 2 the second, copy 3 both, copy 4 the first again, and so on; each
altered text draws its own n-gram. The paper drops copies that are alike; here every row keeps its number of
copies.

The draws, of `augment.counter_rng`: word w of the row, across its texts, has draw(uid, copy, w); the word in
its place comes from splitmix64(that + G); the n-gram of text t = 0, 1 from draw(uid, copy, -3t - 1)
(whether), -3t - 2 (n) and -3t - 3 (where).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from augment.augmenter import Augmenter, Copies, copies_table
from augment.counter_rng import G, below, mix, streams_of, threshold
from augment.tagged_text import TaggedTexts, tag_rows
from augment.tagging import NoTagger, open_tagger
from tasks.corpus_reader import SCHEMA
from tasks.errors import UserError
from tasks.files import digest_bytes
from tasks.progress import progress
from tasks.rows import Rows

COPIES = 20  # of each row, in the paper
_LONGEST = 5  # words of an n-gram
_CHUNK = 8192  # copies worked on at once


@dataclass(frozen=True)
class Replacement(Augmenter):
    """The method "replace".

    Attributes:
        texts: task -> its tagged texts (`augment.tagged_text.tag_rows`), of all rows that are copied;
            `prepare` makes them.
        tagger: the tagger's name, for the manifest; before `prepare`, what `open_tagger` takes.
        p_mask, p_pos, p_ngram: the chances above; p_mask + p_pos < 1, p_ngram < 1, not all 0.
        seed: another seed alters other words.
        mask_token: what replaces a masked word.

    Raises:
        UserError: chances outside these bounds, or a mask token that is empty or has white space in it.
    """

    texts: Mapping[str, TaggedTexts] = field(default_factory=dict, repr=False, compare=False)
    tagger: str = "auto"
    p_mask: float = 0.1
    p_pos: float = 0.1
    p_ngram: float = 0.25
    seed: int = 0
    mask_token: str = "[MASK]"

    name = "replace"
    kind = "copies"
    schema = SCHEMA
    about = (
        "Each word is masked with probability p_mask or replaced by another word of its part of speech with "
        "probability p_pos (drawn by how often the words of that part of speech occur in the task's rows); "
        "then, with probability p_ngram, all but 1 to 5 neighbouring words are dropped. Of a pair the copies "
        "alter the first text, the second, both, in turn. White space is normalised to single spaces. A copy "
        "depends on the seed, the source row's uid, its own number, these settings and the tagged words only."
    )

    def __post_init__(self) -> None:
        chances = {"p_mask": self.p_mask, "p_pos": self.p_pos, "p_ngram": self.p_ngram}
        for name, chance in chances.items():
            if not 0 <= chance < 1:
                raise UserError(f"{name} = {chance}", expected="0 or more, and below 1")
        if not self.p_mask + self.p_pos < 1 or not any(chances.values()):
            raise UserError(
                ", ".join(f"{name} = {chance}" for name, chance in chances.items()),
                expected="p_mask + p_pos below 1, and not all of them 0",
            )
        if self.mask_token.split() != [self.mask_token]:
            raise UserError(f"mask token {self.mask_token!r}", expected="one word, such as [MASK]")

    @property
    def settings(self) -> dict[str, float | int | str]:
        """The fields by name; the tagged words by their digest."""
        return {
            "p_mask": self.p_mask,
            "p_pos": self.p_pos,
            "p_ngram": self.p_ngram,
            "seed": self.seed,
            "mask_token": self.mask_token,
            "tagger": self.tagger,
            "words": digest_bytes(*(part for task in self.texts for part in (task, self.texts[task].digest))),
        }

    def prepare(self, rows: Mapping[str, Rows]) -> Replacement:
        """The method with the tagged texts of all rows; UserError if the tagger is not installed."""
        tagger = open_tagger(self.tagger) if self.p_pos else NoTagger()
        with progress("tagging", sum(len(part.texts) * len(part) for part in rows.values())) as advance:
            texts = {task: tag_rows(part, tagger, advance) for task, part in rows.items()}
        return replace(self, texts=texts, tagger=tagger.name)

    def part(self, rows: Rows) -> Replacement:
        """The method with the tagged texts of these rows alone."""
        return replace(self, texts={rows.task: self.texts[rows.task].part(rows)})

    def make(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows`, in row order and a row's copies together, a chunk at a time."""
        tagged = self.texts[rows.task]
        numbers = [tagged.find(column) for column in rows.texts]
        pieces = _pieces(tagged, self.mask_token)
        step = max(1, _CHUNK // copies)
        for start in range(0, len(rows), step):
            where = np.arange(start, min(start + step, len(rows)))
            chunk = [of_text[where] for of_text in numbers]
            yield self._chunk(rows.take(where), chunk, tagged, pieces, copies)

    def _chunk(
        self, rows: Rows, numbers: list[np.ndarray], tagged: TaggedTexts, pieces: pa.StringArray, copies: int
    ) -> Copies:
        streams = streams_of(self.seed, rows.uids, copies)
        changed = np.zeros(len(streams), np.int64)
        before = np.zeros(len(rows), np.int64)  # words of the row's texts so far
        turn = np.tile(np.arange(copies) % 3, len(rows))
        texts: list[pa.Array] = []
        for text, chosen in enumerate(numbers):
            active = (turn != 1 - text) | (len(numbers) == 1)
            words = _Words(tagged, chosen, copies)
            ids, of_copy = self._alter(words, tagged, streams, before, active)
            column, dropped = self._cut(words, ids, of_copy, pieces, streams, text, active)
            texts.append(column)
            changed += dropped
            before += words.lengths
        pair = texts[1] if len(texts) == 2 else pa.nulls(len(streams), pa.string())
        table = copies_table(rows, copies, self.name, texts[0], pair)
        return Copies(table, int(before.sum()) * copies, int(changed.sum()), int((changed == 0).sum()))

    def _alter(
        self,
        words: _Words,
        tagged: TaggedTexts,
        streams: np.ndarray,
        before: np.ndarray,
        active: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask and replace words of one text column.

        Args:
            streams: (n * copies,) uint64, one a copy; `active`: (n * copies,) whether it alters this text.
            before: (n,) words of the row that stand in earlier columns.

        Returns:
            the words' ids, V for the mask token, and whether each was altered.
        """
        base = streams + G * (np.repeat(before, words.copies) + 1 - words.starts).astype(np.uint64)
        draws = mix(np.repeat(base, words.counts) + G * words.run.astype(np.uint64))
        altering = np.repeat(active, words.counts)
        masked = altering & (draws < threshold(self.p_mask))
        replaced = np.flatnonzero(altering & ~masked & (draws < threshold(self.p_mask + self.p_pos)))
        ids = words.ids.copy()
        if len(replaced):
            ids[replaced] = tagged.vocabulary.another(ids[replaced], mix(draws[replaced] + G))
        ids[masked] = len(tagged.vocabulary.words)
        return ids, ids != words.ids

    def _cut(
        self,
        words: _Words,
        ids: np.ndarray,
        altered: np.ndarray,
        pieces: pa.StringArray,
        streams: np.ndarray,
        text: int,
        active: np.ndarray,
    ) -> tuple[pa.StringArray, np.ndarray]:
        """Cut n-grams out of some copies, and join words to texts; with the words changed of each copy."""
        steps = G * np.arange(3 * text + 1, 3 * text + 4, dtype=np.uint64)
        whether, size, place = (mix(streams - step) for step in steps)
        cut = active & (whether < threshold(self.p_ngram)) & (words.counts > 0)
        n = np.minimum(1 + below(size, np.full(len(size), _LONGEST)), words.counts)
        start = np.where(cut, below(place, words.counts - n + 1), 0)
        length = np.where(cut, n, words.counts)
        inside = words.run - np.repeat(words.starts + start, words.counts)
        keep = (inside >= 0) & (inside < np.repeat(length, words.counts))
        spaced = words.spaced & (inside > 0)
        source = ids + np.where(spaced, len(pieces) // 2, 0)
        bounds = np.concatenate([np.zeros(1, np.int32), np.cumsum(length, dtype=np.int32)])
        chosen = pa.ListArray.from_arrays(pa.array(bounds), pieces.take(pa.array(source[keep])))
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(altered | ~keep)])
        return pc.binary_join(chosen, ""), total[words.starts + words.counts] - total[words.starts]


class _Words:
    """The words of one text of every copy of n rows, one after the other.

    Attributes:
        lengths: (n,) words of each row's text; `counts`: (n * copies,) of each copy's.
        starts: (n * copies,) where each copy's words begin in the run of W words.
        run: (W,) 0, 1, 2, ...; `ids`, `spaced`: (W,) as in `TaggedTexts`.
    """

    def __init__(self, tagged: TaggedTexts, numbers: np.ndarray, copies: int):
        self.copies = copies
        self.lengths = tagged.bounds[numbers + 1] - tagged.bounds[numbers]
        self.counts = np.repeat(self.lengths, copies)
        self.starts = np.cumsum(self.counts) - self.counts
        self.run = np.arange(self.counts.sum())
        first = np.repeat(tagged.bounds[numbers], copies) - self.starts
        source = self.run + np.repeat(first, self.counts)
        self.ids = tagged.ids[source]
        self.spaced = tagged.spaced[source]


def _pieces(tagged: TaggedTexts, mask_token: str) -> pa.StringArray:
    """Every word and the mask token (its id is V), then all of them again after a space."""
    words = [*tagged.vocabulary.words, mask_token]
    return pa.array([*words, *(f" {word}" for word in words)], pa.string())
