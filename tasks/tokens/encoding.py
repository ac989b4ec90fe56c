"""Rows as token ids, and batches of them as padded arrays; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tasks.data.rows import Rows, Windows, has_label
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.reader import Reader
from tasks.tokens.span_windows import encode_windows
from tasks.tokens.tokeniser import Tokeniser

PADDED = -1e4  # the logit of a padded position: a probability of 0, and finite in half precision


@dataclass(frozen=True, eq=False)
class Encoded:
    """n rows of one task as token ids, neither truncated nor framed by special tokens.

    Attributes:
        task: the task's name.
        uids: n unique names.
        labels: (n,) or (n, K) float64; for windows of `span` rows (n, 2), see
            `tasks.tokens.span_windows.SpanTokens`. NaN = unlabelled.
        groups: (n,) int64, or None.
        texts: for each text column (one or two), n rows of token ids.
        teacher: the same as the teacher's token ids; None if both use the same tokeniser.
        windows: for `span` rows, where they were cut from; None after `take`.
        char_offsets: for `span` rows, the first character of each context token and the one after its last.
    """

    task: str
    uids: pa.StringArray
    labels: np.ndarray
    groups: np.ndarray | None
    texts: tuple[RaggedArray, ...]
    teacher: tuple[RaggedArray, ...] | None = None
    windows: Windows | None = None
    char_offsets: tuple[RaggedArray, RaggedArray] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> np.ndarray:
        """(n,) bool, True for rows that have a label."""
        return has_label(self.labels)

    @staticmethod
    def encode(rows: Rows, tokeniser: Tokeniser) -> Encoded:
        """Tokenise rows; those of `span` tasks must come from `Reader.rows`."""
        if rows.windows is not None:
            span = encode_windows(rows, tokeniser)
            offsets = (span.starts, span.ends)
            return Encoded(rows.task, rows.uids, span.labels, None, span.texts, None, rows.windows, offsets)
        texts = tuple(tokeniser.token_ids(column) for column in rows.texts)
        return Encoded(rows.task, rows.uids, rows.labels, rows.groups, texts)

    def take(self, indices: np.ndarray) -> Encoded:
        """The rows at `indices`, in that order."""
        return Encoded(
            self.task,
            self.uids.take(pa.array(indices)),
            self.labels[indices],
            None if self.groups is None else self.groups[indices],
            tuple(text.take(indices) for text in self.texts),
            None if self.teacher is None else tuple(text.take(indices) for text in self.teacher),
        )


def length_sorted_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """The row numbers of batches of all rows, longest first, to minimise padding.

    Args:
        lengths: (n,) tokens per row, as `Reader.lengths` returns them.
    """
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@dataclass(frozen=True, eq=False)
class TokenArrays:
    """Padded token sequences, as `tasks.tokens.batching.Tokens`, but as numpy arrays."""

    ids: np.ndarray
    mask: np.ndarray
    token_type_ids: np.ndarray
    ends: np.ndarray | None = None
    second: np.ndarray | None = None


def pad_rows(
    reader: Reader, texts: tuple[RaggedArray, ...], indices: np.ndarray, pad_to: int | None = None
) -> tuple[TokenArrays, ...]:
    """Pad the rows at `indices` (B,) as a model reads them: one sequence per row, or one per text and row.

    Args:
        pad_to: the padded length; None = that of the longest row.
    """
    begins = [text.offsets[indices] for text in texts]
    sizes = tuple(text.offsets[indices + 1] - begin for text, begin in zip(texts, begins, strict=True))
    kept_sizes = reader.kept(sizes)
    spans = [
        _Span(text.values, begin, np.minimum(size, keep))
        for text, begin, size, keep in zip(texts, begins, sizes, kept_sizes, strict=True)
    ]
    if reader.input_format == "separate":
        return tuple(_separate(reader.tokeniser, span, pad_to) for span in spans)
    return (_join(reader, spans, pad_to),)


@dataclass(frozen=True, eq=False)
class _Span:
    """B slices of `values`: slice i begins at begins[i] and has lengths[i] tokens."""

    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray

    def write(self, flat: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Copy slice i to flat[starts[i]:] and return all positions that were written."""
        firsts = np.cumsum(self.lengths) - self.lengths
        steps = np.arange(firsts[-1] + self.lengths[-1])
        where = steps + np.repeat(starts - firsts, self.lengths)
        flat[where] = self.values[steps + np.repeat(self.begins - firsts, self.lengths)]
        return where


def _separate(tokeniser: Tokeniser, span: _Span, pad_to: int | None) -> TokenArrays:
    """(B, L) the texts without special tokens; an empty text becomes one unknown token."""
    lengths = np.maximum(span.lengths, 1)
    ids, token_type_ids = _padded_arrays(len(lengths), pad_to or int(lengths.max()), tokeniser.pad_id)
    ids[span.lengths == 0, 0] = tokeniser.unknown_id
    span.write(ids.reshape(-1), np.arange(len(lengths)) * ids.shape[1])
    return TokenArrays(ids, _mask(ids, lengths), token_type_ids)


def _join(reader: Reader, spans: list[_Span], pad_to: int | None) -> TokenArrays:
    """(B, L) the texts of each row in one sequence with special tokens, as the reader lays them out."""
    tokeniser, layout = reader.tokeniser, reader.layout(len(spans))
    lengths = np.sum([span.lengths for span in spans], axis=0) + layout.n_specials
    ids, token_type_ids = _padded_arrays(len(lengths), pad_to or int(lengths.max()), tokeniser.pad_id)
    ends = np.zeros(ids.shape, bool)
    flat_ids = ids.reshape(-1)
    flat_type_ids = token_type_ids.reshape(-1)
    flat_ends = ends.reshape(-1)
    starts = np.arange(len(lengths)) * ids.shape[1]
    for slot, run in enumerate(layout.specials):
        for number, (token, type_id) in enumerate(zip(run, layout.special_type_ids[slot], strict=True)):
            flat_ids[starts] = token
            flat_ends[starts] = number < layout.n_ends[slot]
            if type_id:
                flat_type_ids[starts] = type_id
            starts = starts + 1
        if slot < len(spans):
            where = spans[slot].write(flat_ids, starts)
            if layout.text_type_ids[slot]:
                flat_type_ids[where] = layout.text_type_ids[slot]
            starts = starts + spans[slot].lengths
    tokens = TokenArrays(ids, _mask(ids, lengths), token_type_ids, ends)
    if len(spans) == 1 or reader.input_format == "joined":
        return tokens
    first = spans[0].lengths + tokeniser.layout(1).n_specials
    return replace(tokens, second=tokens.mask & (np.arange(ids.shape[1]) >= first[:, None]))


def _padded_arrays(n_rows: int, width: int, pad_id: int) -> np.ndarray:
    """(2, B, L) int64: token ids filled with padding, and token type ids filled with 0."""
    grids = np.zeros((2, n_rows, width), np.int64)
    grids[0] = pad_id
    return grids


def _mask(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.arange(ids.shape[1]) < lengths[:, None]
