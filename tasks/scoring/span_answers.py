"""Decoding the logits of windows into the n best answers of each row, and "no answer"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.tokens.encoding import Encoded
from tasks.tokens.token_layout import Layout

_CHUNK = 256  # windows decoded at once, of answers of at most 30 tokens


@dataclass(frozen=True)
class SpanCandidate:
    """A possible answer: its text, its character offset in the context, and its score (start + end logit)."""

    text: str
    start: int
    score: float


@dataclass(frozen=True, eq=False)
class SpanAnswers:
    """The answers of a model for n rows.

    Attributes:
        candidates: the best spans of each row, best first; empty if the context has no tokens.
        null: (n,) the score of "no answer": start + end logit of the first token, the minimum over the
            windows.
    """

    candidates: list[list[SpanCandidate]]
    null: np.ndarray

    @property
    def lead(self) -> np.ndarray:
        """(n,) how much higher "no answer" scores than the best span."""
        best = [spans[0].score if spans else -np.inf for spans in self.candidates]
        return self.null - np.array(best)

    def texts(self, threshold: float | None) -> list[str]:
        """The best span of each row, or "" if `lead` is above the threshold (None: never)."""
        lead = self.lead
        return [
            spans[0].text if spans and (threshold is None or above <= threshold) else ""
            for spans, above in zip(self.candidates, lead, strict=True)
        ]


def decode_spans(
    encoded: Encoded, logits: np.ndarray, layout: Layout, max_tokens: int, n_best: int = 1
) -> SpanAnswers:
    """Decode the best answers of the rows that the windows were cut from.

    A span lies inside the context and has at most `max_tokens` tokens. Its score is the sum of its start
    and end logits. The answers of a row are the best spans of all its windows, each text once (BERT, Devlin
    et al. 2019, section 4.3).

    Args:
        encoded: all windows.
        logits: (w, 2, L) of starts and ends.
        layout: how the tokeniser joins two texts.
        max_tokens: maximum number of tokens of an answer.
        n_best: number of spans per row.
    """
    windows, offsets = encoded.windows, encoded.char_offsets
    assert windows is not None and offsets is not None, "all windows are needed"
    before = len(layout.specials[0]) + encoded.texts[0].lengths + len(layout.specials[1])
    by_row: list[list[SpanCandidate]] = [[] for _ in range(len(windows.whole_rows))]
    texts = windows.whole_rows.texts[1].to_pylist()
    scores, firsts, lasts = _top_spans(logits, before, encoded.texts[1].lengths, max_tokens, n_best)
    starts, ends = offsets
    for window, (row, begin) in enumerate(zip(windows.row.tolist(), windows.begin.tolist(), strict=True)):
        for score, first, last in zip(scores[window], firsts[window], lasts[window], strict=True):
            if not np.isfinite(score):
                break
            start = begin + int(starts.row(window)[first])
            stop = begin + int(ends.row(window)[last])
            by_row[row].append(SpanCandidate(texts[row][start:stop], start, float(score)))
    null = np.full(len(by_row), np.inf)
    np.minimum.at(null, windows.row, logits[:, 0, 0].astype(np.float64) + logits[:, 1, 0])
    return SpanAnswers([_best(candidates, n_best) for candidates in by_row], null)


def _best(candidates: list[SpanCandidate], n_best: int) -> list[SpanCandidate]:
    """The best candidates, best first, each text once."""
    by_text: dict[str, SpanCandidate] = {}
    for candidate in sorted(candidates, key=lambda c: (-c.score, c.start)):
        by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())[:n_best]


def _top_spans(
    logits: np.ndarray, before: np.ndarray, sizes: np.ndarray, max_tokens: int, n_best: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(w, n_best) score, first and last context token of each window's best spans; score -inf = no span."""
    scores = np.full((len(logits), n_best), -np.inf, np.float32)
    firsts, lasts = np.zeros((2, len(logits), n_best), np.int64)
    step = max(1, _CHUNK * 30 // max(30, max_tokens))
    for begin in range(0, len(logits), step):
        chunk = slice(begin, begin + step)
        width = max(1, int(sizes[chunk].max(initial=0)))
        longest = min(max_tokens, width)
        token = np.arange(width)
        inside = token < sizes[chunk, None]
        positions = np.minimum(before[chunk, None] + token, logits.shape[2] - 1)
        values = logits[chunk].astype(np.float32)
        first, last = (
            np.where(inside, np.take_along_axis(values[:, k], positions, 1), -np.inf) for k in (0, 1)
        )
        padded = np.pad(last, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
        ends = np.lib.stride_tricks.sliding_window_view(padded, longest, 1)
        sums = (first[:, :, None] + ends).reshape(len(values), -1)  # (w, width * longest)
        count = min(n_best, sums.shape[1])
        best = np.argpartition(-sums, count - 1, 1)[:, :count]
        best_sums = np.take_along_axis(sums, best, 1)
        order = np.argsort(-best_sums, 1, kind="stable")
        best = np.take_along_axis(best, order, 1)
        scores[chunk, :count] = np.take_along_axis(best_sums, order, 1)
        firsts[chunk, :count] = best // longest
        lasts[chunk, :count] = best // longest + best % longest
    return scores, firsts, lasts
