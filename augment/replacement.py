"""Replacement: mask words, replace words by others of the same part of speech, and sample n-grams.

Tang et al. 2019 (arXiv 1903.12136, section 3.2). For each word of a copy, u is drawn from [0, 1):

    u < p_mask                    the word becomes the mask token
    p_mask <= u < p_mask + p_pos  it becomes another word with the same part of speech, drawn in proportion to
                                  the frequency of those words in the task's rows
    else                          it is unchanged

Without a tagger, any word can replace any other, and punctuation and clitics ('s) only one another.

Then, with probability p_ngram, only an n-gram of the text is kept, with n from 1 to 5. For pairs of texts,
copy 1 alters the first text, copy 2 the second, copy 3 both, copy 4 the first again, and so on; each altered
text draws its own n-gram. The paper removes duplicate copies; here every row keeps all of its copies.

The draws come from `augment.counter_rng`. Word w of the row, counted across its texts, uses
draw(uid, copy, w), and its replacement is chosen by splitmix64(that draw + G). The n-gram of text t = 0, 1
uses draw(uid, copy, -3t - 1) (whether to cut), -3t - 2 (n) and -3t - 3 (position).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from augment.augmenter import Augmenter, Copies, copies_table
from augment.counter_rng import INCREMENT, integers_below, splitmix64, streams_of, threshold
from augment.tagged_files import tag_file_rows
from augment.tagged_text import TaggedTexts, tag_rows
from augment.tagging import NoTagger, WorkerTagger, open_once
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.common.sha256 import digest_bytes
from tasks.data.file_rows import FileRows
from tasks.data.rows import Rows

COPIES = 20  # copies per row in the paper
_LONGEST = 5  # words of the longest n-gram
_CHUNK = 8192  # copies processed at once


@dataclass(frozen=True)
class Replacement(Augmenter):
    """The method "replace".

    Attributes:
        texts: task -> the tagged texts of all its rows, which `prepare` makes with `tag_rows`.
        tagger: before `prepare`, the argument of `open_tagger`; afterwards the tagger's full name.
        p_mask, p_pos, p_ngram: the probabilities above; p_mask + p_pos < 1, p_ngram < 1, not all 0.
        seed: decides which words are changed.
        mask_token: the token that replaces a masked word.

    Raises:
        UserError: a probability is out of range, or the mask token is empty or contains white space.
    """

    texts: Mapping[str, TaggedTexts] = field(default_factory=dict, repr=False, compare=False)
    tagger: str = "auto"
    p_mask: float = 0.1
    p_pos: float = 0.1
    p_ngram: float = 0.25
    seed: int = 0
    mask_token: str = "[MASK]"

    name = "replace"
    reads_files = True
    description = (
        "Each word is masked with probability p_mask, or replaced with probability p_pos by another word of "
        "the same part of speech (drawn in proportion to its frequency in the task's rows); then, with "
        "probability p_ngram, all but 1 to 5 neighbouring words are dropped. For pairs of texts, the copies "
        "alter the first text, the second, and both, in turn. White space is normalised to single spaces. A "
        "copy depends only on the seed, the source row's uid, the number of the copy, these settings and the "
        "tagged words."
    )

    def __post_init__(self) -> None:
        chances = {"p_mask": self.p_mask, "p_pos": self.p_pos, "p_ngram": self.p_ngram}
        for name, chance in chances.items():
            if not 0 <= chance < 1:
                raise UserError(f"`{name}={chance}` is not valid", expected="0 or more, and below 1")
        if not self.p_mask + self.p_pos < 1 or not any(chances.values()):
            raise UserError(
                ", ".join(f"`{name}={chance}`" for name, chance in chances.items()) + " do not fit together",
                expected="p_mask + p_pos below 1, and not all of them 0",
            )
        if self.mask_token.split() != [self.mask_token]:
            raise UserError(
                f"the mask token {self.mask_token!r} is not one word", expected="a word such as [MASK]"
            )

    @property
    def settings(self) -> dict[str, float | int | str]:
        """The fields by name, with a digest in place of the tagged words."""
        return {
            "p_mask": self.p_mask,
            "p_pos": self.p_pos,
            "p_ngram": self.p_ngram,
            "seed": self.seed,
            "mask_token": self.mask_token,
            "tagger": self.tagger,
            "words": digest_bytes(*(part for task in self.texts for part in (task, self.texts[task].digest))),
        }

    def check_requirements(self) -> None:
        """Raise UserError if the tagger is needed, but not installed."""
        if self.p_pos:
            open_once(self.tagger)

    def prepare(self, rows: Mapping[str, Rows | FileRows], workers: Workers = THIS_PROCESS) -> Replacement:
        """Tag the texts of all rows; UserError if the tagger is not installed."""
        tagger = open_once(self.tagger) if self.p_pos else NoTagger(kinds=False)
        sent = WorkerTagger.of(tagger, self.tagger) if workers.in_other_processes else tagger

        def tag(part: Rows | FileRows) -> TaggedTexts:
            tag_them = tag_file_rows if isinstance(part, FileRows) else tag_rows
            return tag_them(part, sent, advance, workers)  # type: ignore[arg-type]

        with progress("tagging", sum(_n_texts(part) for part in rows.values())) as advance:
            texts = {task: tag(part) for task, part in rows.items()}
        return replace(self, texts=texts, tagger=tagger.name)

    def for_rows(self, rows: Rows | FileRows) -> Replacement:
        """Return a copy that holds only the tagged texts of these rows."""
        task = rows.task.name if isinstance(rows, FileRows) else rows.task
        return replace(self, texts={task: self.texts[task].for_rows(rows)})

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield the copies of `rows` in row order, keeping each row's copies together, in chunks."""
        tagged = self.texts[rows.task]
        numbers = tagged.of_rows(rows)
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
            streams: (n * copies,) uint64, one per copy.
            before: (n,) number of words in the earlier columns of each row.
            active: (n * copies,) bool, whether the copy alters this text.

        Returns:
            the word ids (V = the mask token), and whether each word was altered.
        """
        base = streams + INCREMENT * (np.repeat(before, words.copies) + 1 - words.starts).astype(np.uint64)
        draws = splitmix64(np.repeat(base, words.counts) + INCREMENT * words.run.astype(np.uint64))
        altering = np.repeat(active, words.counts)
        masked = altering & (draws < threshold(self.p_mask))
        replaced = np.flatnonzero(altering & ~masked & (draws < threshold(self.p_mask + self.p_pos)))
        ids = words.ids.copy()
        if len(replaced):
            ids[replaced] = tagged.vocabulary.another(ids[replaced], splitmix64(draws[replaced] + INCREMENT))
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
        """Reduce some copies to n-grams and join the words; returns texts and changed words per copy."""
        steps = INCREMENT * np.arange(3 * text + 1, 3 * text + 4, dtype=np.uint64)
        cut_draw, size_draw, start_draw = (splitmix64(streams - step) for step in steps)
        cut = active & (cut_draw < threshold(self.p_ngram)) & (words.counts > 0)
        n = np.minimum(1 + integers_below(size_draw, np.full(len(size_draw), _LONGEST)), words.counts)
        start = np.where(cut, integers_below(start_draw, words.counts - n + 1), 0)
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
    """The words of one text column in all copies of n rows, concatenated.

    Attributes:
        lengths: (n,) number of words in each row's text; `counts`: (n * copies,) the same for each copy.
        starts: (n * copies,) where each copy's words begin among the W words.
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


def _n_texts(rows: Rows | FileRows) -> int:
    return len(rows) * (rows.n_texts if isinstance(rows, FileRows) else len(rows.texts))


def _pieces(tagged: TaggedTexts, mask_token: str) -> pa.StringArray:
    """All words and the mask token (id V), followed by the same strings with a leading space."""
    words = [*tagged.vocabulary.words, mask_token]
    return pa.array([*words, *(f" {word}" for word in words)], pa.string())
